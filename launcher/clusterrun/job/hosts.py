"""Lists of hosts, such as ``gpu[01-03,07],login`` or a hostfile, and this host's position in them."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, product
from math import prod
from pathlib import Path

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.sources import Layer, find, value_of

MAX_HOSTS = 1_000_000
"""A longer list is a typing error, such as an extra digit in a range, and would fill the memory."""

MAX_SHOWN = 60
"""The number of characters of a list in a message."""

_BRACKETS = r"\[([^\[\]]*)\]"
_RANGE = r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,9}))?)?"
_COUNT = r"([0-9]+)(?:\(x([0-9]+)\))?"
_SLOTS = r"slots *= *([0-9]+)"
_OTHER_WORDS = r"max[_-]slots *= *[0-9]+"
_COLON = r"([^:]+):([0-9]+)"

Addresses = Callable[[str], Collection[str]]
"""Returns the addresses of a host by its name; for "" those of this machine."""


def expand_hosts(text: Setting[str]) -> Setting[tuple[str, ...]]:
    """Return the names in a host list; an error begins with its origin."""
    try:
        return Setting(read_hosts(text.value), text.origin)
    except UsageError as error:
        raise UsageError(f"{text.origin}: {error.message}", error.hint) from None


def read_hosts(text: str) -> tuple[str, ...]:
    """Return the names in a host list in its own order, which is the order of ranks.

    Raises:
        UsageError: the text is not a list of hosts, or has more than ``MAX_HOSTS`` hosts.

    """
    items = [_read(item) for item in _items(text)] if text else []
    known = [item for item in items if item]
    if len(known) < len(items) or not text.isprintable():
        raise host_list_error(text)
    check_number(shown(text), (count for count, _ in known))
    return tuple(chain.from_iterable(names for _, names in known))


def host_list_error(text: str) -> UsageError:
    """Return the error for a text that is not a list of hosts."""
    return UsageError(f"{shown(text)} is not a list of hosts", "give it as in gpu[01-04,7],login")


def shown(text: str) -> str:
    """Return a list in quotes; only the beginning of a long one."""
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")


def check_number(what: str, counts: Iterable[int]) -> None:
    """Check that ``what`` does not list too many hosts, before their names are made.

    Raises:
        UsageError: the sum of ``counts`` is more than ``MAX_HOSTS``.

    """
    if (number := sum(counts)) > MAX_HOSTS:
        raise UsageError(
            f"{what} has {number:,} hosts, but a job has {MAX_HOSTS:,} at most",
            "check the numbers in it",
        )


def expand_counts(text: Setting[str]) -> tuple[int, ...]:
    """Return the count of each host: ``2(x3),1`` is 2, 2, 2, 1.

    Raises:
        UsageError: the text is not a list of counts, or is for more than ``MAX_HOSTS`` hosts.

    """
    what = f"{text.origin}: {shown(text.value)}"
    found = [re.fullmatch(_COUNT, part) for part in text.value.split(",")]
    pairs = [(int(count[1]), int(count[2] or 1)) for count in found if count]
    if None in found or any(times == 0 for _, times in pairs):
        raise UsageError(f"{what} is not a list of counts", "unset it")
    check_number(what, (times for _, times in pairs))
    return tuple(number for number, times in pairs for _ in range(times))


def short_name(host: str) -> str:
    """Return ``host`` without its domain."""
    return host.partition(".")[0]


_Ranges = Sequence[tuple[range, int]]
"""The content of brackets: numbers, and the minimum number of digits for each range."""


def _read(item: str) -> tuple[int, Iterable[str]] | None:
    """Return the number of names that an item of a list stands for, and the names; None if it is wrong."""
    if "[" not in item and "]" not in item:
        return 1, (item,)
    pieces = re.split(_BRACKETS, item)
    texts, brackets = pieces[::2], [[*map(_range, one.split(","))] for one in pieces[1::2]]
    if any("[" in text or "]" in text for text in texts) or any(None in each for each in brackets):
        return None
    known = [[ranges for ranges in each if ranges] for each in brackets]
    count = prod(sum(len(numbers) for numbers, _ in ranges) for ranges in known)
    return count, _names(texts, known)


def _names(texts: Sequence[str], brackets: Sequence[_Ranges]) -> Iterator[str]:
    """Yield each name; ``texts`` are the parts before, between and after the brackets."""
    first, *others = texts
    spelled = [
        [f"{number:0{width}}{after}" for numbers, width in ranges for number in numbers]
        for ranges, after in zip(brackets, others, strict=True)
    ]
    yield from map("".join, product([first], *spelled))


def _range(text: str) -> tuple[range, int] | None:
    """Return the numbers of ``01-04``, ``7`` or ``0-8/2``, and the minimum number of digits."""
    found = re.fullmatch(_RANGE, text)
    if not found:
        return None
    first, last, step = found[1], found[2] or found[1], int(found[3] or 1)
    # It is not clear how many zeros n[8-011] and n[001-3] mean.
    are_clear = len(first) == len(last) or (len(first) < len(last) and last[0] != "0")
    if not are_clear or int(first) > int(last) or not step:
        return None
    return range(int(first), int(last) + 1, step), len(first)


def _items(text: str) -> Iterator[str]:
    """Split a list at the commas outside brackets."""
    pieces: list[str] = []
    is_open = False
    for piece in text.split(","):
        pieces.append(piece)
        if "[" in piece or "]" in piece:
            is_open = piece.rfind("[") > piece.rfind("]")
        if not is_open:
            yield ",".join(pieces)
            pieces.clear()
    if pieces:
        yield ",".join(pieces)


class ListedHosts(Struct, frozen=True):
    """The hosts of ``--hosts`` or a hostfile."""

    hosts: Setting[tuple[str, ...]]
    """In the order of ranks, as listed: a host may be ssh's USER@HOST."""
    slots: Mapping[str, Setting[int]] = {}
    """Numbers of workers by host, if the hostfile has them."""


