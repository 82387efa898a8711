"""The plan of this node for one attempt, from all that is known before it starts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from clusterrun.domain.machine import Machine
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.ranks import GlobalRank, LocalRank
from clusterrun.domain.world import World
from clusterrun.job.job import Job, Program, ProgramKind
from clusterrun.planning.binding.strict_binding import require_binding
from clusterrun.planning.places import Places, places_of
from clusterrun.planning.remarks import remarks_on
from clusterrun.planning.variables import worker_variables
from clusterrun.planning.variables.gpu_variables import chosen_gpus_variables, own_gpus_variables

RUN_PATH = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""What torchrun's ``run_script_path`` does, in an interpreter of its own (torch/distributed/run.py)."""


def plan_node(  # noqa: PLR0913 - a plan is made of all that is known
    job: Job,
    machine: Machine,
    world: World,
    *,
    unset: Sequence[str],
    error_files: str | None,
    environ: Mapping[str, str],
) -> NodePlan:
    """Return the plan of this node.

    Args:
        job: what to run.
        machine: this node as the job may use it, see ``job_machine``.
        world: the ranks of this node in this attempt.
        unset: variables that the workers must not inherit.
        error_files: folder of the files that TORCHELASTIC_ERROR_FILE names, whose own folders are
            made when a worker starts. None in a dry run.
        environ: the launcher's own environment.

    Raises:
        MachineError: a worker can't be bound as asked, and the job is strict about it.

    """
    places = places_of(job, machine, world)
    if job.placing.numa_strict:
        require_binding(job, machine, places.placements)
    before = worker_variables.environment_before(job, environ, unset)
    command = command_of(job.program, job.python)
    count = len(places.placements)
    return NodePlan(
        world=world,
        host=machine.host,
        command=command,
        arguments_at=len(command) - len(job.program.args),
        signal_group=job.program.kind is ProgramKind.EXECUTABLE,
        env={
            **worker_variables.job_variables(job, before, places.threads, world, count),
            **chosen_gpus_variables(job, machine, before),
        },
        unset=tuple(unset),
        workers=tuple(_worker_plans(job, machine, world, places, error_files, before)),
        remarks=remarks_on(job, machine, places.placements, before),
        visible_origin=machine.visible_origin,
    )


def command_of(program: Program, python: str) -> tuple[str, ...]:
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


def _worker_plans(  # noqa: PLR0913, PLR0917 - as a plan
    job: Job,
    machine: Machine,
    world: World,
    places: Places,
    error_files: str | None,
    before: Mapping[str, str],
) -> Iterator[WorkerPlan]:
    argument = job.pass_local_rank
    for index, placement in enumerate(places.placements):
        local_rank = LocalRank(index)
        env = {
            **worker_variables.worker_variables(world, local_rank, error_files),
            **places.variables,
            **own_gpus_variables(job, machine, placement.gpus, index, before),
        }
        if job.workers.cluster == "paddle":
            from clusterrun.planning.variables.paddle_variables import paddle_variables

            env |= paddle_variables(job, world, local_rank)
        yield WorkerPlan(
            rank=GlobalRank(world.first_rank + local_rank),
            local_rank=local_rank,
            gpus=placement.gpus,
            numa_nodes=placement.numa_nodes,
            cpus=placement.cpus,
            memory=placement.memory,
            env=env,
            remark=placement.remark,
            local_rank_reason=places.reason,
            own_arguments=(f"--{argument}={env['LOCAL_RANK']}",) if argument else (),
        )
