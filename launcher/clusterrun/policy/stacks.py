"""Python stacks of many ranks: equal stacks are merged, and the ranks are compared."""

import re
from collections.abc import Callable, Collection, Iterable

from msgspec import Struct, field

from clusterrun.bounds import Count, Text, counted, named_ranks
from clusterrun.policy.queries import MissingNode, missing_nodes

Named = Callable[[Iterable[int]], str]
"""Names workers by their numbers in the job: "ranks 0-3"."""

MAX_GROUPS = 20
"""Different stacks that are printed; with ``--log-dir`` the log file of each rank has its stack."""

MAX_NAMED = 4
"""Positions in one line, in addition to the most common one."""

MAX_STACK_CHARACTERS = 8 << 10

_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_LIBRARY_FILE = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<")
_WRAPPERS = frozenset(
    {"wrapper", "inner", "decorate_context", "__call__", "_call_impl", "_wrapped_call_impl"}
)
"""Wrappers between the script and the function that it calls; they are not shown."""

_CURRENT = "Current thread"

_COLLECTIVES_FOLDER = "/torch/distributed/"

_TORCH_FILE = re.compile(r"-packages/torch/|/torch/(?:autograd|cuda|distributed)/")
"""A file of torch, installed or in a checkout."""

EXITED = "exited with 0"
"""The text of a rank that has succeeded while others run."""

OMITTED = "other stacks are omitted"


class StackGroup(Struct, frozen=True):
    """Ranks with the same stack, or without one for the same reason."""

    ranks: tuple[Count, ...]
    text: Text
    """The stack, innermost call first, or why there is none."""
    found: bool = True
    """``text`` is a stack."""


def _frames_of(stack: str) -> list[tuple[str, ...]]:
    """Return the file, line and function of each call of the main thread, innermost first."""
    lines = stack.split("\n")
    first = next((at for at, line in enumerate(lines) if line.startswith(_CURRENT)), 0)
    return [found.groups() for line in lines[first:] if (found := _FRAME.match(line))]


def waits_in_torch(group: StackGroup) -> bool:
    """Return whether the innermost Python call of the main thread is in torch."""
    frames = _frames_of(group.text) if group.found else []
    return bool(frames) and _TORCH_FILE.search(frames[0][0]) is not None


def position_of(stack: str) -> str:
    """Return the innermost line of the script and what it calls: "all_reduce at train.py:88"."""
    frames = _frames_of(stack)
    if not frames:
        return ""
    of_script = (at for at, (file, *_) in enumerate(frames) if not _LIBRARY_FILE.search(file))
    at = next(of_script, 0)
    called = [name for _, _, name in frames[:at] if name not in _WRAPPERS]
    file, line, own = frames[at]
    return f"{called[-1] if called else own} at {file.rpartition('/')[2]}:{line}"


def describe_differences(groups: Iterable[StackGroup], named: Named = named_ranks) -> str:
    """Return one line with the ranks at each position; "" if all have the same.

    "62 ranks are in all_reduce at train.py:88; ranks 3, 17 are in __next__ at data.py:41"
    """
    by_position: dict[str, list[int]] = {}
    for group in groups:
        position = position_of(group.text) if group.found else ""
        if position:
            by_position.setdefault(position, []).extend(group.ranks)
    if len(by_position) < 2:
        return ""
    (position, most), *others = sorted(
        by_position.items(), key=lambda item: (-len(item[1]), item[1])
    )
    clauses = [f"{counted(len(most), 'rank')} {_are(most)} in {position}"]
    clauses += [f"{named(ranks)} {_are(ranks)} in {where}" for where, ranks in others[:MAX_NAMED]]
    if len(others) > MAX_NAMED:
        clauses.append(f"others are in {counted(len(others) - MAX_NAMED, 'other place')}")
    return "; ".join(clauses)


def stragglers(groups: Iterable[StackGroup]) -> tuple[int, ...]:
    """Return the ranks that the others wait for, in order; () if the stacks do not show it.

    The ranks at the position of at least half of the stacks wait. The others, also those that have
    exited or have no stack, are the stragglers. If two positions have half of the stacks each, the
    ranks in torch.distributed wait.
    """
    groups = tuple(groups)
    by_position: dict[str, list[StackGroup]] = {}
    for group in groups:
        if group.found:
            by_position.setdefault(position_of(group.text) or group.text, []).append(group)
    sizes = {
        position: sum(len(each.ranks) for each in found) for position, found in by_position.items()
    }
    waiting = [position for position, size in sizes.items() if 2 * size >= sum(sizes.values())]
    if len(waiting) > 1:
        waiting = [it for it in waiting if _COLLECTIVES_FOLDER in by_position[it][0].text]
    if len(waiting) != 1:
        return ()
    others = (each for each in groups if each not in by_position[waiting[0]])
    return tuple(sorted(rank for each in others for rank in each.ranks))


def exited_clause(groups: Iterable[StackGroup], ranks: Collection[int]) -> str:
    """Return ", which has exited with code 0" if all these ranks have, else ""."""
    exited = {rank for group in groups if group.text == EXITED for rank in group.ranks}
    if not exited.issuperset(ranks):
        return ""
    return f", which {'has' if len(ranks) == 1 else 'have'} exited with code 0"


def stacks_text(
    groups: Iterable[StackGroup],
    missing: Iterable[MissingNode] = (),
    more: int = 0,
    named: Named = named_ranks,
) -> str:
    """Return a comparison of the ranks, then each stack with its ranks, then the missing stacks.

    Args:
        groups: the stacks from all nodes that have answered.
        missing: nodes without an answer.
        more: the number of other nodes without an answer.
        named: names workers.

    """
    groups = tuple(groups)
    differences = describe_differences(groups, named)
    lines = [f"  {differences}"] if differences else []
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
    """Return whether the ranks of a group run, but have no stack."""
    return not group.found and group.text != EXITED


def _are(ranks: list[int]) -> str:
    return "are" if len(ranks) > 1 else "is"


def group_stacks(groups: Iterable[StackGroup], most: int = MAX_GROUPS) -> tuple[StackGroup, ...]:
    """Merge equal stacks; return the most common first, and ranks without a stack last."""
    collected = GroupedStacks()
    collected.add(groups)
    return collected.most_common(most)


class GroupedStacks(Struct):
    """The stacks of many ranks, in bounded memory: each is kept once, and rare ones are dropped."""

    _ranks: dict[tuple[bool, str], list[int]] = field(default_factory=dict)

    def add(self, groups: Iterable[StackGroup], most: int | None = None) -> None:
        """Add stacks; keep between ``most`` and twice as many, or all by default."""
        for group in groups:
            key = group.found, group.text[:MAX_STACK_CHARACTERS]
            self._ranks.setdefault(key, []).extend(group.ranks)
        if most is not None and len(self._ranks) > 2 * most:
            kept, self._ranks = self.most_common(most), {}
            self.add(kept)

    def most_common(self, most: int) -> tuple[StackGroup, ...]:
        """Return at most ``most`` groups, the most common first, and one group for all others."""
        ordered = sorted(
            self._ranks.items(),
            key=lambda item: (not item[0][0], -len(item[1]), min(item[1], default=0)),
        )
        merged = [
            StackGroup(tuple(sorted(ranks)), text, found)
            for (found, text), ranks in ordered
            if ranks
        ]
        if len(merged) <= most:
            return tuple(merged)
        rest = sorted(rank for group in merged[most:] for rank in group.ranks)
        return (*merged[:most], StackGroup(tuple(rest), OMITTED, found=False))
