"""The values of a job, each with its name and its origin, in the types that JSON has."""

from collections.abc import Iterator
from enum import Enum

from msgspec.structs import asdict, fields

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec, MappedGpu, Program, ProgramKind, TaskLayout
from clusterrun.domain.world import World

Value = str | int | float | bool | None | list[str] | list[int] | dict[str, str] | dict[str, int]


def job_values(job: JobSpec, world: World) -> Iterator[tuple[str, Value, str]]:
    """Yield name, value and origin of each value of the job; the program is several values."""
    yield from _program_values(job.program)
    for field in fields(job):
        fact = getattr(job, field.name)
        if field.name == "env":
            origins = ", ".join(dict.fromkeys(variable.origin for variable in fact.values()))
            yield "env", {name: each.value for name, each in fact.items()}, origins or "default"
        elif field.name == "master_addr" and fact.value is None:
            yield "master_addr", world.master_addr, fact.origin
        elif field.name == "token" and fact.value is not None:
            yield "token", "given", fact.origin
        elif field.name not in {"program", "given"}:
            yield field.name, _plain(fact.value), fact.origin


def _program_values(program: Fact[Program]) -> Iterator[tuple[str, Value, str]]:
    # By the keys of a job file: there module is a name, and no_python goes with script.
    kind, origin = program.value.kind, program.origin
    yield "module" if kind is ProgramKind.MODULE else "script", program.value.name, origin
    if kind is ProgramKind.EXECUTABLE:
        yield "no_python", True, origin
    if kind is ProgramKind.RUN_PATH:
        yield "run_path", True, origin
    yield "args", list(program.value.args), origin


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
