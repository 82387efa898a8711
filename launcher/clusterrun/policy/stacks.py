"""Python stacks of many ranks, equal ones grouped."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from clusterrun.bounds import Count, Text, counted, named_ranks
from clusterrun.policy.queries import MissingNode, missing_nodes

Named = Callable[[Iterable[int]], str]
"""Names workers by their numbers in the job: "ranks 0-3"."""

MAX_GROUPS = 20
"""Different stacks that are shown; each rank's own is in its log file, if there is one."""

MAX_NAMED = 4
"""Places that one line names, beside the most common one."""

LONGEST = 8 << 10
"""Characters of one stack."""


_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_OF_A_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<")
_WRAPPERS = frozenset(
    {"wrapper", "inner", "decorate_context", "__call__", "_call_impl", "_wrapped_call_impl"}
)
"""Functions between the script and the one that it calls, which tell nothing."""

_CURRENT = "Current thread"

_IN_A_COLLECTIVE = "/torch/distributed/"

_OF_TORCH = re.compile(r"-packages/torch/|/torch/(?:autograd|cuda|distributed)/")
"""Files of torch, installed or in a checkout of it."""

EXITED = "exited with 0"
"""In place of the stack of a rank that has ended well while others run."""


class StackGroup(Struct, frozen=True):
    """Ranks with the same stack, or without one for the same reason."""

    ranks: tuple[Count, ...]
    text: Text
    """The stack, or why there is none."""
    found: bool = True


def _frames_of(stack: str) -> list[tuple[str, ...]]:
    """Return file, line and function of each call of the main thread, the innermost first."""
    lines = stack.split("\n")
    first = next((at for at, line in enumerate(lines) if line.startswith(_CURRENT)), 0)
    return [found.groups() for line in lines[first:] if (found := _FRAME.match(line))]


def waits_in_torch(group: StackGroup) -> bool:
    """Return whether the innermost Python call of the main thread is one of torch's own."""
    frames = _frames_of(group.text) if group.found else []
    return bool(frames) and _OF_TORCH.search(frames[0][0]) is not None


def place_of(stack: str) -> str:
    """Return where a stack is: "all_reduce at train.py:88", the script's line and what it calls."""
    frames = _frames_of(stack)
    if not frames:
        return ""
    of_script = (at for at, (file, *_) in enumerate(frames) if not _OF_A_LIBRARY.search(file))
    at = next(of_script, 0)
    called = [name for _, _, name in frames[:at] if name not in _WRAPPERS]
    file, line, own = frames[at]
    return f"{called[-1] if called else own} at {file.rpartition('/')[2]}:{line}"


def describe_differences(groups: Iterable[StackGroup], named: Named = named_ranks) -> str:
    """Return one line that compares the ranks, most of them first; "" if all are at one place.

    "62 ranks are in all_reduce at train.py:88; ranks 3, 17 are in __next__ at data.py:41"
    """
    by_place: dict[str, list[int]] = {}
    for group in groups:
        place = place_of(group.text) if group.found else ""
        if place:
            by_place.setdefault(place, []).extend(group.ranks)
    if len(by_place) < 2:
        return ""
    (place, most), *others = sorted(by_place.items(), key=lambda item: (-len(item[1]), item[1]))
    first = f"{counted(len(most), 'rank')} {_are(most)} in {place}"
    parts = [f"{named(ranks)} {_are(ranks)} in {place}" for place, ranks in others[:MAX_NAMED]]
    if len(others) > MAX_NAMED:
        parts.append(f"others are in {counted(len(others) - MAX_NAMED, 'other place')}")
    return "; ".join([first, *parts])


