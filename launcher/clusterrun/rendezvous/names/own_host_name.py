"""Whether other nodes could reach what this host's own name resolves to."""

import select
from collections.abc import Callable

from clusterrun.rendezvous.names.resolver import Lookup

SECONDS_FOR_LOOKUP = 2.0
"""A slower resolver would delay the libraries of every rank as well."""


def resolves_for_others(host: str, clock: Callable[[], float]) -> bool:
    """Return whether ``host``, our own name, has an address that is not a loopback one.

    Where it has none (127.0.1.1 on Debian, or an unknown name), gloo and NCCL need to be given an
    interface, or they fail with "connectFullMesh failed".
    """
    with select.epoll() as epoll:
        deadline = clock() + SECONDS_FOR_LOOKUP
        lookup = Lookup(host, epoll, clock())
        try:
            while not lookup.addresses and not lookup.error and clock() < deadline:
                epoll.poll(max(0.0, deadline - clock()))
                lookup.turn(clock())
        finally:
            lookup.close()
    return any(not address.is_loopback for address in lookup.addresses)
