"""The hosts that the user lists with ``--hosts`` or ``--hostfile``, and the rank of this one."""

import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.host_lists import expand_hosts, short_name
from clusterrun.job.sources import Layer, find, value_of

_SLOTS = re.compile(r"slots *= *([0-9]+)")
_OTHER_WORDS = re.compile(r"max[_-]slots *= *[0-9]+")
_COLON = re.compile(r"([^:]+):([0-9]+)")

Addresses = Callable[[str], Collection[str]]
"""Returns the addresses of a host by its name; for "" those of this machine."""


class ListedHosts(Struct, frozen=True):
    """Hosts by rank."""

    hosts: Fact[tuple[str, ...]]
    slots: Mapping[str, Fact[int]]
    """Workers of the hosts for which the file has a number."""


def list_hosts(sources: Sequence[Layer]) -> ListedHosts:
    """Return the hosts of ``--hosts`` or of the file of ``--hostfile``, one of which is set."""
    # A stronger source replaces the list of a weaker one.
    strongest = [it for it in sources if {"hosts", "hostfile"} & it.keys()][:1]
    hosts, file = find("hosts", strongest), value_of("hostfile", strongest)
    if hosts and file.value:
        raise UsageError(f"{hosts.origin} and {file.origin} both list the hosts", "leave one out")
    return ListedHosts(hosts, {}) if hosts else read_hostfile(file)


def read_hostfile(file: Fact[str]) -> ListedHosts:
    """Return the hosts of a file: plain, or in the format of Open MPI or MPICH."""
    try:
        lines = Path(file.value).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(
            f"{file.origin}: {file.value} cannot be read: {error.strerror}", "give another path"
        ) from None
    hosts: dict[str, Fact[int] | None] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{file.value}:{number}"
        text = line.partition("#")[0].strip()
        names, slots = _hosts_of_line(Fact(text, where))
        for name in names:
            if name in hosts:
                raise UsageError(
                    f"{where}: {name} is listed twice", "list it once, as HOST slots=N"
                )
            hosts[name] = slots
    if not hosts:
        raise UsageError(f"{file.origin}: {file.value} lists no host", "write one host per line")
    return ListedHosts(
        Fact(tuple(hosts), f"{file.origin} {file.value}"),
        {name: slots for name, slots in hosts.items() if slots},
    )


def _hosts_of_line(line: Fact[str]) -> tuple[tuple[str, ...], Fact[int] | None]:
    name, _, rest = line.value.partition(" ")
    rest, slots = _OTHER_WORDS.sub("", rest.strip()).strip(), None
    if found := _SLOTS.fullmatch(rest):
        slots, rest = found[1], ""
    elif not rest and (found := _COLON.fullmatch(name)):
        # A name with more than one colon, such as "fd77::1", is an address.
        name, slots = found[1], found[2]
    if rest or slots == "0":
        raise UsageError(
            f"{line.origin}: {line.value!r} is not a host and its slots",
            "write HOST, HOST slots=N or HOST:N, with N from 1",
        )
    count = Fact(int(slots), line.origin) if slots else None
    return expand_hosts(Fact(name, line.origin)).value, count


def own_rank(hosts: Fact[tuple[str, ...]], here: str, addresses: Addresses) -> Fact[int]:
    """Return the place of this host among ``hosts``.

    ``here`` is this host's own name, or its address as set by an option. ``addresses`` is called only
    if names do not match, and may take as long as a name server does.
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
