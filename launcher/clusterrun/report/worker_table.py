"""The table of workers with their GPUs, NUMA nodes and CPUs, which topo and dry runs print."""

from collections.abc import Iterable

from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.report.tables import aligned

_HEADS = (
    "rank",
    "local",
    "GPU",
    "address",
    "node",
    "CPUs",
    "OMP_NUM_THREADS",
    "memory",
    "node by",
)


def worker_table(plan: NodePlan) -> list[str]:
    """Return the table, aligned; the column for memory only if a worker has a policy."""
    rows = [_HEADS, *(_row(plan, worker) for worker in plan.workers)]
    if not any(worker.memory for worker in plan.workers):
        at = _HEADS.index("memory")
        rows = [(*row[:at], *row[at + 1 :]) for row in rows]
    return aligned(rows)


def local_rank_of(worker: WorkerPlan) -> str:
    """Return LOCAL_RANK; in a scheduler's tasks it is not the worker's index, which is 0."""
    return worker.env.get("LOCAL_RANK", str(worker.local_rank))


def remarks_in(plan: NodePlan) -> list[str]:
    """Return why LOCAL_RANK is not what one expects, then all remarks, each of them once."""
    reasons = dict.fromkeys(worker.local_rank_reason for worker in plan.workers)
    return [*filter(None, reasons), *plan.all_remarks()]


def _row(plan: NodePlan, worker: WorkerPlan) -> tuple[str, ...]:
    return (
        str(worker.rank),
        local_rank_of(worker),
        _listed(gpu.index for gpu in worker.gpus),
        _listed(gpu.bdf for gpu in worker.gpus),
        _listed(worker.numa_nodes),
        "not bound" if worker.cpus is None else str(worker.cpus),
        plan.env.get("OMP_NUM_THREADS", "inherited"),
        "-" if worker.memory is None else str(worker.memory),
        _listed(dict.fromkeys(gpu.node_source for gpu in worker.gpus)),
    )


def _listed(values: Iterable[object]) -> str:
    return ",".join(map(str, values)) or "-"
