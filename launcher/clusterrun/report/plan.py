"""The plan of a node, as ``--dry-run`` and ``--verbose`` print it."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from time import localtime, strftime
from typing import TYPE_CHECKING, Self

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from clusterrun.errors import printable, shell_line
from clusterrun.job.declarations import format_value
from clusterrun.job.job import Job, ProgramKind, TaskLayout
from clusterrun.job.nested_launches import RAS_VARIABLE
from clusterrun.job.options import OPTIONS, SUBJECTS
from clusterrun.job.redaction import redacted
from clusterrun.machine.machine import Gpu
from clusterrun.planning.plan import MemoryPolicy, NodePlan, WorkerPlan, World
from clusterrun.report.tables import EMPTY, aligned, listed, table

if TYPE_CHECKING:
    from clusterrun.job.services import Service

    # A dry run does not need it.
    from clusterrun.workers.fork_server.messages import Prepared

Value = str | int | float | bool | None | list[str | int] | dict[str, str] | dict[str, int]
"""A value of a job, in types of JSON."""

MIN_SECONDS_NAMED = 0.005
"""Packages that were imported in less time are only counted."""


class ValueView(Struct, frozen=True):
    """A value of a job in ``--dry-run --json``, and where it was set."""

    value: Value
    origin: str


class GpuView(Struct, frozen=True):
    """A GPU of a worker in ``--dry-run --json``."""

    index: int
    address: str
    uuid: str
    numa_node: int | None
    told_by: str
    """The source of ``numa_node``."""

    @classmethod
    def of(cls, gpu: Gpu) -> Self:
        return cls(gpu.index, gpu.bdf, gpu.uuid, gpu.numa_node, gpu.node_source)


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker in ``--dry-run --json``."""

    rank: int
    local_rank: int
    """LOCAL_RANK; in a scheduler's task it differs from the worker's index, which is 0."""
    gpu: int | None
    """The only GPU; None if there are several or none."""
    gpus: tuple[GpuView, ...]
    numa_node: int | None
    """The only NUMA node; None if there are several or none."""
    numa_nodes: tuple[int, ...]
    cpus: str | None
    """In the kernel's list format; None if the worker is not bound."""
    memory: MemoryPolicy | None
    env: dict[str, str | None] | UnsetType
    """Variables that clusterrun sets or changes; None for a value that is chosen at the start."""
    command: tuple[str, ...]
    remark: str
    """Warnings about the worker."""
    service: str | UnsetType = UNSET
    """The worker's service; not set for the main program."""

    @classmethod
    def all_of(cls, plan: NodePlan) -> tuple[Self, ...]:
        return tuple(cls._of(plan, worker) for worker in plan.workers)

    @classmethod
    def _of(cls, plan: NodePlan, worker: WorkerPlan) -> Self:
        return cls(
            rank=worker.rank,
            local_rank=int(worker.env.get("LOCAL_RANK", worker.local_rank)),
            gpu=worker.gpus[0].index if len(worker.gpus) == 1 else None,
            gpus=tuple(map(GpuView.of, worker.gpus)),
            numa_node=worker.numa_nodes[0] if len(worker.numa_nodes) == 1 else None,
            numa_nodes=worker.numa_nodes,
            cpus=None if worker.cpus is None else str(worker.cpus),
            memory=worker.memory,
            env={**dict(_redacted(plan.env)), **_own_variables(plan, worker)},
            command=worker.command,
            remark="; ".join(filter(None, (worker.local_rank_reason, worker.warning))),
            service=worker.service.name if worker.service else UNSET,
        )


class PlanView(Struct, frozen=True):
    """What ``--dry-run --json`` prints."""

    job: dict[str, ValueView]
    """All values, by the keys of a job file."""
    workers: tuple[WorkerView, ...]
    assumed: bool
    """The other nodes are assumed to be like this node."""
    remarks: tuple[str, ...]
    """Warnings about this node."""
    services: dict[str, dict[str, ValueView]] | UnsetType = UNSET
    """The values of each service by name and key; not set without services."""

    @classmethod
    def of(cls, job: Job, plan: NodePlan) -> Self:
        values = _values(job, plan.world)
        return cls(
            {name: ValueView(value, origin) for name, value, origin in values},
            WorkerView.all_of(plan),
            plan.world.nodes > 1,
            plan.warnings,
            {each.name: _values_of(each) for each in job.services} or UNSET,
        )


def _values(job: Job, world: World) -> Iterator[tuple[str, Value, str]]:
    """Yield the name, value and origin of each value of the job."""
    # The names are the keys of a job file, where a module or an executable has keys of its own.
    kind, origin = job.script.kind, job.origin("script")
    yield "module" if kind is ProgramKind.MODULE else "script", job.script.name, origin
    if kind is ProgramKind.EXECUTABLE:
        yield "no_python", True, job.origin("no_python")
    if kind is ProgramKind.RUN_PATH:
        yield "run_path", True, job.origin("run_path")
    yield "args", list(job.script.args), job.origin("args")
    for name, value in _settled(job):
        match name:
            case "module" | "no_python" | "run_path":
                # They are in ``job.script``.
                continue
            case "nnodes":
                yield name, job.nnodes, job.origin(name)
                yield "fewest_nodes", job.workers.nnodes.minimum, job.origin(name)
            case "master_addr":
                yield name, job.rendezvous.master_addr or world.master_addr, job.origin(name)
            case "env":
                origins = dict.fromkeys(job.origin(f"env.{variable}") for variable in job.all_env)
                yield name, dict(_redacted(job.all_env)), ", ".join(origins) or "default"
            case "token":
                yield name, None if job.token is None else "given", job.origin(name)
            case _:
                yield name, _plain(value), job.origin(name)


