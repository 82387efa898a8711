"""Assigns the GPUs of a node to workers: this agent's, other tasks' and other jobs'.

This is done once, before CPUs are chosen (docs/binding.md, decision 3 and S5).
"""

from collections.abc import Sequence
from typing import assert_never

from clusterrun.bounds import MAX_WORKERS, counted
from clusterrun.cpuset import CpuSet
from clusterrun.errors import UsageError
from clusterrun.job.job import Job, TaskLayout
from clusterrun.job.values import WorkerCount
from clusterrun.machine.machine import Gpu, Machine, PciGpu
from clusterrun.planning.placement import core_counter, gpus_of_jobs, unions
from clusterrun.planning.plan import WorkerSlot

ONE_SLICE = "CUDA shows each process only one MIG slice, and no other GPU"

MAX_SLICES = 7
"""MIG slices of one GPU (NVIDIA, "MIG User Guide")."""


def worker_slots(job: Job, machine: Machine) -> tuple[WorkerSlot, ...]:
    """Return the workers of this node: the main program's by local rank, the services', then others'.

    Args:
        job: the job.
        machine: this node as the job may use it, see ``machine_for``.

    Raises:
        UsageError: there can't be as many workers on this node, or there are too few GPUs for them.

    """
    if not job.services:
        return worker_slots_for(job, machine, local_size(job, machine))
    # Few jobs have services.
    from clusterrun.planning.services import main_workers, service_slots

    services = service_slots(job, machine)
    return worker_slots_for(job, machine, main_workers(job, machine, services), services)


def worker_slots_for(
    job: Job, machine: Machine, workers: int, services: Sequence[WorkerSlot] = ()
) -> tuple[WorkerSlot, ...]:
    """Return the workers of this node, given the number of the main program's and the services' workers."""
    if job.tasks is None:
        taken = {gpu for slot in services for gpu in slot.gpus or ()}
        left = tuple(gpu for gpu in machine.visible if gpu not in taken)
        own = [*map(WorkerSlot, _blocks(job, machine, left, workers)), *services]
    else:
        own = _of_tasks(job, machine, job.tasks)
        if has_own_cpus(job.tasks, machine):
            # No other worker uses these CPUs, even if it shares the GPUs.
            return tuple(WorkerSlot(slot.gpus or ()) for slot in own if slot.is_ours)
    return (*own, *_of_other_jobs(machine, own))


def local_size(job: Job, machine: Machine, taken: int = 0) -> int:
    """Return the number of workers of the main program on this node.

    ``machine`` is the node as the job may use it, and ``taken`` is the number of GPUs of services.

    Raises:
        UsageError: the number depends on GPUs and none is visible; there are too few GPUs, or too many
            workers; or there would be several workers although the job allows only one (``--exec``, a
            script on standard input, unclear ranks).

    """
    visible = len(machine.visible) - taken
    shown = 1 if visible and only_slice(job, machine) else visible
    workers = _requested_workers(job, machine, shown)
    if workers > MAX_WORKERS:
        raise UsageError(
            f"nproc_per_node is {job.setting('nproc_per_node')}: a node starts {MAX_WORKERS} workers"
            " at most",
            "give as many as there are GPUs, or CPUs",
        )
    _expect_gpus(job, machine, workers, visible, shown)
    if job.unclear and workers != 1:
        raise UsageError(
            f"{job.origin('node_rank')} is {job.workers.node_rank} and {job.origin('nnodes')}"
            f" {job.nnodes}, which may count nodes or processes, but this node would start"
            f" {workers} workers (nproc_per_node: {job.origin('nproc_per_node')})",
            job.unclear,
        )
    if job.script.is_standard_input and workers != 1:
        raise UsageError(
            f"the script is read from standard input ({job.script.name}), which only one worker can"
            f" read, but this node would start {workers} (nproc_per_node:"
            f" {job.origin('nproc_per_node')})",
            "save it to a file and give that, or use --nproc-per-node 1",
        )
    if job.starting.exec and workers != 1:
        raise UsageError(
            f"{job.origin('exec')}: one process can't become {workers} workers"
            f" (nproc_per_node: {job.origin('nproc_per_node')})",
            "give --nproc-per-node 1, or have one task for each worker:\n"
            f"  srun --ntasks-per-node={workers} clusterrun {job.origin('exec')} ...",
        )
    return workers


