"""The places of the workers that this agent starts: all of its node, or a scheduler's task."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.domain.machine import Machine
from clusterrun.domain.world import World
from clusterrun.errors import UsageError
from clusterrun.job.job import Job, TaskLayout
from clusterrun.job.options import NumaBinding
from clusterrun.planning.binding.node_binding import BindingOptions, Placement, place
from clusterrun.planning.variables.threads import threads_per_worker


class Places(Struct, frozen=True):
    """The workers, by their order in this agent."""

    placements: Sequence[Placement]
    threads: int
    """OMP_NUM_THREADS of each."""
    variables: Mapping[str, str]
    """Variables that differ from the world's, because other tasks share the node."""
    reason: str
    """Why LOCAL_RANK is not the worker's index on its node; "" if it is."""


def places_of(job: Job, machine: Machine, world: World) -> Places:
    options = BindingOptions(
        job.placing.numa_binding, job.placing.numa_memory, job.placing.gpus_per_worker
    )
    virtual = job.fact("virtual_local_rank")
    reason = (
        f"LOCAL_RANK is 0: the worker sees its own GPUs only ({virtual.origin})"
        if virtual.value
        else ""
    )
    tasks = job.tasks
    if tasks is None:
        placements = place(options, machine, world.local_size)
        return Places(placements, threads_per_worker(machine, placements), {}, reason)
    task = _of_task(options, machine, tasks)
    return replace(task, reason=task.reason or reason)


def _of_task(options: BindingOptions, machine: Machine, tasks: TaskLayout) -> Places:
    """Return the place of the task's worker.

    If every task sees all GPUs of the node, the worker has the one of its local rank. If the task
    sees fewer GPUs than there are tasks, they are its own, numbered from 0, as LOCAL_RANK is; if
    these are all GPUs of the node, all tasks see the same, and none has one of its own.

    Raises:
        UsageError: each worker is to have a GPU, and tasks see the same too few.

    """
    visible = len(machine.visible)
    sees_all = visible >= tasks.local_size * (options.gpus_per_worker or 1)
    has_own = False
    if not sees_all and visible >= _gpus_of_all(machine, tasks) > 0:
        _expect_sharing(options, visible, tasks)
        own = place(replace(options, mode=NumaBinding.NONE), replace(machine, visible=()), 1)[0]
    elif sees_all or (options.mode.divides and not visible and not tasks.own_cpus):
        own = place(options, machine, tasks.local_size)[tasks.local_rank]
        if tasks.own_cpus and own.cpus is not None:
            # The other workers have CPUs of their own, and divide none with this one.
            own = place(options, replace(machine, visible=own.gpus), 1)[0]
    else:
        own = place(options if tasks.own_cpus else _without_idle_nodes(options), machine, 1)[0]
        has_own = visible > 0
    variables = {
        "LOCAL_RANK": "0" if has_own else str(tasks.local_rank),
        "LOCAL_WORLD_SIZE": str(tasks.local_size),
        "GROUP_RANK": str(tasks.node_rank),
        "NODE_RANK": str(tasks.node_rank),
        "GROUP_WORLD_SIZE": str(tasks.nodes),
    }
    reason = _why_0(machine, tasks) if has_own else ""
    return Places([own], _threads(machine, own, tasks), variables, reason)


def _gpus_of_all(machine: Machine, tasks: TaskLayout) -> int:
    """Return the number of GPUs that all tasks of the node have together; 0: unknown."""
    return len(machine.pci_gpus) if tasks.gpus is None else tasks.gpus


def _expect_sharing(options: BindingOptions, visible: int, tasks: TaskLayout) -> None:
    """Check that workers need no GPU of their own (``--gpus-per-worker 0``)."""
    if options.gpus_per_worker == 0:
        return
    needed = tasks.local_size * (options.gpus_per_worker or 1)
    there = "the same GPU" if visible == 1 else f"the same {visible} GPUs"
    raise UsageError(
        f"the {tasks.local_size} tasks of this node need {needed} GPUs, and all see {there}",
        "start one task on each node, which starts a worker for each GPU:\n"
        "  srun --ntasks-per-node=1 clusterrun ...\n"
        "or, if workers share GPUs or use none:\n"
        "  clusterrun --gpus-per-worker 0 ...",
    )


def _without_idle_nodes(options: BindingOptions) -> BindingOptions:
    # A node without a GPU of this task is not idle: other tasks may have theirs there.
    is_near = options.mode in {NumaBinding.AUTO, NumaBinding.NEAR}
    return replace(options, mode=NumaBinding.NODE) if is_near else options


def _why_0(machine: Machine, tasks: TaskLayout) -> str:
    gpus = "1 GPU" if len(machine.visible) == 1 else f"{len(machine.visible)} GPUs"
    return (
        f"LOCAL_RANK is 0: this is task {tasks.local_rank} of {tasks.local_size} on its node,"
        f" and sees {gpus}"
    )


def _threads(machine: Machine, own: Placement, tasks: TaskLayout) -> int:
    alone = threads_per_worker(machine, [own])
    if tasks.own_cpus:
        return alone
    # Where the other tasks are bound is unknown; they use the same CPUs.
    unbound = replace(own, cpus=None)
    return min(alone, threads_per_worker(machine, [unbound] * tasks.local_size))
