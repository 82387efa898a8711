"""The plan of this node for one attempt, from all that is known before it starts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import GlobalRank, LocalRank, counted
from clusterrun.cpuset import CpuSet
from clusterrun.errors import UsageError
from clusterrun.job.job import Job, ProgramKind, TaskLayout, WorkerProgram
from clusterrun.job.options import NumaBinding
from clusterrun.machine.machine import Machine
from clusterrun.planning import variables
from clusterrun.planning.binding import place_all, threads_per_worker
from clusterrun.planning.job_machine import as_cuda_shows
from clusterrun.planning.placement import (
    BindingRequest,
    Placement,
    as_gpu,
    core_counter,
    gpus_of_jobs,
)
from clusterrun.planning.plan import NodePlan, WorkerPlan, World
from clusterrun.planning.remarks import remark_on_idle_cpus, remarks_on, require_binding

if TYPE_CHECKING:
    from clusterrun.planning.services import Share

RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""What torchrun's ``run_script_path`` does, in an interpreter of its own (torch/distributed/run.py)."""

MOST_SLICES = 7
"""Of one GPU (NVIDIA, "MIG User Guide")."""


def plan_node(  # noqa: PLR0913 - a plan is made of all that is known
    job: Job,
    machine: Machine,
    world: World,
    *,
    unset: Sequence[str],
    error_files: str | None,
    before: Mapping[str, str],
    shares: "Sequence[Share]" = (),
) -> NodePlan:
    """Return the plan of this node.

    Args:
        job: what to run.
        machine: this node as the job may use it, see ``job_machine``.
        world: the ranks of this node in this attempt.
        unset: variables that the workers must not inherit.
        error_files: folder of the files that TORCHELASTIC_ERROR_FILE names, whose own folders are
            made when a worker starts. None in a dry run.
        before: the job's environment as its user made it, see ``environment_before``.
        shares: what services have on this node.

    Raises:
        MachineError: a worker can't be bound as asked, and the job is strict about it.

    """
    of_node = world.local_size if job.tasks is None else job.tasks.local_size
    shown = machine if shares else as_cuda_shows(job, machine, of_node)
    request = BindingRequest(
        world.local_size,
        job.placing.numa_binding,
        job.placing.numa_memory,
        job.placing.gpus_per_worker,
        tuple(block for share in shares for block in share.gpus),
    )
    task = Task(shown, request) if job.tasks is None else task_on(shown, request, job.tasks)
    placements, others = place_all(task.machine, task.request)
    threads = _threads(job, machine, placements)
    if job.tasks is not None:
        placements = placements[task.at : task.at + 1]
    if job.placing.numa_strict:
        # A service without GPUs is bound to no node.
        of_services = [each for each in placements[world.local_size :] if each.gpus]
        own = [*placements[: world.local_size], *of_services] if shares else placements
        require_binding(job, machine, own)
    idle_cpus = ""
    if job.tasks is None or has_own_cpus(job.tasks, machine):
        # CPUs that a task does not use may be another task's.
        idle_cpus = remark_on_idle_cpus(task.machine, task.request, placements, others)
    env = {
        **variables.job_variables(job, before, threads, world, len(placements)),
        **variables.chosen_gpus_variables(job, machine, before),
    }
    if job.services:
        # Few jobs have some.
        from clusterrun.planning.services import worker_plans

        workers = worker_plans(
            job, machine, world, placements, shares, error_files=error_files, env={**before, **env}
        )
    else:
        workers = tuple(
            _worker_plan(job, machine, world, task, index, placement, error_files, before)
            for index, placement in enumerate(placements)
        )
    return NodePlan(
        world=world,
        host=machine.host,
        env=env,
        unset=tuple(unset),
        workers=workers,
        remarks=remarks_on(job, machine, placements, idle_cpus, before),
        visible_origin=machine.visible_origin,
    )


def command_of(program: WorkerProgram, python: str) -> tuple[str, ...]:
    """Return what a worker executes; ``python`` is the job's interpreter."""
    match program.kind:
        case ProgramKind.SCRIPT:
            return (python, "-u", program.name, *program.args)
        case ProgramKind.MODULE:
            return (python, "-u", "-m", program.name, *program.args)
        case ProgramKind.RUN_PATH:
            return (python, "-u", "-c", RUN_PATH, program.name, *program.args)
        case ProgramKind.EXECUTABLE:
            return (program.name, *program.args)
        case _:
            assert_never(program.kind)


