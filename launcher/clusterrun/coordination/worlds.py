"""Which ranks each node gets, and whether a member names only those."""

from collections import Counter
from collections.abc import Iterable, Mapping

from clusterrun.coordination.terms import Terms
from clusterrun.domain.messages import (
    AttemptMessage,
    Done,
    FirstFailure,
    Hello,
    RankLeft,
    Saves,
    Stacks,
)
from clusterrun.domain.ranks import GlobalRank, NodeRank
from clusterrun.domain.world import World


def node_ranks(
    members: Mapping[int, Hello], by_rank: Mapping[int, int], nodes: int
) -> dict[int, int]:
    """Return the node rank of each connection, in the order of ranks, without a gap.

    Args:
        members: in the order of joining.
        by_rank: the connections of the members that were started with a node rank.
        nodes: how many were expected; if one has not joined, those after it move up.

    """
    free = (rank for rank in range(nodes) if rank not in by_rank)
    given = {connection: rank for rank, connection in by_rank.items()}
    ranks = {each: given[each] if each in given else next(free) for each in members}
    return {each: rank for rank, each in enumerate(sorted(ranks, key=ranks.__getitem__))}


def worlds(
    terms: Terms, members: Mapping[int, Hello], ranks: Mapping[int, int], attempt: int, port: int
) -> dict[int, World]:
    """Return each connection's part in an attempt; ``ranks`` are in order, from 0."""
    nodes = [members[connection] for connection in ranks]
    # Where nodes keep logs on their own disks, one may have fewer.
    kept = max(node.kept_attempts for node in nodes)
    size, of_role = sum(node.workers for node in nodes), Counter[str]()
    for node in nodes:
        of_role[node.role] += node.workers
    found, first, first_of_role = {}, 0, Counter[str]()
    for connection, rank in ranks.items():
        node = members[connection]
        found[connection] = World(
            run_id=terms.run_id,
            attempt=attempt,
            node_rank=NodeRank(rank),
            nodes=len(ranks),
            first_rank=GlobalRank(first),
            local_size=node.workers,
            size=size,
            first_role_rank=GlobalRank(first_of_role[node.role]),
            role_size=of_role[node.role],
            master_addr=terms.host.value,
            master_port=port,
            kept_attempts=kept,
        )
        first += node.workers
        first_of_role[node.role] += node.workers
    return found


def names_own_workers_only(message: AttemptMessage, own: range) -> bool:
    """Return whether each rank in a member's message is one of its own."""
    return all(rank in own for rank in _ranks(message))


def _ranks(
    message: AttemptMessage,
) -> Iterable[int]:
    match message:
        case FirstFailure(_, fate):
            return (fate.rank,)
        case Done(_, fates):
            return (each.fate.rank for each in fates)
        case Saves(_, progress):
            return (*progress.unsaved, *progress.silent)
        case RankLeft(_, rank):
            return (rank,)
        case Stacks(_, _, groups):
            return (rank for group in groups for rank in group.ranks)
        case _:
            return ()
