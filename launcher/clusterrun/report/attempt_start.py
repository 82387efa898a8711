"""The lines that ``--verbose`` prints at the start of an attempt."""

from collections.abc import Iterator

from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.planning.preparation import Prepared

WORTH_NAMING = 0.005
"""Seconds: packages that were imported in less time are only counted."""


def describe_start(plan: NodePlan, *, moves_pages: bool = False) -> Iterator[str]:
    """Yield a line on the attempt, one on each worker, and one if the kernel moves their pages."""
    world = plan.world
    port = "a free port" if world.master_port is None else f"port {world.master_port}"
    yield (
        f"run {world.run_id}, attempt {world.attempt}: {len(plan.workers)} of {world.size} workers"
        f" on {plan.host}, node {world.node_rank} of {world.nodes};"
        f" master address {world.master_addr}, {port}"
    )
    if world.interface:
        yield f"gloo, NCCL and TensorPipe use the network interface {world.interface}"
    for worker in plan.workers:
        yield f"rank {worker.rank}: {_place(worker)}"
    if moves_pages and any(worker.cpus for worker in plan.workers):
        yield "kernel.numa_balancing is on: the kernel moves pages to the CPUs that use them"


def _place(worker: WorkerPlan) -> str:
    gpus = ", ".join(f"GPU {gpu.index} ({gpu.bdf})" for gpu in worker.gpus) or "no GPU"
    cpus = "all CPUs" if worker.cpus is None else f"CPUs {worker.cpus}"
    nodes = ",".join(map(str, worker.numa_nodes))
    at = f" of NUMA node {nodes}" if nodes else ""
    memory = "" if worker.memory is None else f", memory: {worker.memory}"
    return f"{gpus}, {cpus}{at}{memory}"


def describe_prepared(prepared: Prepared, slowed: int = 0) -> Iterator[str]:
    """Yield how workers start, what was preloaded, and what was not and why.

    ``slowed``: how many workers import by themselves what one import could have done for all.
    """
    if not prepared.in_place:
        cost = ""
        if slowed:
            cost = f"; all {slowed} import by themselves what could be imported once (docs/packages.md)"
        yield f"workers are spawned: {prepared.why}{cost}"
        return
    slow = [f"{name} ({taken:.2f} s)" for name, taken in prepared.loaded if taken >= WORTH_NAMING]
    others = len(prepared.loaded) - len(slow)
    loaded = [*slow, *([f"{others} that took no time"] if others else [])]
    yield f"workers are forked; preloaded: {', '.join(loaded) or 'nothing'}"
    for name, why in prepared.left_out:
        yield f"left to each worker: {name}, as {why}"
