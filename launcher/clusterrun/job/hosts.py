"""Hosts as users and schedulers list them: ``gpu[01-03,07],login``, a hostfile, and this host among them."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact
from clusterrun.job.sources import Layer, find, value_of

_COMMA_OUTSIDE_OF_BRACKETS = r",(?![^\[]*\])"
_COUNT = r"([0-9]+)(?:\(x([0-9]+)\))?"
_SLOTS = r"slots *= *([0-9]+)"
_OTHER_WORDS = r"max[_-]slots *= *[0-9]+"
_COLON = r"([^:]+):([0-9]+)"

Addresses = Callable[[str], Collection[str]]
"""Returns the addresses of a host by its name; for "" those of this machine."""


def expand_hosts(text: Fact[str]) -> Fact[tuple[str, ...]]:
    """Return the names of a host list in its own order, which is the order of the ranks.

    Raises:
        UsageError: the text is not a list of hosts.

    """
    parts = re.split(_COMMA_OUTSIDE_OF_BRACKETS, text.value) if text.value else ()
    return Fact(tuple(name for part in parts for name in _names(part, text)), text.origin)


def expand_counts(text: Fact[str]) -> tuple[int, ...]:
    """Return the count of each host: ``2(x3),1`` is 2, 2, 2, 1.

    Raises:
        UsageError: the text is not a list of counts.

    """
    found = [re.fullmatch(_COUNT, part) for part in text.value.split(",")]
    if None in found:
        raise UsageError(f"{text.origin}: {text.value!r} is not a list of counts", "unset it")
    pairs = [(int(count[1]), int(count[2] or 1)) for count in found if count]
    return tuple(number for number, times in pairs for _ in range(times))


def short_name(host: str) -> str:
    """Return ``host`` without its domain, as most kernels name their own host."""
    return host.partition(".")[0]


def _names(part: str, text: Fact[str]) -> Iterator[str]:
    head, end, rest = part.partition("]")
    prefix, begin, ranges = head.partition("[")
    if not begin and not end:
        yield part
        return
    if not begin or not end:
        raise _not_a_list(text)
    # A NodeSet sorts its names; n[3,1] must keep its order, so each range is a NodeSet of its own.
    for single in ranges.split(","):
        for name in _node_set(f"{prefix}[{single}]", text):
            yield from _names(name + rest, text)


def _node_set(names: str, text: Fact[str]) -> list[str]:
    # The import takes some 25 ms, and most jobs have no list with ranges.
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return list(NodeSet(names, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        raise _not_a_list(text) from None


def _not_a_list(text: Fact[str]) -> UsageError:
    return UsageError(
        f"{text.origin}: {text.value!r} is not a list of hosts",
        "give, for example, gpu[01-04,7],login",
    )


class ListedHosts(Struct, frozen=True):
    """Hosts by rank, as ``--hosts`` or a hostfile lists them."""

    hosts: Fact[tuple[str, ...]]
    slots: Mapping[str, Fact[int]] = {}
    """Workers of the hosts for which the file has a number."""


def list_hosts(layers: Sequence[Layer]) -> ListedHosts:
    """Return the hosts of ``--hosts`` or of the file of ``--hostfile``, one of which is set.

    Raises:
        UsageError: both are set, or the file has none.

    """
    # A stronger source replaces the list of a weaker one.
    strongest = [layer for layer in layers if {"hosts", "hostfile"} & layer.keys()][:1]
    hosts, file = find("hosts", strongest), value_of("hostfile", strongest)
    if hosts and file.value:
        raise UsageError(f"{hosts.origin} and {file.origin} both list the hosts", "leave one out")
    return ListedHosts(hosts) if hosts else read_hostfile(file)


def read_hostfile(file: Fact[str]) -> ListedHosts:
    """Return the hosts of a file: plain, or in the format of Open MPI or MPICH.

    Raises:
        UsageError: the file can't be read, has a line that is no host, or lists a host twice.

    """
    try:
        lines = Path(file.value).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(
            f"{file.origin}: {file.value} can't be read: {error.strerror}", "give another path"
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
    rest, slots = re.sub(_OTHER_WORDS, "", rest.strip()).strip(), None
    if found := re.fullmatch(_SLOTS, rest):
        slots, rest = found[1], ""
    elif not rest and (found := re.fullmatch(_COLON, name)):
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

    Raises:
        UsageError: this host is not in the list, or is there more than once.

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
    # Few jobs list their hosts.
    import socket

    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def _some(hosts: Collection[str]) -> str:
    names = list(hosts)
    return ", ".join(names if len(names) < 10 else [*names[:8], f"... and {len(names) - 8} more"])