class Task(Struct, frozen=True):
    """What this agent's placements are planned by: all workers of the node, or of its tasks.

    For a scheduler's task its one worker is the one at ``at``.
    """

    machine: Machine
    request: BindingRequest
    at: int = 0
    has_own_gpus: bool = False
    """The task sees GPUs that no other task sees, numbered from 0, as LOCAL_RANK is."""


def task_on(machine: Machine, request: BindingRequest, tasks: TaskLayout) -> Task:
    """Return how the worker of a scheduler's task is placed.

    If every task sees all GPUs of the node, the worker has the one of its local rank. If the task
    sees fewer GPUs than there are tasks, they are its own; if these are all GPUs of the node, all
    tasks see the same, and none has one of its own.

    Raises:
        UsageError: each worker is to have a GPU, and tasks see the same too few.

    """
    visible = len(machine.visible)
    each = request.gpus_per_worker or 1
    all_tasks, alone = (replace(request, workers=count) for count in (tasks.local_size, 1))
    # 0 if it is unknown how many GPUs all tasks of the node have together.
    of_all = len(machine.pci_gpus) if tasks.gpus is None else tasks.gpus
    needed = tasks.local_size * each
    own_cpus = has_own_cpus(tasks, machine)
    if own_cpus:
        # No other task may use these CPUs, whichever GPUs are near them.
        machine = replace(machine, pci_gpus=())
    if visible >= needed:
        if not own_cpus:
            return Task(machine, all_tasks, tasks.local_rank)
        own = machine.visible[tasks.local_rank * each :][:each]
        return Task(replace(machine, visible=own), alone)
    if visible >= of_all > 0 and not (request.gpus_per_worker != 0 and machine.visible[0].parent):
        _expect_sharing(request, visible, tasks)
        return Task(replace(machine, visible=()), replace(alone, mode=NumaBinding.NONE))
    slices = () if own_cpus else tuple(gpu for gpu in machine.gpus if gpu.parent)
    if visible == each == 1 and machine.visible[0] in slices and len(slices) == needed:
        # The tasks have all slices (MIG), each its own: they are placed as one job's workers.
        at = slices.index(machine.visible[0])
        return Task(replace(machine, visible=slices), all_tasks, at, has_own_gpus=True)
    if request.mode.divides and not visible and not own_cpus:
        return Task(machine, all_tasks, tasks.local_rank)
    if request.mode.divides and visible and machine.visible[0].parent and not own_cpus:
        at, sharers = _slice_of(machine, tasks)
        of_gpu = replace(machine, visible=machine.visible[:1] * sharers)
        return Task(of_gpu, replace(request, workers=sharers), at, has_own_gpus=True)
    bus = gpus_of_jobs(machine)
    placed = [gpu for gpu in bus if gpu.numa_node is not None]
    ours = {gpu.bdf for gpu in machine.visible[:each]}
    if len(placed) == len(bus) == needed and len(ours & {gpu.bdf for gpu in bus}) == each:
        # The tasks have all GPUs of the node, each its own: they are placed as one job's workers.
        others = tuple(as_gpu(gpu) for gpu in bus if gpu.bdf not in ours)
        return Task(
            replace(machine, visible=machine.visible[:each] + others), all_tasks, has_own_gpus=True
        )
    if not own_cpus and len(placed) < needed:
        # A node without a known GPU is not idle: other tasks may have theirs there.
        alone = replace(alone, unseen=min(tasks.local_size - 1, needed - len(placed)))
    return Task(machine, alone, has_own_gpus=visible > 0)


def has_own_cpus(tasks: TaskLayout, machine: Machine) -> bool:
    """Return whether no other task of the node may use the CPUs of this one.

    If the scheduler does not say so, they are its own if every task can have as many cores: mpirun
    gives all tasks CPUs in the same way. Tasks that share CPUs have them all.
    """
    if tasks.own_cpus is not None:
        return tasks.own_cpus
    count = core_counter(machine)
    of_node = CpuSet((machine.cpuset or CpuSet.union_of(machine.cores)) - machine.set_apart)
    return 1 < tasks.local_size <= count(of_node) / max(1, count(machine.allowed))


