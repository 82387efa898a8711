"""The values of a job, each with its name and its origin, in the types that JSON has."""

from collections.abc import Iterator
from enum import Enum

from msgspec.structs import asdict

from clusterrun.domain.world import World
from clusterrun.job.job import Job, ProgramKind, TaskLayout
from clusterrun.job.options import SUBJECTS
from clusterrun.job.values import MappedGpu

Value = str | int | float | bool | None | list[str] | list[int] | dict[str, str] | dict[str, int]


def job_values(job: Job, world: World) -> Iterator[tuple[str, Value, str]]:
    """Yield name, value and origin of each value of the job; the program is several values."""
    yield from _program_values(job)
    for field in job.__struct_fields__:
        value = getattr(job, field)
        if type(value) in SUBJECTS:
            for name in value.__struct_fields__:
                yield from _option_values(name, getattr(value, name), job, world)
        elif field == "env":
            origins = ", ".join(dict.fromkeys(job.origin(f"env.{name}") for name in job.env))
            yield "env", dict(job.env), origins or "default"
        elif field == "token":
            yield "token", None if job.token is None else "given", job.origin("token")
        elif field not in {"program", "given", "origins"}:
            yield field, _plain(value), job.origin(field)


def _program_values(job: Job) -> Iterator[tuple[str, Value, str]]:
    # By the keys of a job file: there module is a name, and no_python goes with script.
    kind, origin = job.program.kind, job.origin("program")
    yield "module" if kind is ProgramKind.MODULE else "script", job.program.name, origin
    if kind is ProgramKind.EXECUTABLE:
        yield "no_python", True, origin
    if kind is ProgramKind.RUN_PATH:
        yield "run_path", True, origin
    yield "args", list(job.program.args), origin


def _option_values(
    name: str, value: object, job: Job, world: World
) -> Iterator[tuple[str, Value, str]]:
    if name == "nnodes":
        yield "nnodes", job.nnodes, job.origin("nnodes")
        yield "fewest_nodes", job.fewest_nodes, job.origin("nnodes")
    elif name == "master_addr":
        yield name, job.meeting.master_addr or world.master_addr, job.origin(name)
    else:
        yield name, _plain(value), job.origin(name)


def _plain(value: object) -> Value:
    match value:
        case Enum():
            return str(value.value)
        case tuple() if value and isinstance(value[0], MappedGpu):
            return [str(entry) for entry in value]
        case tuple():
            return list(value)
        case TaskLayout():
            return asdict(value)
        case int() | float() | None:
            return value
        case _:
            return str(value)
