"""The rank of this host among several: by its name, else by its addresses."""

import socket
from collections.abc import Callable, Collection
from contextlib import suppress

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.hosts.host_lists import short_name

Addresses = Callable[[str], Collection[str]]
"""Returns the addresses of a host by its name; for "" those of this machine."""


def own_rank(hosts: Fact[tuple[str, ...]], here: str, addresses: Addresses) -> Fact[int]:
    """Return the place of this host among ``hosts``.

    Args:
        hosts: names and addresses by rank.
        here: this host's own name, or its address as set by an option.
        addresses: called only if names do not match; may take as long as a name server does.
    """
    found = _by_name(hosts.value, here) or _by_address(hosts.value, here, addresses)
    if not found:
        raise UsageError(
            f"{hosts.origin} lists {_some(hosts.value)}, but not this node, {here}"
            f" ({', '.join(sorted(addresses('')))})",
            "add it to the list, or give its rank with --node-rank",
        )
    if len(found) > 1:
        names = " and ".join(hosts.value[rank] for rank in found)
        raise UsageError(
            f"{hosts.origin} lists {names}, which are both this node, {here}",
            "list each node once",
        )
    return Fact(found[0], hosts.origin)


def _by_name(hosts: Collection[str], here: str) -> list[int]:
    exactly = [rank for rank, host in enumerate(hosts) if host == here]
    if exactly or _is_address(here):
        return exactly
    short = [host if _is_address(host) else short_name(host) for host in hosts]
    return [rank for rank, host in enumerate(short) if host == short_name(here)]


def _by_address(hosts: Collection[str], here: str, addresses: Addresses) -> list[int]:
    own = {here} if _is_address(here) else set(addresses(""))
    plain = [rank for rank, host in enumerate(hosts) if host in own]
    names = ((rank, host) for rank, host in enumerate(hosts) if not _is_address(host))
    return plain or [rank for rank, host in names if not own.isdisjoint(addresses(host))]


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def _some(hosts: Collection[str]) -> str:
    names = list(hosts)
    return ", ".join(names if len(names) < 10 else [*names[:8], f"... and {len(names) - 8} more"])