def stragglers(groups: Iterable[StackGroup]) -> tuple[int, ...]:
    """Return the ranks for which the others wait, in order; () where their stacks do not tell.

    Where at least half of the stacks are, ranks wait: for those that are elsewhere, have exited, or
    have no stack. If that is so of two places, those wait that are in torch.distributed.
    """
    groups = tuple(groups)
    by_place: dict[str, list[StackGroup]] = {}
    for group in groups:
        if group.found:
            by_place.setdefault(place_of(group.text) or group.text, []).append(group)
    sizes = {place: sum(len(each.ranks) for each in by_place[place]) for place in by_place}
    waiting = [place for place, size in sizes.items() if 2 * size >= sum(sizes.values())]
    if len(waiting) > 1:
        waiting = [place for place in waiting if _IN_A_COLLECTIVE in by_place[place][0].text]
    if len(waiting) != 1:
        return ()
    others = (each for each in groups if each not in by_place[waiting[0]])
    return tuple(sorted(rank for each in others for rank in each.ranks))


def exited_clause(groups: Iterable[StackGroup], ranks: Collection[int]) -> str:
    """Return ", which has exited with code 0" if that is so of all these ranks; else ""."""
    exited = {rank for group in groups if group.text == EXITED for rank in group.ranks}
    if not exited.issuperset(ranks):
        return ""
    return f", which {'has' if len(ranks) == 1 else 'have'} exited with code 0"


def described(
    groups: Iterable[StackGroup],
    missing: Iterable[MissingNode] = (),
    more: int = 0,
    named: Named = named_ranks,
) -> str:
    """Return the lines to print: who differs, each stack with its ranks, ranks without one and why.

    Args:
        groups: of all nodes that have answered.
        missing: nodes without an answer, to be named.
        more: how many there are beside these.
        named: names workers.

    """
    groups = tuple(groups)
    lines = [f"  {line}" for line in filter(None, [describe_differences(groups, named)])]
    for group in groups:
        ranks = named(group.ranks)
        if group.found:
            lines += [
                f"  {ranks}:",
                *(f"    {line}".rstrip() for line in group.text.split("\n")),
            ]
        else:
            lines.append(f"  {ranks}: {group.text}")
    lines += [f"  {line}" for line in missing_nodes(missing, more)]
    return "\n".join(lines) or "  no rank is running"


def runs_without_stack(group: StackGroup) -> bool:
    """Return whether ranks run and have printed no stack."""
    return not group.found and group.text != EXITED


def of_ranks(groups: Iterable[StackGroup], numbers: Sequence[int]) -> tuple[StackGroup, ...]:
    """Return stacks by the workers' ``numbers`` in the job, of a node's workers by local rank."""
    return tuple(
        replace(each, ranks=tuple(numbers[rank] for rank in each.ranks)) for each in groups
    )


def _are(ranks: list[int]) -> str:
    return "are" if len(ranks) > 1 else "is"


LEFT_OUT = "other stacks, left out here"


def grouped(groups: Iterable[StackGroup], most: int = MAX_GROUPS) -> tuple[StackGroup, ...]:
    """Merge equal stacks: the most common first, ranks without a stack last."""
    collected = GroupedStacks()
    collected.add(groups)
    return collected.most_common(most)


class GroupedStacks(Struct):
    """Stacks of many ranks as they come in: each is kept once, and rare ones not at all."""

    _ranks: dict[tuple[bool, str], list[int]] = field(default_factory=dict)

    def add(self, groups: Iterable[StackGroup], most: int = 0) -> None:
        """Add more; keep at least the ``most`` common ones, and not many more (0: all)."""
        for group in groups:
            self._ranks.setdefault((group.found, group.text[:LONGEST]), []).extend(group.ranks)
        if most and len(self._ranks) > 2 * most:
            kept, self._ranks = self.most_common(most), {}
            self.add(kept)

    def most_common(self, most: int) -> tuple[StackGroup, ...]:
        """Return at most ``most`` groups, the most common first, and one for all others."""
        ordered = sorted(
            self._ranks.items(),
            key=lambda item: (not item[0][0], -len(item[1]), min(item[1], default=0)),
        )
        merged = [
            StackGroup(tuple(sorted(who)), text, found) for (found, text), who in ordered if who
        ]
        if len(merged) <= most:
            return tuple(merged)
        rest = sorted(rank for group in merged[most:] for rank in group.ranks)
        return (*merged[:most], StackGroup(tuple(rest), LEFT_OUT, found=False))