def list_hosts(layers: Sequence[Layer]) -> ListedHosts:
    """Return the hosts of ``--hosts`` or of the file of ``--hostfile``, one of which is set.

    Raises:
        UsageError: the same source sets both, or the file is wrong.

    """
    # The strongest source counts, even if a weaker one sets the other option.
    strongest = [layer for layer in layers if {"hosts", "hostfile"} & layer.keys()][:1]
    hosts, file = find("hosts", strongest), value_of("hostfile", strongest)
    if hosts and file.value:
        raise UsageError(f"{hosts.origin} and {file.origin} both list the hosts", "remove one")
    return ListedHosts(hosts) if hosts else read_hostfile(file)


def read_hostfile(file: Setting[str]) -> ListedHosts:
    """Return the hosts of a file with one host per line, or in the format of Open MPI or MPICH.

    Raises:
        UsageError: the file can't be read, has a line that is not a host, lists a host twice, or
            lists more than ``MAX_HOSTS``.

    """
    try:
        lines = Path(file.value).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UsageError(
            f"{file.origin}: {file.value} can't be read: {error.strerror}", "give another path"
        ) from None
    hosts: dict[str, Setting[int] | None] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{file.value}:{number}"
        text = " ".join(line.partition("#")[0].split())
        names, slots = _hosts_of_line(Setting(text, where))
        for name in names:
            if name in hosts:
                raise UsageError(
                    f"{where}: {name} is listed twice", "list it once, as HOST slots=N"
                )
            hosts[name] = slots
        check_number(f"{file.origin}: {file.value}", (len(hosts),))
    if not hosts:
        raise UsageError(f"{file.origin}: {file.value} lists no host", "write one host per line")
    return ListedHosts(
        Setting(tuple(hosts), f"{file.origin} {file.value}"),
        {name: slots for name, slots in hosts.items() if slots},
    )


def _hosts_of_line(line: Setting[str]) -> tuple[tuple[str, ...], Setting[int] | None]:
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
    count = Setting(int(slots), line.origin) if slots else None
    return expand_hosts(Setting(name, line.origin)).value, count


def own_rank(hosts: Setting[tuple[str, ...]], here: str, addresses: Addresses) -> Setting[int]:
    """Return the position of this host in ``hosts``.

    ``here`` is this host's name, or the address that an option sets. ``addresses`` may wait for a name
    server, so it is called only if no name matches.

    Raises:
        UsageError: this host is not in the list, or more than once.

    """
    found = by_name(hosts.value, here) or _by_address(hosts.value, here, addresses)
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
    return Setting(found[0], hosts.origin)


def by_name(hosts: Collection[str], here: str) -> list[int]:
    """Return the positions of the host ``here`` in ``hosts``, by its full name or else the short one."""
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
    import socket

    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False


def _some(hosts: Collection[str]) -> str:
    names = list(hosts)
    return ", ".join(names if len(names) < 10 else [*names[:8], f"... and {len(names) - 8} more"])
