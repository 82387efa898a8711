"""Who gets which ranks: node ranks as said or by order of joining, worker ranks by prefix sums. Pure."""

from collections import Counter
from collections.abc import Mapping

from clusterrun.coordination.messages import Hello
from clusterrun.coordination.state import Terms
from clusterrun.domain.ranks import GlobalRank, NodeRank
from clusterrun.domain.world import World


def node_ranks(
    members: Mapping[int, Hello], claims: Mapping[int, int], nodes: int
) -> dict[int, int]:
    """Return the node rank of each connection, in the order of ranks, without a gap.

    Args:
        members: in the order in which they came.
        claims: the connection of each rank that was asked for.
        nodes: how many might have come; where they have not, those behind them move up.

    """
    free = (rank for rank in range(nodes) if rank not in claims)
    claimed = {connection: rank for rank, connection in claims.items()}
    ranks = {each: claimed[each] if each in claimed else next(free) for each in members}
    return {each: rank for rank, each in enumerate(sorted(ranks, key=ranks.__getitem__))}


def worlds(
    terms: Terms, members: Mapping[int, Hello], ranks: Mapping[int, int], attempt: int, port: int
) -> dict[int, World]:
    """Return what each connection is told of an attempt; ``ranks`` are in order, from 0."""
    nodes = [members[connection] for connection in ranks]
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
            master_addr=terms.master_addr,
            master_port=port,
        )
        first += node.workers
        first_of_role[node.role] += node.workers
    return found
