"""The plan of this node for one attempt, from all that is known before it starts."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, assert_never

from clusterrun.domain.cpuset import CpuSet, runs
from clusterrun.domain.job import JobSpec, NumaBinding, Program, ProgramKind
from clusterrun.domain.machine import Machine
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.ranks import GlobalRank, LocalRank
from clusterrun.domain.world import World
from clusterrun.planning.binding.node_binding import Placement, Wish, place
from clusterrun.planning.binding.other_jobs import hidden_gpus
from clusterrun.planning.binding.strictness import expect_bound_as_asked
from clusterrun.planning.scheduler_task import place_task
from clusterrun.planning.variables import worker_variables
from clusterrun.planning.variables.gpu_variables import chosen_gpus_variables, own_gpus_variables
from clusterrun.planning.variables.threads import threads_per_worker
from clusterrun.planning.worker_count import count_shown

_RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""What torchrun's ``run_script_path`` does, in an interpreter of its own (torch/distributed/run.py)."""


def plan_node(  # noqa: PLR0913 - a plan is made of all that is known
    job: JobSpec,
    machine: Machine,
    world: World,
    *,
    unset: Sequence[str],
    error_files: str | None,
    environ: Mapping[str, str],
) -> NodePlan:
    """Return who runs where on this node.

    Args:
        job: what to run.
        machine: this node, as the job may use it; read once and kept over the attempts.
        world: the ranks of this node in this attempt.
        unset: variables that the workers must not inherit.
        error_files: directory for what the workers write to TORCHELASTIC_ERROR_FILE; whoever
            starts a worker makes the directory of its file. None in a dry run.
        environ: the launcher's own environment.

    Raises:
        UsageError: the job's ``env`` sets a variable that clusterrun has to set.
        MachineError: a worker can't be bound as asked, and the job is strict about it.

    """
    worker_variables.check_env(job)
    here = _workers(job, machine, world)
    if job.numa_strict.value:
        expect_bound_as_asked(job, machine, here.placements)
    before = worker_variables.environment_before(job, environ, unset)
    command = command_of(job.program.value, job.python.value)
    return NodePlan(
        world=world,
        host=machine.host,
        command=command,
        arguments_at=len(command) - len(job.program.value.args),
        signal_group=job.program.value.kind is ProgramKind.EXECUTABLE,
        env={
            **worker_variables.job_variables(
                job, before, here.threads, world, len(here.placements)
            ),
            **chosen_gpus_variables(job, machine, before),
        },
        unset=tuple(unset),
        workers=tuple(
            _worker(
                job,
                world,
                LocalRank(index),
                placement,
                {
                    **worker_variables.worker_variables(world, LocalRank(index), error_files),
                    **here.variables,
                    **own_gpus_variables(job, machine, placement.gpus, index, before),
                    **_paddles_own(job, world, LocalRank(index)),
                },
                here.reason or _why_0(job),
            )
            for index, placement in enumerate(here.placements)
        ),
        remarks=_remarks(job, machine, here.placements, before),
        visible_origin=machine.visible_origin,
    )


class _Workers(NamedTuple):
    """The workers that this clusterrun starts."""

    placements: Sequence[Placement]
    threads: int
    """OMP_NUM_THREADS of each."""
    variables: Mapping[str, str]
    """What they get otherwise than the world says, because other tasks share their node."""
    reason: str
    """Why LOCAL_RANK is among these, and not what one would expect."""


def _workers(job: JobSpec, machine: Machine, world: World) -> _Workers:
    wish = Wish(job.numa_binding.value, job.numa_memory.value, job.gpus_per_worker.value)
    tasks = job.tasks.value
    if tasks is None:
        placements = place(wish, machine, world.local_size)
        return _Workers(placements, threads_per_worker(machine, placements), {}, "")
    task = place_task(wish, machine, tasks)
    changed = worker_variables.task_variables(tasks, task.local_rank)
    return _Workers([task.placement], task.threads, changed, task.reason)


def _paddles_own(job: JobSpec, world: World, local_rank: LocalRank) -> Mapping[str, str]:
    if job.cluster.value != "paddle":
        return {}
    from clusterrun.planning.variables.paddle_variables import paddle_variables

    return paddle_variables(job, world, local_rank)