def _settled(job: Job) -> Iterator[tuple[str, object]]:
    """Yield the options of each subject, and the values that are not options."""
    for field, value in asdict(job).items():
        if type(value) in SUBJECTS:
            yield from asdict(value).items()
        elif field == "main_nodes":
            # The key in a job file.
            yield from [("node_ranks", str(value))] if value is not None else []
        elif field not in {"script", "given", "origins", "services", "late_env"}:
            yield field, value


def _plain(value: object) -> Value:
    match value:
        case Enum():
            return str(value.value)
        case tuple():
            return [each if isinstance(each, int) else str(each) for each in value]
        case TaskLayout():
            return asdict(value)
        case int() | float() | None:
            return value
        case _:
            return str(value)


def dry_run_text(job: Job, plan: NodePlan) -> str:
    """Return the plan as text, without a trailing newline. No value is cut."""
    world = plan.world
    gpus = f", GPUs by {plan.visible_origin}" if plan.visible_origin else ""
    variables = ((name, text, _origin_of(name, job)) for name, text in sorted(_redacted(plan.env)))
    sections = (
        ("job", aligned(_job_rows(job, world))),
        *_service_sections(job),
        (
            f"workers of {plan.host}, node {world.node_rank} of {world.nodes}{gpus}",
            worker_table(plan),
        ),
        ("variables of every worker", aligned(variables)),
        *(
            (f"variables of {plan.name(each.local_rank)}", _own_variable_rows(plan, each))
            for each in _first_workers(plan)
        ),
        ("variables that no worker inherits", plan.unset),
        ("remarks", warnings_in(plan)),
        *(
            (_command_title(job, plan, each), [shell_line(each.command)])
            for each in _first_workers(plan)
        ),
    )
    return "\n\n".join(
        "\n".join(map(printable, [title, *(f"  {line}" for line in lines)]))
        for title, lines in sections
        if lines
    )


