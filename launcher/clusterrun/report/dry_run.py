"""What ``--dry-run`` prints: every value with its origin, every worker with its place."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from shlex import join

from msgspec.structs import asdict, fields

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec, MappedGpu, Program, ProgramKind, TaskLayout
from clusterrun.domain.machine import Gpu
from clusterrun.domain.plan import MemoryPolicy, NodePlan, WorkerPlan
from clusterrun.domain.world import World

Value = str | int | float | bool | None | list[str] | list[int] | dict[str, str] | dict[str, int]
Section = tuple[str, Sequence[str]]

_WORKER_HEADS = (
    "rank",
    "local",
    "GPU",
    "address",
    "node",
    "CPUs",
    "OMP_NUM_THREADS",
    "memory",
    "told by",
    "",
)

SELDOM_TOLD = (
    *("fewest_nodes", "last_call_timeout"),
    *("tasks", "hosts", "port_candidates", "numa_node", "unclear", "base_port", "coloured"),
    *("numa_memory", "numa_map", "numa_strict"),
    *("devices", "gpus_per_worker", "gpu_per_rank", "virtual_local_rank"),
    *("role", "signals_to_handle", "pass_local_rank", "stdin_rank", "as_torchrun"),
)
"""Rows that are left out where nobody says anything, which is nearly always."""


def as_text(job: JobSpec, plan: NodePlan) -> str:
    """Return the plan for people: aligned, never cut short, without a trailing newline."""
    sections = (
        ("job", _aligned(_job_rows(job, plan.world))),
        workers_section(plan),
        ("variables of every worker", _aligned(_common_rows(job, plan))),
        *_first_worker_section(plan),
        ("variables that no worker inherits", plan.unset),
        ("remarks", plan.remarks),
        _command_section(plan),
    )
    return "\n\n".join(_section(title, lines) for title, lines in sections if lines)


def as_json(job: JobSpec, plan: NodePlan) -> str:
    """Return the plan for programs: one JSON object, as DESIGN.md has it."""
    values = {
        name: {"value": value, "origin": origin} for name, value, origin in _values(job, plan.world)
    }
    content = {
        "job": values,
        "workers": [worker_json(plan, worker) for worker in plan.workers],
        "assumed": plan.world.nodes > 1,
    }
    return json.dumps(content, indent=2)


def worker_json(plan: NodePlan, worker: WorkerPlan) -> Mapping[str, object]:
    """Return one worker for programs."""
    port = {} if "MASTER_PORT" in worker.env else {"MASTER_PORT": None}
    return {
        "rank": worker.rank,
        "local_rank": int(_local_rank(worker)),
        "gpu": _only([gpu.index for gpu in worker.gpus]),
        "gpus": [gpu_json(gpu) for gpu in worker.gpus],
        "numa_node": _only(worker.numa_nodes),
        "numa_nodes": worker.numa_nodes,
        "cpus": None if worker.cpus is None else str(worker.cpus),
        "memory": None if worker.memory is None else _memory_json(worker.memory),
        "env": {**plan.env, **worker.env, **port},
        "command": list(plan.command_of(worker)),
        "remark": _remark(worker),
    }


def _only(numbers: Sequence[int]) -> int | None:
    return numbers[0] if len(numbers) == 1 else None


def gpu_json(gpu: Gpu) -> Mapping[str, object]:
    """Return one GPU for programs."""
    return {
        "index": gpu.index,
        "address": gpu.bdf,
        "uuid": gpu.uuid,
        "numa_node": gpu.numa_node,
        "told_by": gpu.node_source,
    }


def _memory_json(memory: MemoryPolicy) -> Mapping[str, object]:
    return {"mode": memory.mode.value, "numa_nodes": memory.nodes}


def _local_rank(worker: WorkerPlan) -> str:
    # In tasks it is not the worker's index with us, which is 0.
    return worker.env.get("LOCAL_RANK", str(worker.local_rank))


def _remark(worker: WorkerPlan) -> str:
    return "; ".join(filter(None, (worker.local_rank_reason, worker.remark)))


def _values(job: JobSpec, world: World) -> Iterator[tuple[str, Value, str]]:
    """Yield name, value and origin of all that the job says, the program taken apart."""
    yield from _program_values(job.program)
    for field in fields(job):
        said = getattr(job, field.name)
        if field.name == "env":
            yield "env", {name: fact.value for name, fact in said.items()}, _origin_of_env(said)
        elif field.name == "master_addr" and said.value is None:
            yield "master_addr", world.master_addr, said.origin
        elif field.name == "token" and said.value is not None:
            yield "token", "given", said.origin
        elif field.name != "program":
            yield field.name, _plain(said.value), said.origin


def _program_values(said: Fact[Program]) -> Iterator[tuple[str, Value, str]]:
    # By the keys of a job file: there module is a name, and no_python goes with script.
    program = said.value
    name = "module" if program.kind is ProgramKind.MODULE else "script"
    yield name, program.name, said.origin
    if program.kind is ProgramKind.EXECUTABLE:
        yield "no_python", True, said.origin
    if program.kind is ProgramKind.RUN_PATH:
        yield "run_path", True, said.origin
    yield "args", list(program.args), said.origin


def _origin_of_env(env: Mapping[str, Fact[str]]) -> str:
    return ", ".join(dict.fromkeys(fact.origin for fact in env.values())) or "default"


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


def _job_rows(job: JobSpec, world: World) -> Iterator[Sequence[str]]:
    for name, value, origin in _values(job, world):
        if name == "env":
            yield from ((name, f"{key}={fact.value}", fact.origin) for key, fact in job.env.items())
        elif name == "fewest_nodes" and job.last_call is None:
            continue
        elif origin != "default" or name not in SELDOM_TOLD:
            yield name, _in_words(name, value, job), origin


def _in_words(name: str, value: Value, job: JobSpec) -> str:
    match value:
        case None if name == "master_port":
            return "the first free" if job.port_candidates.value else "chosen at the start"
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case list():
            return join(map(str, value)) or "none"
        case {"rank": rank, "size": size, "local_rank": local_rank, "local_size": local_size}:
            return f"{rank} of {size}, on this node {local_rank} of {local_size}"
        case _:
            return str(value)


def workers_section(plan: NodePlan) -> Section:
    """Return the title and the table of the workers and their places."""
    world = plan.world
    gpus = f", GPUs by {plan.visible_origin}" if plan.visible_origin else ""
    title = f"workers of {plan.host}, node {world.node_rank} of {world.nodes}{gpus}"
    rows = [_WORKER_HEADS, *(_worker_row(plan, worker) for worker in plan.workers)]
    if not any(worker.memory for worker in plan.workers):
        at = _WORKER_HEADS.index("memory")
        rows = [(*row[:at], *row[at + 1 :]) for row in rows]
    return title, _aligned(rows)


def _worker_row(plan: NodePlan, worker: WorkerPlan) -> Sequence[str]:
    return (
        str(worker.rank),
        _local_rank(worker),
        _listed(gpu.index for gpu in worker.gpus),
        _listed(gpu.bdf for gpu in worker.gpus),
        _listed(worker.numa_nodes),
        "not bound" if worker.cpus is None else str(worker.cpus),
        plan.env.get("OMP_NUM_THREADS", "inherited"),
        "-" if worker.memory is None else str(worker.memory),
        _listed(dict.fromkeys(gpu.node_source for gpu in worker.gpus)),
        _remark(worker),
    )


def _listed(values: Iterable[object]) -> str:
    return ",".join(map(str, values)) or "-"


def _command_section(plan: NodePlan) -> Section:
    first = plan.workers[0]
    title = f"command of rank {first.rank}" if first.own_arguments else "command"
    return title, [join(plan.command_of(first))]


def _common_rows(job: JobSpec, plan: NodePlan) -> Iterator[Sequence[str]]:
    for name, value in sorted(plan.env.items()):
        yield name, value, _origin_of_variable(name, job)


def _origin_of_variable(name: str, job: JobSpec) -> str:
    if name in job.env:
        return job.env[name].origin
    is_chosen = job.devices.value and name.endswith(("VISIBLE_DEVICES", "AFFINITY_MASK"))
    return job.devices.origin if is_chosen else "clusterrun"


def _first_worker_section(plan: NodePlan) -> Iterator[Section]:
    for worker in plan.workers[:1]:
        variables = {"MASTER_PORT": "chosen at the start", **worker.env}
        yield f"variables of rank {worker.rank}", _aligned(sorted(variables.items()))


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the rows with their columns aligned, each as wide as its widest cell."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
