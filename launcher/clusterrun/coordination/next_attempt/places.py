"""Who works in the next attempt and who waits: places, by connection. Pure.

A place is a node rank with its ranks. A world keeps its size, so that each lost node's place goes to
a member that waits and all others keep theirs; an elastic one has the nodes that there are.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from clusterrun.coordination.next_attempt.reform_rules import ReformRules
from clusterrun.domain.messages import Hello


class Candidates(NamedTuple):
    """Who may work in the next attempt, by connection."""

    ranks: Mapping[int, int]
    """Node ranks of the last attempt, in order, from 0."""
    lost: Collection[int]
    """Those among them that are lost."""
    waiting: Sequence[int]
    """Members that wait for a place, in the order of joining."""
    bad: Collection[int] = ()
    """Those that are left out if others can take their places."""


def next_places(
    candidates: Candidates, hellos: Mapping[int, Hello], rules: ReformRules
) -> dict[int, int] | None:
    """Return the node rank of each connection in the next attempt, in the order of ranks.

    Args:
        candidates: of the last attempt, and those that wait.
        hellos: of all of them.
        rules: the job's options.

    Returns:
        None if a place stays empty, or if too few nodes are left for an elastic world.

    """
    ranks, lost, waiting, bad = candidates
    if not rules.is_elastic:
        return _same_places(candidates, hellos)
    present = [*(each for each in ranks if each not in lost), *waiting]
    good = [each for each in present if each not in bad]
    present = good if elastic_size(len(good), rules) else present
    nodes = elastic_size(len(present), rules)
    if nodes == 0:
        return None
    return {connection: rank for rank, connection in enumerate(present[:nodes])}


def elastic_size(present: int, rules: ReformRules) -> int:
    """Return how many of the present nodes an elastic world has; 0: they are too few."""
    nodes = min(present, rules.most)
    nodes -= nodes % rules.multiple
    return nodes if nodes >= rules.fewest else 0


def _same_places(candidates: Candidates, hellos: Mapping[int, Hello]) -> dict[int, int] | None:
    ranks, lost, waiting, bad = candidates
    holders = {rank: connection for connection, rank in ranks.items()}
    good = [each for each in waiting if each not in bad]
    others = [each for each in waiting if each in bad]
    given_up = (each for each in ranks if each in lost)
    left_out = (each for each in ranks if each in bad and each not in lost)
    for connection in (*given_up, *left_out):
        rank, hello = ranks[connection], hellos[connection]
        successor = _successor(rank, hello, good, hellos)
        if successor is None and connection in lost:
            # A bad node is better than none.
            successor = _successor(rank, hello, others, hellos)
            if successor is None:
                return None
        if successor is not None:
            (others if successor in bad else good).remove(successor)
            holders[rank] = successor
    return {connection: rank for rank, connection in holders.items()}


def _successor(
    rank: int, lost: Hello, free: Iterable[int], hellos: Mapping[int, Hello]
) -> int | None:
    """Return who takes the place of a lost node: itself if it is back, else the first that fits."""
    # Another number of workers, or another role, would move the ranks of other nodes.
    fitting = [
        each
        for each in free
        if (hellos[each].workers, hellos[each].role) == (lost.workers, lost.role)
    ]
    same_host = (each for each in fitting if hellos[each].host == lost.host)
    same_rank = (each for each in fitting if hellos[each].rank == rank)
    return next(same_host, next(same_rank, next(iter(fitting), None)))


def may_go_on(roster: Collection[int], missing: Collection[int], ended: Collection[int]) -> bool:
    """Return whether no other part of the job can go on, too.

    Args:
        roster: all agents at the beginning of the last attempt, those that waited included.
        missing: those of them that are lost.
        ended: those of the missing whose agent is known to have ended: it took its leave, or the
            kernel of its host, which lives, has closed the connection.

    """
    return 2 * (len(roster) - len(missing)) > len(roster) or set(missing) <= set(ended)