def _redacted(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((name, redacted(name, text)) for name, text in variables.items())


def _first_workers(plan: NodePlan) -> list[WorkerPlan]:
    """Return the first worker of each program on this node."""
    found: dict[str, WorkerPlan] = {}
    for worker in plan.workers:
        found.setdefault(worker.service.name if worker.service else "", worker)
    return list(found.values())


def _own_variables(plan: NodePlan, worker: WorkerPlan) -> dict[str, str | None]:
    """Return the worker's own variables; None for a value that is chosen at the start."""
    variables: dict[str, str | None] = dict(_redacted(worker.env))
    variables.setdefault("MASTER_PORT", None)
    if plan.world.programs:
        variables.setdefault("PORT", None)
        variables.setdefault("MASTER_ADDR", None)
    if worker.needs_ras_port:
        variables.setdefault(RAS_VARIABLE, None)
    return variables


def _own_variable_rows(plan: NodePlan, worker: WorkerPlan) -> list[str]:
    variables = sorted(_own_variables(plan, worker).items())
    return aligned((name, "chosen at the start" if it is None else it) for name, it in variables)


def _command_title(job: Job, plan: NodePlan, worker: WorkerPlan) -> str:
    differs = bool(job.program.pass_local_rank or job.services)
    return f"command of {plan.name(worker.local_rank)}" if differs else "command"


def _service_sections(job: Job) -> Iterator[tuple[str, list[str]]]:
    """Yield a title and the values of each service, with their origins."""
    for service in job.services:
        values = _values_of(service).items()
        rows = [(key, str(each.value), each.origin) for key, each in values]
        yield f"service {service.name} ({service.where})", aligned(rows)


def _values_of(service: "Service") -> dict[str, ValueView]:
    return {
        key: ValueView(format_value(getattr(service, key)), origin)
        for key, origin in service.origins.items()
    }


def _job_rows(job: Job, world: World) -> Iterator[Sequence[str]]:
    for name, value, origin in _values(job, world):
        if name == "env":
            yield from (
                (name, f"{key}={text}", job.origin(f"env.{key}"))
                for key, text in _redacted(job.all_env)
            )
        elif name == "fewest_nodes" and job.last_call is None:
            continue
        elif origin != "default" or not _is_quiet(name):
            yield name, _in_words(name, value, job), origin


def _is_quiet(name: str) -> bool:
    """Return whether a default value is omitted."""
    if name in OPTIONS:
        return OPTIONS[name].option.quiet
    # Values that are not options come from a cluster, a scheduler or a terminal.
    return name not in {"script", "module", "no_python", "run_path", "args", "token"}


def _in_words(name: str, value: Value, job: Job) -> str:
    match value:
        case None if name == "master_port":
            return "the first free" if job.port_candidates else "chosen at the start"
        case None:
            return "none"
        case float() if name == "ends_at":
            return strftime("%Y-%m-%d %H:%M:%S", localtime(value))
        case bool():
            return "yes" if value else "no"
        case list():
            return shell_line(map(str, value)) or "none"
        case {"rank": rank, "size": size, "local_rank": local_rank, "local_size": local_size}:
            return f"{rank} of {size}, on this node {local_rank} of {local_size}"
        case _:
            return str(value)


def _origin_of(variable: str, job: Job) -> str:
    if variable in job.env:
        return job.origin(f"env.{variable}")
    is_chosen = job.workers.devices and variable.endswith(("VISIBLE_DEVICES", "AFFINITY_MASK"))
    return job.origin("devices") if is_chosen else "clusterrun"


def worker_table(plan: NodePlan) -> list[str]:
    """Return the table of workers in dry runs and in ``clusterrun topo``."""
    rows = [
        {
            "rank": _rank_label(planned),
            "local": str(worker.local_rank),
            "GPU": listed(gpu.index for gpu in worker.gpus),
            "address": listed(gpu.address for gpu in worker.gpus),
            "node": listed(worker.numa_nodes),
            "CPUs": "not bound" if worker.cpus is None else worker.cpus,
            "OMP_NUM_THREADS": plan.env.get("OMP_NUM_THREADS", "inherited"),
            "memory": str(worker.memory or EMPTY),
            "node by": listed(dict.fromkeys(gpu.told_by for gpu in worker.gpus)),
        }
        for worker, planned in zip(WorkerView.all_of(plan), plan.workers, strict=True)
    ]
    return table(tuple(rows[0]), rows, if_known={"memory"})


def _rank_label(worker: WorkerPlan) -> str:
    service = worker.service
    return f"{service.name} {worker.rank_in_program}" if service else str(worker.rank)


def warnings_in(plan: NodePlan) -> list[str]:
    """Return the reasons for unexpected values of LOCAL_RANK, then all other warnings, each once."""
    reasons = dict.fromkeys(worker.local_rank_reason for worker in plan.workers)
    return [*filter(None, reasons), *plan.all_warnings()]


def describe_start(plan: NodePlan, *, moves_pages: bool = False) -> Iterator[str]:
    """Yield a line for the attempt, for each worker, and if the kernel moves the workers' pages."""
    world = plan.world
    total = sum(each.size for each in world.programs) or world.size
    port = "a free port" if world.master_port is None else f"port {world.master_port}"
    yield (
        f"run {world.run_id}, attempt {world.attempt}: {len(plan.workers)} of {total} workers"
        f" on {plan.host}, node {world.node_rank} of {world.nodes};"
        f" master address {world.master_addr}, {port}"
    )
    if world.interface:
        yield f"gloo, NCCL and TensorPipe use the network interface {world.interface}"
    for worker in plan.workers:
        yield f"{plan.name(worker.local_rank)}: {_resources(worker)}"
    if moves_pages and any(worker.cpus for worker in plan.workers):
        yield "kernel.numa_balancing is on: the kernel moves pages to the CPUs that use them"


def _resources(worker: WorkerPlan) -> str:
    gpus = ", ".join(f"GPU {gpu.index} ({gpu.bdf})" for gpu in worker.gpus) or "no GPU"
    cpus = "all CPUs" if worker.cpus is None else f"CPUs {worker.cpus}"
    nodes = ",".join(map(str, worker.numa_nodes))
    at = f" of NUMA node {nodes}" if nodes else ""
    memory = "" if worker.memory is None else f", memory: {worker.memory}"
    return f"{gpus}, {cpus}{at}{memory}"


def describe_prepared(prepared: "Prepared", workers: int, *, verbose: bool) -> Iterator[str]:
    """Yield how workers start, what was preloaded, and why other modules were not.

    ``workers`` is the number of workers of this node. Unless ``verbose``, only problems are named.
    """
    module = prepared.not_preloaded if workers > 1 else None
    if prepared.why and prepared.why != prepared.why_not_preloaded:
        cost = ""
        if prepared.costs_time and not module and workers > 1:
            cost = f"; all {workers} import separately what could be imported once"
            cost += " (docs/binding.md)"
        yield f"workers are spawned: {prepared.why}{cost}"
    elif not prepared.why and verbose:
        slow = [
            f"{name} ({taken:.2f} s)"
            for name, taken in prepared.loaded
            if taken >= MIN_SECONDS_NAMED
        ]
        others = len(prepared.loaded) - len(slow)
        loaded = [*slow, *([f"{others} that took no time"] if others else [])]
        yield f"workers are forked; preloaded: {', '.join(loaded) or 'nothing'}"
        for name, why in prepared.left_to_workers:
            yield f"left to each worker: {name}, as {why}"
    if module:
        hint = f"; to import it once: --preload {module}" if prepared.preload_option_helps else ""
        each = f"so each of {workers} workers imports {module} itself"
        yield f"{prepared.why_not_preloaded}, {each}{hint}"
