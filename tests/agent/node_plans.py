"""Plans of a node whose workers run nothing in particular."""

from msgspec.structs import replace

from tests.agent.door import (
    GlobalRank,
    LocalRank,
    NodePlan,
    WorkerPlan,
)
from tests.plans import world


def plan_of(size: int, *, attempt: int = 0, first_rank: int = 0) -> NodePlan:
    """Return the plan of ``size`` workers that run nothing in particular."""
    return NodePlan(
        world=replace(world(size, attempt=attempt), first_rank=GlobalRank(first_rank)),
        host="node7",
        command=("python", "-u", "train.py"),
        signal_group=False,
        env={},
        unset=(),
        workers=tuple(_worker(first_rank, local_rank) for local_rank in range(size)),
        remarks=(),
    )


def _worker(first_rank: int, local_rank: int) -> WorkerPlan:
    return WorkerPlan(
        rank=GlobalRank(first_rank + local_rank),
        local_rank=LocalRank(local_rank),
        gpus=(),
        numa_nodes=(),
        cpus=None,
        memory=None,
        env={},
        remark="",
    )
