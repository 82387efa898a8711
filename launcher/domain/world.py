"""The world of one attempt: which ranks this node has and where all meet."""

from msgspec import Struct

from launcher.domain.ranks import GlobalRank, NodeRank


class World(Struct, frozen=True):
    """What one node knows of the whole job for one attempt."""

    run_id: str
    """Node 0's name for the job, the same on all nodes: TORCHELASTIC_RUN_ID."""
    attempt: int
    """The n-th start of the whole group, from 0: TORCHELASTIC_RESTART_COUNT."""
    node_rank: NodeRank
    nodes: int
    first_rank: GlobalRank
    """Global rank of this node's local rank 0: the sum of the workers of all nodes before."""
    local_size: int
    size: int
    first_role_rank: GlobalRank
    """As ``first_rank``, counted among the nodes of this node's role alone."""
    role_size: int
    """Workers of this role on all nodes."""
    master_addr: str
    master_port: int | None
    """None only in a dry run, where a free port would be chosen at the start."""
    interface: str = ""
    """The network interface to tell libraries of; "" where they find it themselves."""
