"""Host lists such as ``gpu[01-03,07],login`` and counts per host such as ``2(x3),1``."""

import re
from collections.abc import Iterator

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError

_COMMA_OUTSIDE_OF_BRACKETS = re.compile(r",(?![^\[]*\])")
_COUNT = re.compile(r"([0-9]+)(?:\(x([0-9]+)\))?")


def expand_hosts(text: Fact[str]) -> Fact[tuple[str, ...]]:
    """Return the names of a host list in its own order, which is the order of the ranks."""
    parts = _COMMA_OUTSIDE_OF_BRACKETS.split(text.value) if text.value else ()
    return Fact(tuple(name for part in parts for name in _names(part, text)), text.origin)


def expand_counts(text: Fact[str]) -> tuple[int, ...]:
    """Return the count of each host: ``2(x3),1`` is 2, 2, 2, 1."""
    found = [_COUNT.fullmatch(part) for part in text.value.split(",")]
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
        "write, for example, gpu[01-04,7],login",
    )
