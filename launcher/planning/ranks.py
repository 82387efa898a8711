"""How many workers this node gets."""

from typing import assert_never

from launcher.domain.job import JobSpec, WorkerCount
from launcher.domain.machine import Machine
from launcher.errors import UsageError
from launcher.planning.assigned_node import assigned_part


def local_size(job: JobSpec, machine: Machine) -> int:
    """Return the number of workers on this node.

    Raises:
        UsageError: workers are wanted per GPU, and none is visible; or this process is to become
            its one worker, and would have several; or its ranks are clear for one worker only.

    """
    workers = _wanted(job, assigned_part(job, machine))
    if job.unclear.value and workers != 1:
        raise UsageError(
            f"{job.node_rank.origin} is {job.node_rank.value} and {job.nnodes.origin}"
            f" {job.nnodes.value}, which may count nodes or processes, and there would be {workers}"
            f" workers here (nproc_per_node: {job.nproc_per_node.origin})",
            job.unclear.value,
        )
    if job.exec.value and workers != 1:
        raise UsageError(
            f"{job.exec.origin}: one process can't become {workers} workers"
            f" (nproc_per_node: {job.nproc_per_node.origin})",
            "give --nproc-per-node 1, or have one task for each worker:\n"
            f"  srun --ntasks-per-node={workers} clusterrun {job.exec.origin} ...",
        )
    return workers


def _wanted(job: JobSpec, machine: Machine) -> int:
    wanted = job.nproc_per_node.value
    visible = len(machine.visible)
    match wanted:
        case int():
            return wanted
        case WorkerCount.PER_GPU:
            return visible or 1
        case WorkerCount.AUTO:
            return visible or len(machine.allowed)
        case WorkerCount.GPU:
            return visible or _no_gpu(job, machine)
        case WorkerCount.CPU:
            return len(machine.allowed)
        case _:
            assert_never(wanted)


def _no_gpu(job: JobSpec, machine: Machine) -> int:
    why = machine.visible_remark or machine.visible_origin or "neither a driver nor /sys shows one"
    raise UsageError(
        f"nproc_per_node is gpu ({job.nproc_per_node.origin}), but no GPU is visible ({why})",
        "give a number, as in --nproc-per-node 2, or --nproc-per-node cpu",
    )
