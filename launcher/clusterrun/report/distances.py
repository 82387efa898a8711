"""The distances between NUMA nodes in few words."""

from collections.abc import Mapping, Sequence

from clusterrun.domain.cpuset import runs
from clusterrun.domain.machine import NumaNode

LARGEST_TABLE = 16
"""Nodes of a table that people can read; machines whose GPUs have memory nodes have more."""

Distances = Mapping[tuple[int, int], int]


def describe_distances(nodes: Sequence[NumaNode]) -> list[str]:
    """Return lines on the distances between nodes; [] if they are all equal, or unknown."""
    ids = [node.id for node in nodes]
    between = {
        (node.id, other): distance
        for node in nodes
        for other, distance in node.distances.items()
        if other != node.id and other in ids
    }
    if len(between) < len(ids) * (len(ids) - 1) or len(set(between.values())) < 2:
        return []
    if nested := _nested(ids, between):
        return [nested]
    if len(ids) > LARGEST_TABLE:
        return [
            f"{min(between.values())} to {max(between.values())}, without a pattern; see --json"
        ]
    return _table(nodes)


def _nested(ids: Sequence[int], between: Distances) -> str:
    """Return one line if the nodes form groups by distance, and these larger groups; else ""."""
    groups = [frozenset((number,)) for number in ids]
    levels: list[str] = []
    for distance in sorted(set(between.values())):
        near = [_near(group, groups, between, distance) for group in groups]
        if any(between[pair] != distance for pair in _new_pairs(groups, near)):
            return ""
        groups = sorted(set(near), key=min)
        if sum(map(len, groups)) > len(ids):
            return ""
        if len(groups) == 1 and levels:
            return "; ".join([*levels, f"{distance} otherwise"])
        together = (",".join(runs(group)) for group in groups if len(group) > 1)
        levels.append(f"{distance} within {' and within '.join(together)}")
    return ""


def _near(
    group: frozenset[int], groups: Sequence[frozenset[int]], between: Distances, distance: int
) -> frozenset[int]:
    return frozenset().union(
        group,
        *(
            other
            for other in groups
            if other != group and between[min(group), min(other)] <= distance
        ),
    )


def _new_pairs(
    before: Sequence[frozenset[int]], after: Sequence[frozenset[int]]
) -> list[tuple[int, int]]:
    return [
        (one, other)
        for group, wider in zip(before, after, strict=True)
        for one in group
        for other in wider - group
    ]


def _table(nodes: Sequence[NumaNode]) -> list[str]:
    rows = [["", *(str(node.id) for node in nodes)]]
    rows += [[str(one.id), *(str(one.distances[it.id]) for it in nodes)] for one in nodes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    ]
