"""The worker of a scheduler's task, if the scheduler has started one task for each worker."""

from typing import NamedTuple

from msgspec.structs import replace

from clusterrun.domain.job import NumaBinding, TaskLayout
from clusterrun.domain.machine import Machine
from clusterrun.domain.ranks import LocalRank
from clusterrun.planning.binding.node_binding import BindingOptions, Placement, place
from clusterrun.planning.variables.threads import threads_per_worker


class TaskPlace(NamedTuple):
    """The place of a task's worker among those of the other tasks of its node."""

    placement: Placement
    local_rank: LocalRank
    """LOCAL_RANK, by which scripts choose a GPU."""
    reason: str
    """Why that is not the task's index on its node; "" if it is."""
    threads: int


def place_task(options: BindingOptions, machine: Machine, tasks: TaskLayout) -> TaskPlace:
    """Return the place of the task's worker.

    If every task sees all GPUs of the node, the worker has the one of its local rank. If the task
    sees fewer GPUs than there are tasks, they are its own, numbered from 0, as LOCAL_RANK is.
    """
    visible = len(machine.visible)
    sees_all = visible >= tasks.local_size * (options.gpus_per_worker or 1)
    if sees_all or (options.mode.divides and not visible and not tasks.own_cpus):
        own = place(options, machine, tasks.local_size)[tasks.local_rank]
        if tasks.own_cpus and own.cpus is not None:
            # The other workers have CPUs of their own, and divide none with this one.
            own = place(options, replace(machine, visible=own.gpus), 1)[0]
        return TaskPlace(own, tasks.local_rank, "", _threads(machine, own, tasks))
    own = place(options if tasks.own_cpus else _without_idle_nodes(options), machine, 1)[0]
    threads = _threads(machine, own, tasks)
    if not visible:
        return TaskPlace(own, tasks.local_rank, "", threads)
    return TaskPlace(own, LocalRank(0), _why_0(machine, tasks), threads)


def _without_idle_nodes(options: BindingOptions) -> BindingOptions:
    # A node without a GPU of this task is not idle: other tasks may have theirs there.
    is_near = options.mode in {NumaBinding.AUTO, NumaBinding.NEAR}
    return options._replace(mode=NumaBinding.NODE) if is_near else options


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
    unbound = own._replace(cpus=None)
    return min(alone, threads_per_worker(machine, [unbound] * tasks.local_size))