def _slice_of(machine: Machine, tasks: TaskLayout) -> tuple[int, int]:
    """Return which of how many parts of its GPU a task has whose only GPU is a MIG slice of it.

    Where the other tasks' slices are hidden, all may be slices of this GPU: their ranks divide it.
    """
    ours = machine.visible[0]
    listed = [gpu.uuid for gpu in machine.gpus if gpu.parent == ours.parent]
    if len(machine.visible) == 1 < len(listed) and ours.uuid in listed:
        return listed.index(ours.uuid), len(listed)
    sharers = min(tasks.local_size, MOST_SLICES)
    return tasks.local_rank % sharers, sharers


def _expect_sharing(request: BindingRequest, visible: int, tasks: TaskLayout) -> None:
    """Check that workers need no GPU of their own (``--gpus-per-worker 0``)."""
    if request.gpus_per_worker == 0:
        return
    needed = tasks.local_size * (request.gpus_per_worker or 1)
    there = "the same GPU" if visible == 1 else f"the same {visible} GPUs"
    raise UsageError(
        f"the {tasks.local_size} tasks of this node need {needed} GPUs, and all see {there}",
        "start one task on each node, which starts a worker for each GPU:\n"
        "  srun --ntasks-per-node=1 clusterrun ...\n"
        "or, if workers share GPUs or use none:\n"
        "  clusterrun --gpus-per-worker 0 ...",
    )


def _threads(job: Job, machine: Machine, placements: Sequence[Placement]) -> int:
    """Return OMP_NUM_THREADS of each worker; ``placements`` are those of the tasks that are known."""
    alone = threads_per_worker(machine, placements)
    tasks = job.tasks
    if tasks is None or has_own_cpus(tasks, machine) or len(placements) == tasks.local_size:
        return alone
    # Where the other tasks are bound is unknown; they use the same CPUs.
    unbound = replace(placements[0], cpus=None)
    return min(alone, threads_per_worker(machine, [unbound] * tasks.local_size))


def _worker_plan(  # noqa: PLR0913, PLR0917 - as a plan
    job: Job,
    machine: Machine,
    world: World,
    task: Task,
    index: int,
    placement: Placement,
    error_files: str | None,
    before: Mapping[str, str],
) -> WorkerPlan:
    local_rank, argument, script = LocalRank(index), job.program.pass_local_rank, job.script
    env = {
        **variables.worker_variables(world, local_rank, error_files),
        **({} if job.tasks is None else _task_variables(job.tasks, task)),
        **variables.own_gpus_variables(job, machine, placement.gpus, index, before),
    }
    if job.workers.cluster == "paddle":
        env |= variables.paddle_variables(job, world, local_rank)
    if argument:
        script = replace(script, args=(f"--{argument}={env['LOCAL_RANK']}", *script.args))
    return WorkerPlan(
        rank=GlobalRank(world.first_rank + local_rank),
        local_rank=local_rank,
        gpus=placement.gpus,
        numa_nodes=placement.numa_nodes,
        cpus=placement.cpus,
        memory=placement.memory,
        env=env,
        remark=placement.remark,
        command=command_of(script, job.program.python),
        runs_python=script.kind is not ProgramKind.EXECUTABLE,
        needs_ras_port=variables.needs_ras_port(job, placement.gpus, before),
        local_rank_reason=_why_0(job, machine, task),
    )


def _task_variables(tasks: TaskLayout, task: Task) -> dict[str, str]:
    """Return the variables that differ from the world's, because other tasks share the node."""
    return {
        "LOCAL_RANK": "0" if task.has_own_gpus else str(tasks.local_rank),
        "LOCAL_WORLD_SIZE": str(tasks.local_size),
        "GROUP_RANK": str(tasks.node_rank),
        "NODE_RANK": str(tasks.node_rank),
        "GROUP_WORLD_SIZE": str(tasks.nodes),
    }


def _why_0(job: Job, machine: Machine, task: Task) -> str:
    """Return why LOCAL_RANK is not the worker's index on its node; "" if it is."""
    tasks, virtual = job.tasks, job.fact("virtual_local_rank")
    if tasks is not None and task.has_own_gpus:
        gpus = counted(len(machine.visible), "GPU")
        return (
            f"LOCAL_RANK is 0: this is task {tasks.local_rank} of {tasks.local_size} on its node,"
            f" and sees {gpus}"
        )
    if virtual.value:
        return f"LOCAL_RANK is 0: the worker sees its own GPUs only ({virtual.origin})"
    return ""
