"""The one worker of a task, where a scheduler has started one task for each worker."""

from typing import NamedTuple

from msgspec.structs import replace

from clusterrun.domain.job import NumaBinding, TaskLayout
from clusterrun.domain.machine import Machine
from clusterrun.domain.ranks import LocalRank
from clusterrun.planning.binding.node_binding import Placement, Wish, place
from clusterrun.planning.variables.threads import threads_per_worker


class TaskPlace(NamedTuple):
    """The place of a task's worker among those of the other tasks of its node."""

    placement: Placement
    local_rank: LocalRank
    """What LOCAL_RANK says, by which scripts choose a GPU."""
    reason: str
    """Why that is not the task's index on its node; "" if it is."""
    threads: int


def place_task(wish: Wish, machine: Machine, tasks: TaskLayout) -> TaskPlace:
    """Return the place of the task's worker.

    Where every task sees all GPUs of the node, the worker has the one of its local rank. Where the
    task sees fewer than there are tasks, they are its own, numbered from 0: so is LOCAL_RANK.
    """
    visible = len(machine.visible)
    sees_all = visible >= tasks.local_size * (wish.gpus_per_worker or 1)
    if sees_all or (wish.mode.divides and not visible and not tasks.own_cpus):
        own = place(wish, machine, tasks.local_size)[tasks.local_rank]
        if tasks.own_cpus and own.cpus is not None:
            # The other workers are elsewhere, and divide nothing with this one.
            own = place(wish, replace(machine, visible=own.gpus), 1)[0]
        return TaskPlace(own, tasks.local_rank, "", _threads(machine, own, tasks))
    own = place(wish if tasks.own_cpus else _strictly(wish), machine, 1)[0]
    threads = _threads(machine, own, tasks)
    if not visible:
        return TaskPlace(own, tasks.local_rank, "", threads)
    return TaskPlace(own, LocalRank(0), _why_0(machine, tasks), threads)


def _strictly(wish: Wish) -> Wish:
    # A node that has none of our GPUs is not idle: other tasks may have theirs there.
    is_near = wish.mode in {NumaBinding.AUTO, NumaBinding.NEAR}
    return wish._replace(mode=NumaBinding.NODE) if is_near else wish


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
    # Nobody knows where the others are bound, only that they use the same CPUs.
    unbound = own._replace(cpus=None)
    return min(alone, threads_per_worker(machine, [unbound] * tasks.local_size))