def command_of(program: Program, python: str) -> tuple[str, ...]:
    """Return what a worker executes; ``python`` is the job's interpreter."""
    match program.kind:
        case ProgramKind.SCRIPT:
            return (python, "-u", program.name, *program.args)
        case ProgramKind.MODULE:
            return (python, "-u", "-m", program.name, *program.args)
        case ProgramKind.RUN_PATH:
            return (python, "-u", "-c", _RUN_PATH, program.name, *program.args)
        case ProgramKind.EXECUTABLE:
            return (program.name, *program.args)
        case _:
            assert_never(program.kind)


def _worker(  # noqa: PLR0913, PLR0917 - as a plan
    job: JobSpec,
    world: World,
    index: LocalRank,
    placement: Placement,
    env: Mapping[str, str],
    reason: str,
) -> WorkerPlan:
    argument = job.pass_local_rank.value
    return WorkerPlan(
        rank=GlobalRank(world.first_rank + index),
        local_rank=index,
        gpus=placement.gpus,
        numa_nodes=placement.numa_nodes,
        cpus=placement.cpus,
        memory=placement.memory,
        env=env,
        remark=placement.remark,
        local_rank_reason=reason,
        own_arguments=(f"--{argument}={env['LOCAL_RANK']}",) if argument else (),
    )


def _why_0(job: JobSpec) -> str:
    asked = job.virtual_local_rank
    return f"LOCAL_RANK is 0: it sees its own GPUs alone ({asked.origin})" if asked.value else ""


def _remarks(
    job: JobSpec, machine: Machine, placements: Sequence[Placement], before: Mapping[str, str]
) -> tuple[str, ...]:
    tasks = job.tasks.value
    # What this task leaves idle may be another's.
    shares_cpus = tasks is not None and not tasks.own_cpus
    remarks = (
        machine.visible_remark,
        _too_few_cpus(machine, len(placements)),
        "" if shares_cpus else _idle_cpus(job.numa_binding.value, machine, placements),
        _idle_gpus(job, machine, len(placements)),
        _unseen_slices(job, machine),
        _bound_by_openmp(placements, before),
    )
    return tuple(remark for remark in remarks if remark)


def _too_few_cpus(machine: Machine, workers: int) -> str:
    count = len(machine.allowed)
    if count >= workers:
        return ""
    few = f"{workers} workers share {count} CPU{'' if count == 1 else 's'} ({machine.allowed})"
    if CpuSet.union_of(machine.cores) <= machine.allowed:
        return few
    return (
        f"{few}: clusterrun itself may use no more; under srun give -c, under mpirun --bind-to none"
    )


def _idle_cpus(mode: NumaBinding, machine: Machine, placements: Sequence[Placement]) -> str:
    masks = {placement.cpus for placement in placements}
    idle = CpuSet(machine.allowed - CpuSet.union_of(mask or () for mask in masks))
    if None in masks or len(idle) * 4 <= len(machine.allowed):
        return ""
    if mode.divides and hidden_gpus(machine):
        # They were left for jobs that use the other GPUs.
        return ""
    instead = "near" if mode is NumaBinding.NODE or mode.divides else "none"
    unused = f"no worker is bound to CPUs {idle}, {len(idle)} of {len(machine.allowed)}"
    return f"{unused}; to use them: --numa-binding {instead}"


def _idle_gpus(job: JobSpec, machine: Machine, workers: int) -> str:
    each = job.gpus_per_worker
    if not each.value or job.tasks.value is not None:
        return ""
    idle = machine.visible[workers * each.value :]
    if not idle:
        return ""
    plural = "GPUs" if len(idle) > 1 else "GPU"
    # Slices of a GPU have its number.
    names = [gpu.uuid for gpu in idle] if idle[0].parent else runs(gpu.index for gpu in idle)
    have = "worker has" if workers == 1 else "workers have"
    return f"no worker uses {plural} {','.join(names)}: {workers} {have} {each.value} each"


def _unseen_slices(job: JobSpec, machine: Machine) -> str:
    if len(machine.visible) == count_shown(job, machine):
        return ""
    return (
        "CUDA shows a process one MIG slice, and no other GPU;"
        " --virtual-local-rank gives each worker its own"
    )


def _bound_by_openmp(placements: Sequence[Placement], before: Mapping[str, str]) -> str:
    affinity = before.get("KMP_AFFINITY")
    if not affinity or all(placement.cpus is None for placement in placements):
        return ""
    return f"KMP_AFFINITY={affinity} is set: Intel's OpenMP binds its threads by that once more"
