"""How many workers this node gets."""

from typing import assert_never

from clusterrun.domain.machine import Gpu, Machine
from clusterrun.errors import UsageError
from clusterrun.job.job import Job
from clusterrun.job.values import WorkerCount
from clusterrun.planning.job_machine import why_none

ONE_SLICE = "CUDA shows a process one MIG slice, and no other GPU"

MAX_WORKERS = 10_000
"""More than any machine has GPUs or CPUs for: a larger number is a typing error."""


def local_size(job: Job, machine: Machine) -> int:
    """Return the number of workers on this node; ``machine`` is the node as the job may use it.

    Raises:
        UsageError: the number depends on GPUs and none is visible; there are too few GPUs for the
            workers, or too many workers; or the job allows one worker only (``--exec``, a script on
            standard input, unclear ranks), and there would be several.

    """
    workers = _wanted(job, machine)
    if workers > MAX_WORKERS:
        raise UsageError(
            f"nproc_per_node is {job.fact('nproc_per_node')}: a node starts {MAX_WORKERS} workers at most",
            "give as many as there are GPUs, or CPUs",
        )
    _expect_gpus(job, machine, workers)
    if job.unclear and workers != 1:
        raise UsageError(
            f"{job.origin('node_rank')} is {job.workers.node_rank} and {job.origin('nnodes')}"
            f" {job.nnodes}, which may count nodes or processes, and there would be {workers}"
            f" workers here (nproc_per_node: {job.origin('nproc_per_node')})",
            job.unclear,
        )
    if job.program.is_standard_input and workers != 1:
        raise UsageError(
            "the script is read from standard input (-), which only one worker can do, and there"
            f" would be {workers} (nproc_per_node: {job.origin('nproc_per_node')})",
            "save it to a file and give that, or type --nproc-per-node 1",
        )
    if job.starting.exec and workers != 1:
        raise UsageError(
            f"{job.origin('exec')}: one process can't become {workers} workers"
            f" (nproc_per_node: {job.origin('nproc_per_node')})",
            "give --nproc-per-node 1, or have one task for each worker:\n"
            f"  srun --ntasks-per-node={workers} clusterrun {job.origin('exec')} ...",
        )
    return workers


def count_shown(job: Job, machine: Machine) -> int:
    """Return how many of the visible GPUs a process can use.

    A process to which CUDA shows a MIG slice sees no other slice, and no other GPU (docs/binding.md,
    decision 3). If each worker sees only its own, all of them can be used.
    """
    visible = machine.visible
    if job.placing.virtual_local_rank or not split_gpus(machine):
        return len(visible)
    return 1


def split_gpus(machine: Machine) -> tuple[Gpu, ...]:
    """Return those of the visible GPUs that are MIG slices, or are split into some."""
    parents = {gpu.parent for gpu in machine.gpus} - {""}
    return tuple(gpu for gpu in machine.visible if gpu.parent or gpu.uuid in parents)


def _wanted(job: Job, machine: Machine) -> int:
    wanted = job.workers.nproc_per_node
    visible = count_shown(job, machine)
    if visible:
        # At least one: ``_expect_gpus`` then refuses it.
        visible = max(1, visible // (job.placing.gpus_per_worker or 1))
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


def _expect_gpus(job: Job, machine: Machine, workers: int) -> None:
    each, visible = job.fact("gpus_per_worker"), len(machine.visible)
    if each.value is None:
        _expect_gpu_each(job, machine, workers)
    if not each.value:
        return
    if each.value > 1 and split_gpus(machine):
        raise UsageError(
            f"gpus_per_worker is {each}, but {ONE_SLICE}",
            "give each worker one: leave it out, and give --virtual-local-rank",
        )
    if workers * each.value <= visible:
        return
    needed = "1 worker needs" if workers == 1 else f"{workers} workers need"
    there = "1 is" if visible == 1 else f"{visible or 'none'} {'are' if visible else 'is'}"
    raise UsageError(
        f"gpus_per_worker is {each}: {needed} {workers * each.value} GPUs, but {there} visible",
        "give fewer workers (--nproc-per-node), or fewer GPUs to each (--gpus-per-worker)",
    )


def _expect_gpu_each(job: Job, machine: Machine, workers: int) -> None:
    """Refuse more workers than GPUs if the number of workers was set (docs/binding.md, decision 3)."""
    shown = count_shown(job, machine)
    if not shown or workers <= shown or not isinstance(job.workers.nproc_per_node, int):
        return
    asked = f"nproc_per_node is {job.fact('nproc_per_node')}"
    shared = "or, if workers share GPUs or use none, add --gpus-per-worker 0"
    if shown < len(machine.visible):
        raise UsageError(
            f"{asked}, but {ONE_SLICE}",
            f"give each worker its own: add --virtual-local-rank\n{shared}",
        )
    are = "GPU is" if shown == 1 else "GPUs are"
    raise UsageError(
        f"{asked}, but {shown} {are} visible ({machine.visible_origin})",
        f"give --nproc-per-node {shown}\n{shared}",
    )


def _no_gpu(job: Job, machine: Machine) -> int:
    raise UsageError(
        f"nproc_per_node is gpu ({job.origin('nproc_per_node')}), but no GPU is visible"
        f" ({why_none(machine)})",
        "give a number, as in --nproc-per-node 2, or --nproc-per-node cpu",
    )
