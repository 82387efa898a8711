"""Python stacks of many ranks, equal ones grouped."""

from collections.abc import Iterable

from msgspec import Struct, field

from clusterrun.domain.bounds import Count, Text

MOST_GROUPS = 20
"""Different stacks that are shown; each rank's own is in its log file, if there is one."""

LONGEST = 8 << 10
"""Characters of one stack."""


class StackGroup(Struct, frozen=True):
    """Ranks with the same stack, or without one for the same reason."""

    ranks: tuple[Count, ...]
    text: Text
    """The stack, or why there is none."""
    found: bool = True


LEFT_OUT = "other stacks, left out here"


def grouped(groups: Iterable[StackGroup], most: int = MOST_GROUPS) -> tuple[StackGroup, ...]:
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
