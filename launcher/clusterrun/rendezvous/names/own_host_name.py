"""What this host's own name leads to: libraries that look it up bind to what they find."""

import select
from collections.abc import Callable

from clusterrun.rendezvous.names.resolver import Lookup

SECONDS_TO_ASK = 2.0
"""A resolver that takes longer would hold up every rank's library as well."""


def resolves_for_others(host: str, clock: Callable[[], float]) -> bool:
    """Tell whether ``host``, our own name, has an address that other nodes could reach.

    Where it has none (127.0.1.1 on Debian, or nobody knows it), gloo and NCCL must be told which
    interface to use, or they end in "connectFullMesh failed".
    """
    with select.epoll() as epoll:
        deadline = clock() + SECONDS_TO_ASK
        lookup = Lookup(host, epoll, clock())
        try:
            while not lookup.addresses and not lookup.trouble and clock() < deadline:
                epoll.poll(max(0.0, deadline - clock()))
                lookup.turn(clock())
        finally:
            lookup.close()
    return any(not address.is_loopback for address in lookup.addresses)