def why_no_gpu(machine: Machine) -> str:
    return (
        machine.visible_warning
        or machine.visible_origin
        or machine.accelerators
        or "no driver and no file in /sys shows one"
    )


def first_slice(machine: Machine) -> Gpu | None:
    """Return the first visible GPU that is a MIG slice or is split into slices; None if there is none."""
    parents = {gpu.parent for gpu in machine.gpus} - {""}
    return next((gpu for gpu in machine.visible if gpu.parent or gpu.uuid in parents), None)


def only_slice(job: Job, machine: Machine) -> Gpu | None:
    """Return the only slice that CUDA shows to all workers; None if they see all GPUs.

    With ``--virtual-local-rank`` each worker sees its own GPU instead (docs/binding.md, decision 3).
    """
    return None if job.placing.virtual_local_rank else first_slice(machine)


def _requested_workers(job: Job, machine: Machine, shown: int) -> int:
    """Return the number of workers by --nproc-per-node; ``shown`` is the number of GPUs a process can use."""
    wanted = job.workers.nproc_per_node
    # At least 1; if there are too few GPUs for one worker, ``_expect_gpus`` raises an error.
    for_gpus = shown and max(1, shown // (job.placing.gpus_per_worker or 1))
    match wanted:
        case int():
            return wanted
        case WorkerCount.PER_GPU:
            return for_gpus or 1
        case WorkerCount.AUTO:
            return for_gpus or _usable_cpus(machine)
        case WorkerCount.GPU:
            if for_gpus:
                return for_gpus
            raise UsageError(
                f"nproc_per_node is gpu ({job.origin('nproc_per_node')}), but no GPU is visible"
                f" ({why_no_gpu(machine)})",
                "give a number, as in --nproc-per-node 2, or --nproc-per-node cpu",
            )
        case WorkerCount.CPU:
            return _usable_cpus(machine)
        case _:
            assert_never(wanted)


def _usable_cpus(machine: Machine) -> int:
    """Return how many CPUs a job can keep busy: those allowed, or the cgroup's quota if that is less."""
    count, quota = len(machine.allowed), machine.cpu_quota
    return count if quota is None else max(1, min(count, int(quota)))


def _expect_gpus(job: Job, machine: Machine, workers: int, visible: int, shown: int) -> None:
    each = job.setting("gpus_per_worker")
    if each.value is None or (each.value == 1 and shown < visible):
        _expect_gpu_each(job, machine, workers, visible, shown)
    if not each.value:
        return
    if each.value > 1 and first_slice(machine):
        raise UsageError(
            f"gpus_per_worker is {each}, but {ONE_SLICE}",
            "give each worker one: remove it, and add --virtual-local-rank",
        )
    if workers * each.value <= visible:
        return
    needed = "1 worker needs" if workers == 1 else f"{workers} workers need"
    there = "1 is" if visible == 1 else f"{visible or 'none'} {'are' if visible else 'is'}"
    raise UsageError(
        f"gpus_per_worker is {each}: {needed} {counted(workers * each.value, 'GPU')}, but {there} visible",
        "give fewer workers (--nproc-per-node), or fewer GPUs to each (--gpus-per-worker)",
    )


def _expect_gpu_each(job: Job, machine: Machine, workers: int, visible: int, shown: int) -> None:
    """Reject more workers than GPUs if the number of workers was set (docs/binding.md, decision 3)."""
    if not shown or workers <= shown or not isinstance(job.workers.nproc_per_node, int):
        return
    asked = f"nproc_per_node is {job.setting('nproc_per_node')}"
    shared = "or, if workers share GPUs or use none, add --gpus-per-worker 0"
    if shown < visible:
        raise UsageError(
            f"{asked}, but {ONE_SLICE}",
            f"give each worker its own: add --virtual-local-rank\n{shared}",
        )
    are = "GPU is" if shown == 1 else "GPUs are"
    raise UsageError(
        f"{asked}, but {shown} {are} visible ({machine.visible_origin})",
        f"give --nproc-per-node {shown}\n{shared}",
    )


def _blocks(
    job: Job, machine: Machine, gpus: tuple[Gpu, ...], workers: int
) -> list[tuple[Gpu, ...] | None]:
    """Divide ``gpus`` among workers; None for workers of which only the script knows the GPU."""
    each = job.placing.gpus_per_worker or 1
    if not gpus:
        return [()] * workers
    if workers * each > len(gpus):
        return [None] * workers
    if only := only_slice(job, machine):
        return [(only,)] * workers
    return [gpus[at : at + each] for at in range(0, workers * each, each)]


def has_own_gpus(job: Job, machine: Machine) -> bool:
    """Return whether this is a task whose GPUs no other task sees, so that they are numbered from 0.

    That is so if it sees fewer GPUs than all tasks of the node need, and fewer than exist; otherwise
    all tasks see the same ones. If CUDA shows it a MIG slice, the slice is its own.
    """
    tasks, visible = job.tasks, len(machine.visible)
    if tasks is None or not visible:
        return False
    if visible >= tasks.local_size * (job.placing.gpus_per_worker or 1):
        return False
    first = only_slice(job, machine) or machine.visible[0]
    is_own_slice = bool(first.parent) and job.placing.gpus_per_worker != 0
    # 0 if the number of GPUs of all tasks on the node is unknown.
    total = len(machine.pci_gpus) if tasks.gpus is None else tasks.gpus
    return is_own_slice or not visible >= total > 0


def has_own_cpus(tasks: TaskLayout, machine: Machine) -> bool:
    """Return whether no other task of the node may use this task's CPUs.

    If the scheduler does not tell, they are its own if the node has as many cores for every task:
    mpirun treats all tasks equally. Tasks that share CPUs have all CPUs of the node.
    """
    if tasks.own_cpus is not None:
        return tasks.own_cpus
    count = core_counter(machine)
    of_node = CpuSet((machine.cpuset or CpuSet.union_of(machine.cores)) - machine.excluded_cpus)
    return 1 < tasks.local_size <= count(of_node) / max(1, count(machine.allowed))


def _of_tasks(job: Job, machine: Machine, tasks: TaskLayout) -> list[WorkerSlot]:
    """Return the workers of the node's tasks, as far as their GPUs are known."""
    blocks, ours = _gpus_of_tasks(job, machine, tasks)
    own = [WorkerSlot(block, is_ours=at == ours) for at, block in enumerate(blocks)]
    needed = tasks.local_size * (job.placing.gpus_per_worker or 1)
    placed = sum(1 for gpu in gpus_of_jobs(machine) if gpu.numa_node is not None)
    unseen = min(tasks.local_size - len(own), needed - placed) if machine.visible else 0
    return [*own, *[WorkerSlot(None, is_ours=False, program=None)] * unseen]


def _gpus_of_tasks(
    job: Job, machine: Machine, tasks: TaskLayout
) -> tuple[list[tuple[Gpu, ...] | None], int]:
    """Return the GPUs of the node's tasks, one worker each, and the index of this task's worker.

    If the GPUs of each task are known, all tasks are returned and are placed as one job's workers.
    Otherwise only this task is, or the tasks that share its GPU.
    """
    divides = job.placing.numa_binding.divides
    if not has_own_gpus(job, machine):
        if not machine.visible and not divides:
            return [()], 0
        blocks = _blocks(job, machine, machine.visible, tasks.local_size)
        _expect_sharing(job, machine, tasks, blocks)
        return blocks, tasks.local_rank
    each, only = job.placing.gpus_per_worker or 1, only_slice(job, machine)
    mine = (only,) if only else machine.visible[:each]
    slices = [gpu for gpu in machine.gpus if gpu.parent]
    if len(machine.visible) == 1 and mine[0] in slices and len(slices) == tasks.local_size:
        # There is one MIG slice per task.
        return [(gpu,) for gpu in slices], slices.index(mine[0])
    if divides and mine[0].parent:
        at, sharers = _part_of_gpu(machine, mine[0], tasks)
        return [mine] * sharers, at
    bus = gpus_of_jobs(machine)
    others = tuple(map(_as_gpu, (it for it in bus if it.bdf not in {gpu.bdf for gpu in mine})))
    is_placed = all(gpu.numa_node is not None for gpu in bus)
    if is_placed and len(bus) == tasks.local_size * each == each + len(others):
        # All GPUs of the node belong to the tasks, the same number to each.
        return [(*mine, *others)[at : at + each] for at in range(0, len(bus), each)], 0
    return [mine], 0


def _part_of_gpu(machine: Machine, own: Gpu, tasks: TaskLayout) -> tuple[int, int]:
    """Return the index of the task with MIG slice ``own`` among the tasks on its GPU, and their number.

    If the other tasks' slices are hidden, all of them may be on this GPU, and local ranks divide it.
    """
    listed = [gpu.uuid for gpu in machine.gpus if gpu.parent == own.parent]
    if len(machine.visible) == 1 < len(listed) and own.uuid in listed:
        return listed.index(own.uuid), len(listed)
    sharers = min(tasks.local_size, MAX_SLICES)
    return tasks.local_rank % sharers, sharers


def _expect_sharing(
    job: Job, machine: Machine, tasks: TaskLayout, blocks: Sequence[tuple[Gpu, ...] | None]
) -> None:
    """Check that tasks which all see the same GPUs, too few for them, need none (``--gpus-per-worker 0``)."""
    each, visible = job.placing.gpus_per_worker, len(machine.visible)
    if blocks[0] is not None or each == 0:
        return
    there = "the same GPU" if visible == 1 else f"the same {visible} GPUs"
    raise UsageError(
        f"the {len(blocks)} tasks of this node need {len(blocks) * (each or 1)} GPUs, and all"
        f" see {there}",
        "start one task on each node, which starts a worker for each GPU:\n"
        f"  {tasks.one_per_node}\n"
        "or, if workers share GPUs or use none:\n"
        "  clusterrun --gpus-per-worker 0 ...",
    )


def _of_other_jobs(machine: Machine, own: Sequence[WorkerSlot]) -> list[WorkerSlot]:
    """Return a worker for each GPU that another job or task may use, because it needs CPUs too.

    A job without GPUs has no local CPUs to divide, so the result is empty.

    Two jobs compute the same division, whichever of the GPUs that they may open they chose. GPUs that
    we may open share the CPUs of their NUMA node with all its GPUs. They share them only with each
    other if a cpuset has already divided the node: its share of the node's cores is at most our share
    of the node's GPUs, or at most half if we have none of them. (A cpuset that only reserves some
    cores for the system has not divided it.) Isolated CPUs belong to no job.
    """
    if not machine.visible:
        return []
    used = {gpu.bdf for slot in own for gpu in slot.gpus or ()}
    seen = used | {gpu.bdf for gpu in machine.visible}
    vendors = {gpu.vendor for gpu in machine.visible}
    may_open = [
        gpu
        for gpu in (*machine.gpus, *machine.visible)
        if gpu.vendor in vendors and not gpu.mapped_cpus
    ]
    count, bus = core_counter(machine), gpus_of_jobs(machine)
    others = set[str]()
    # In firmware tables nodes may overlap. The GPUs of such nodes share their CPUs.
    for cpus in unions(node.cpus for node in machine.nodes if node.cpus):
        nodes = {node.id for node in machine.nodes if node.cpus & cpus}
        there = {gpu.bdf for gpu in bus if gpu.numa_node in nodes}
        ours = {gpu.bdf for gpu in may_open if gpu.numa_node in nodes}
        # The share is unknown if the bus lacks one of our GPUs, or has it at another node.
        if not ours <= there:
            continue
        share_of_gpus = len(ours) / len(there) if ours else 0.5
        of_jobs = CpuSet(cpus - machine.excluded_cpus)
        is_divided = count(CpuSet(cpus & machine.allowed)) <= count(of_jobs) * share_of_gpus
        sharing = ours if is_divided else there
        if not sharing <= seen:
            others |= sharing - used
    return [
        WorkerSlot((_as_gpu(gpu),), is_ours=False, program=None) for gpu in bus if gpu.bdf in others
    ]


def _as_gpu(hidden: PciGpu) -> Gpu:
    """Return a GPU of which only the PCI address is known."""
    return Gpu(-1, hidden.bdf, "", hidden.numa_node, "PCI bus")
