"""The world of one attempt: the ranks of this node, and the address where all workers meet."""

from typing import Annotated

from msgspec import Meta, Struct

from clusterrun.domain.bounds import COUNTED, Count, Line, Name, Port, RunId, Size
from clusterrun.domain.ranks import GlobalRank, NodeRank


class World(Struct, frozen=True):
    """One node's view of the whole job in one attempt."""

    run_id: Annotated[RunId, Meta(min_length=1)]
    """Node 0's name for the job, the same on all nodes: TORCHELASTIC_RUN_ID."""
    attempt: Count
    """Number of the attempt, from 0: TORCHELASTIC_RESTART_COUNT."""
    node_rank: Annotated[NodeRank, COUNTED]
    nodes: Size
    first_rank: Annotated[GlobalRank, COUNTED]
    """Global rank of this node's local rank 0: the sum of the workers of all nodes before."""
    local_size: Size
    size: Size
    first_role_rank: Annotated[GlobalRank, COUNTED]
    """As ``first_rank``, counted among the nodes of this node's role alone."""
    role_size: Size
    """Workers of this role on all nodes."""
    master_addr: Line
    master_port: Port | None
    """None only in a dry run, if a free port would be chosen at the start."""
    kept_attempts: Count = 0
    """Attempts of earlier jobs of this run, before which a suspension came: log folders go on."""
    interface: Name = ""
    """The network interface that libraries are to use; "" if they find it themselves."""
