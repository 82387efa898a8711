"""Who gets which ranks: node ranks as said or by order of joining, worker ranks by prefix sums. Pure."""

from collections.abc import Mapping
from itertools import accumulate

from launcher.domain.ranks import GlobalRank, NodeRank
from launcher.domain.world import World
from launcher.rendezvous.coordinator_state import Terms
from launcher.rendezvous.wire import Hello


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
    sizes = [members[connection].workers for connection in ranks]
    *firsts, size = accumulate(sizes, initial=0)
    return {
        connection: World(
            run_id=terms.run_id,
            attempt=attempt,
            node_rank=NodeRank(rank),
            nodes=len(ranks),
            first_rank=GlobalRank(first),
            local_size=local_size,
            size=size,
            master_addr=terms.master_addr,
            master_port=port,
        )
        for (connection, rank), first, local_size in zip(ranks.items(), firsts, sizes, strict=True)
    }
