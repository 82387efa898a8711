"""What ``--verbose`` says when an attempt starts."""

from collections.abc import Iterator

from launcher.domain.plan import NodePlan, WorkerPlan


def describe_start(plan: NodePlan) -> Iterator[str]:
    """Yield a line on the attempt, and one on each worker."""
    world = plan.world
    port = "a port that is chosen" if world.master_port is None else world.master_port
    yield (
        f"run {world.run_id}, attempt {world.attempt}: {len(plan.workers)} of {world.size} workers"
        f" on {plan.host}, node {world.node_rank} of {world.nodes};"
        f" they meet at {world.master_addr}, port {port}"
    )
    if world.interface:
        yield f"gloo, NCCL and TensorPipe are told of interface {world.interface}"
    for worker in plan.workers:
        yield f"rank {worker.rank}: {_place(worker)}"


def _place(worker: WorkerPlan) -> str:
    gpu = "no GPU" if worker.gpu is None else f"GPU {worker.gpu.index} ({worker.gpu.bdf})"
    cpus = "all CPUs" if worker.cpus is None else f"CPUs {worker.cpus}"
    node = "" if worker.numa_node is None else f" of NUMA node {worker.numa_node}"
    return f"{gpu}, {cpus}{node}"
