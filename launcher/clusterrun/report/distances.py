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
    levels: list[str] = []
    for distance in sorted(set(between.values())):
        near = {
            one: frozenset(it for it in ids if it == one or between[one, it] <= distance)
            for one in ids
        }
        if any(near[other] != group for group in near.values() for other in group):
            return ""
        groups = sorted(set(near.values()), key=min)
        if len(groups) == 1:
            return "; ".join([*levels, f"{distance} otherwise"])
        together = (",".join(runs(group)) for group in groups if len(group) > 1)
        levels.append(f"{distance} within {' and within '.join(together)}")
    return ""


def _table(nodes: Sequence[NumaNode]) -> list[str]:
    rows = [["", *(str(node.id) for node in nodes)]]
    rows += [[str(one.id), *(str(one.distances[it.id]) for it in nodes)] for one in nodes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    ]
