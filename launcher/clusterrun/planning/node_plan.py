"""Makes the plan of this node for one attempt."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from clusterrun.bounds import GlobalRank, LocalRank, counted
from clusterrun.job.job import MAIN, Job, ProgramKind, TaskLayout, WorkerProgram
from clusterrun.machine.machine import Machine
from clusterrun.planning import variables
from clusterrun.planning.binding import bind_workers, threads_per_worker
from clusterrun.planning.node_warnings import idle_cpus_warning, require_binding, warnings_for
from clusterrun.planning.placement import BindingRequest, Placement
from clusterrun.planning.plan import NodePlan, WorkerPlan, WorkerSlot, World
from clusterrun.planning.worker_slots import has_own_cpus, has_own_gpus

if TYPE_CHECKING:
    # Few jobs have services.
    from clusterrun.job.services import Service

RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""Does what torchrun's ``run_script_path`` does, in another interpreter (torch/distributed/run.py)."""


def plan_node(  # noqa: PLR0913 - a plan needs all of it
    job: Job,
    machine: Machine,
    world: World,
    *,
    unset: Sequence[str],
    error_files: str | None,
    before: Mapping[str, str],
    slots: Sequence[WorkerSlot],
) -> NodePlan:
    """Return the plan of this node.

    Args:
        job: the job.
        machine: this node as the job may use it, see ``machine_for``.
        world: the ranks of this node in this attempt.
        unset: variables that the workers must not inherit.
        error_files: the folder for TORCHELASTIC_ERROR_FILE; None in a dry run. The folder of each
            worker's file is made when the worker starts.
        before: the environment before clusterrun changes it, see ``user_environment``.
        slots: the workers of this node, see ``worker_slots``.

    Raises:
        MachineError: a worker can't be bound as requested, and --numa-strict is set.

    """
    request = BindingRequest(slots, job.placing.numa_binding, job.placing.numa_memory)
    placed = bind_workers(machine, request)
    own = [(slot, it) for slot, it in zip(slots, placed, strict=True) if slot.is_ours]
    placements = [placement for _, placement in own]
    threads = _threads(job, machine, [it for it in placed if not it.is_other])
    if job.placing.numa_strict:
        # Services without GPUs are never bound.
        bound = [it for slot, it in own if it.gpus or slot.program == MAIN]
        require_binding(job, machine, bound)
    idle_cpus = ""
    if job.tasks is None or has_own_cpus(job.tasks, machine):
        # Otherwise, CPUs that this task does not use may be another task's.
        others = [it for it in placed if it.is_other]
        idle_cpus = idle_cpus_warning(machine, request, placements, others)
    env = {
        **variables.job_variables(job, before, threads, world, len(placements)),
        **variables.chosen_gpus_variables(job, machine, before),
    }
    if job.services:
        # Few jobs have services.
        from clusterrun.planning.services import worker_plans

        workers = worker_plans(
            job, machine, world, own, error_files=error_files, env={**before, **env}
        )
    else:
        workers = tuple(
            _main_worker(job, machine, world, index, placement, error_files, before)
            for index, placement in enumerate(placements)
        )
    return NodePlan(
        world=world,
        host=machine.host,
        env=env,
        unset=tuple(unset),
        workers=workers,
        warnings=warnings_for(job, machine, placements, idle_cpus, before),
        visible_origin=machine.visible_origin,
    )


def worker_plan(  # noqa: PLR0913, PLR0917 - a worker has all of it
    job: Job,
    rank: GlobalRank,
    local_rank: LocalRank,
    placement: Placement,
    program: WorkerProgram,
    env: Mapping[str, str],
    before: Mapping[str, str],
    service: "Service | None" = None,
) -> WorkerPlan:
    """Return the plan of a worker with these variables, in addition to those of the environment ``before``."""
    argument = job.program.pass_local_rank if service is None else ""
    if argument:
        program = replace(program, args=(f"--{argument}={env['LOCAL_RANK']}", *program.args))
    return WorkerPlan(
        rank=rank,
        local_rank=local_rank,
        gpus=placement.gpus,
        numa_nodes=placement.numa_nodes,
        cpus=placement.cpus,
        memory=placement.memory,
        env=env,
        warning=placement.warning,
        command=_command(program, (service and service.python) or job.program.python),
        runs_python=program.kind is not ProgramKind.EXECUTABLE,
        service=service,
        needs_ras_port=variables.needs_ras_port(job, placement.gpus, {**before, **env}),
    )


def _command(program: WorkerProgram, python: str) -> tuple[str, ...]:
    """Return the command line that a worker executes; ``python`` is the job's interpreter."""
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


def _threads(job: Job, machine: Machine, placements: Sequence[Placement]) -> int:
    """Return OMP_NUM_THREADS; ``placements`` are the workers of this job whose binding is known."""
    if job.tasks is not None and not has_own_cpus(job.tasks, machine):
        # The binding of the other tasks is unknown, but they may use the same CPUs.
        unbound = replace(placements[0], cpus=None)
        placements = [*placements, *[unbound] * (job.tasks.local_size - len(placements))]
    return threads_per_worker(machine, placements)


def _main_worker(  # noqa: PLR0913, PLR0917 - as ``plan_node``
    job: Job,
    machine: Machine,
    world: World,
    index: int,
    placement: Placement,
    error_files: str | None,
    before: Mapping[str, str],
) -> WorkerPlan:
    local_rank, is_alone = LocalRank(index), has_own_gpus(job, machine)
    env = {
        **variables.worker_variables(world, local_rank, error_files),
        **({} if job.tasks is None else _task_variables(job.tasks, is_alone=is_alone)),
        **variables.own_gpus_variables(job, machine, placement.gpus, index, before),
    }
    if job.workers.cluster == "paddle":
        env |= variables.paddle_variables(job, world, local_rank)
    rank = GlobalRank(world.first_rank + local_rank)
    plan = worker_plan(job, rank, local_rank, placement, job.script, env, before)
    return replace(plan, local_rank_reason=_local_rank_reason(job, machine, is_alone=is_alone))


def _task_variables(tasks: TaskLayout, *, is_alone: bool) -> dict[str, str]:
    """Return the variables that count the other tasks of the node, which the world does not."""
    return {
        "LOCAL_RANK": "0" if is_alone else str(tasks.local_rank),
        "LOCAL_WORLD_SIZE": str(tasks.local_size),
        "GROUP_RANK": str(tasks.node_rank),
        "NODE_RANK": str(tasks.node_rank),
        "GROUP_WORLD_SIZE": str(tasks.nodes),
    }


def _local_rank_reason(job: Job, machine: Machine, *, is_alone: bool) -> str:
    """Return why LOCAL_RANK is 0 instead of the worker's index on its node; "" if it is the index."""
    tasks, virtual = job.tasks, job.setting("virtual_local_rank")
    if tasks is not None and is_alone:
        gpus = counted(len(machine.visible), "GPU")
        return (
            f"LOCAL_RANK is 0: this is task {tasks.local_rank} of {tasks.local_size} on its node,"
            f" and sees {gpus}"
        )
    if virtual.value:
        return f"LOCAL_RANK is 0: the worker sees its own GPUs only ({virtual.origin})"
    return ""
