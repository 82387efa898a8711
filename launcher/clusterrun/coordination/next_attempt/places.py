"""Who works in the next attempt and who waits: places, by connection. Pure.

A place is a node rank with its ranks. A world keeps its size, so that each lost node's place goes to
a member that waits and all others keep theirs; an elastic one has the nodes that there are.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from clusterrun.coordination.next_attempt.reform_rules import ReformRules
from clusterrun.domain.messages import Hello


def next_places(
    ranks: Mapping[int, int],
    lost: Collection[int],
    waiting: Sequence[int],
    hellos: Mapping[int, Hello],
    rules: ReformRules,
) -> dict[int, int] | None:
    """Return the node rank of each connection in the next attempt, in the order of ranks.

    Args:
        ranks: those of the last attempt, in order, from 0.
        lost: the connections among them that are lost.
        waiting: members that wait for a place, in the order of joining.
        hellos: of all of them.
        rules: the job's options.

    Returns:
        None if a place stays empty, or if too few nodes are left for an elastic world.

    """
    if not rules.is_elastic:
        return _same_places(ranks, lost, waiting, hellos)
    present = [*(each for each in ranks if each not in lost), *waiting]
    nodes = elastic_size(len(present), rules)
    if nodes == 0:
        return None
    return {connection: rank for rank, connection in enumerate(present[:nodes])}


def elastic_size(present: int, rules: ReformRules) -> int:
    """Return how many of the present nodes an elastic world has; 0: they are too few."""
    nodes = min(present, rules.most)
    nodes -= nodes % rules.multiple
    return nodes if nodes >= rules.fewest else 0


def _same_places(
    ranks: Mapping[int, int],
    lost: Collection[int],
    waiting: Sequence[int],
    hellos: Mapping[int, Hello],
) -> dict[int, int] | None:
    free, places = list(waiting), dict[int, int]()
    for connection, rank in ranks.items():
        if connection not in lost:
            places[connection] = rank
            continue
        successor = _successor(rank, hellos[connection], free, hellos)
        if successor is None:
            return None
        free.remove(successor)
        places[successor] = rank
    return places


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
