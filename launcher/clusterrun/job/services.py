"""Services: programs that run beside the main program of a job, from the key ``services`` of a job file.

This module is imported only for a job file with services.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import product
from typing import Annotated, Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import counted
from clusterrun.errors import UsageError
from clusterrun.job import values
from clusterrun.job.declarations import Option, Setting, Value, rows_of
from clusterrun.job.job import MAIN, Job, ProgramKind, WorkerProgram
from clusterrun.job.job_file import Entry, variables_of
from clusterrun.job.nested_launches import WORKER_VARIABLES
from clusterrun.job.options import OnFailure
from clusterrun.job.program import check_script, find_executable, find_interpreter
from clusterrun.job.sources import JobFile, read_text
from clusterrun.job.suggestions import did_you_mean
from clusterrun.job.values import RankSet, WorkerCount, choice, number

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""A service's name is a part of the variable CLUSTERRUN_<SERVICE>_ADDR."""

LAST_PORT = 65535

RESERVED_NAMES = (MAIN, "default", "rank", "master", "local")
"""The main program's name, ROLE_NAME and log files, and the options --master-addr and --local-addr."""

EXPANDED_ORIGINS = ("--env", "CLUSTERRUN_ENV", "PET_ENV")
"""Sources of ``env`` in which a shell has already expanded $NAME."""

WORLD_VARIABLES = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
"""Variables that a service has only with ``world: true``, because libraries form a process group with them."""

_OWN_VARIABLES = re.compile(r"PORT|CLUSTERRUN_\w+|\w+_VISIBLE_DEVICES|ZE_AFFINITY_MASK")
"""Variables that differ between the programs or workers of a node, besides torchrun's."""

_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|(\$))")


def _ready(text: str) -> str:
    if text != "tcp" and not re.fullmatch(r"/[!-~]*", text):
        raise UsageError(
            f"{text!r} is neither tcp nor a path",
            "write /health, which asks http://ADDRESS:$PORT/health, or tcp",
        )
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


class Service(Struct, frozen=True, kw_only=True):
    """A program that runs beside the main program."""

    title: ClassVar = "A service"

    name: str
    where: str
    """File and line: "rl.yaml:7"."""
    program: WorkerProgram
    in_shell: bool = False
    """Its command is a text, which a shell runs."""
    env: Mapping[str, str] = {}
    origins: Mapping[str, str] = {}
    """Where each value was set, by key."""

    python: Annotated[
        str,
        Value(str, "PATH"),
        Option("The interpreter of its script or module", default="the job's"),
    ] = ""
    nnodes: Annotated[
        int | None,
        number("a number of nodes", 1),
        Option("Number of nodes it runs on, counted from the last one", default="all"),
    ] = None
    node_ranks: Annotated[
        values.Ranks, Option("The nodes it runs on, instead of nnodes", default="all")
    ] = None
    nproc_per_node: Annotated[
        int, number("a number of workers", 1), Option("Workers on each of its nodes")
    ] = 1
    gpus_per_worker: Annotated[
        int,
        number("a number of GPUs"),
        Option("GPUs of each worker, taken from the last ones of the node"),
    ] = 0
    devices: Annotated[
        values.Devices,
        Option("GPUs it uses instead of the last ones", default="none"),
    ] = ()
    ready: Annotated[
        str,
        Value(_ready, "PATH|tcp"),
        Option(
            "How a worker shows that it is ready: tcp, its port accepts a connection; or a path that"
            " answers GET with 200 to 299: /health, or {path: /health, timeout: 1800}",
            default="none",
        ),
    ] = ""
    ready_timeout: Annotated[
        values.Seconds, Option("How long that may take; ready: {path: /health, timeout: 600}")
    ] = 600.0
    after: Annotated[
        tuple[str, ...],
        Value(_names, "SERVICE,..."),
        Option("Services that must be ready before it starts", default="none"),
    ] = ()
    on_failure: Annotated[
        OnFailure,
        choice(OnFailure, "what follows from a failure"),
        Option(
            "What happens when a worker fails: the job ends (stop), only this worker is restarted, at"
            " most max_restarts times (restart), or a notice is printed (ignore) if it was ready"
        ),
    ] = OnFailure.STOP
    must_finish: Annotated[
        bool,
        Option("The job waits until it ends, and an exit with 0 is not a failure if it was ready"),
    ] = False
    world: Annotated[
        bool,
        Option("Its workers are the ranks of one world, with RANK and WORLD_SIZE of their own"),
    ] = False
    port: Annotated[
        int | None,
        number("a port", 1, LAST_PORT),
        Option(
            "PORT of the first worker on a node; the next worker has the next port",
            default="free ones",
        ),
    ] = None

    def nodes(self, nnodes: int) -> list[int]:
        """Return the ranks of its nodes in a job of ``nnodes`` nodes."""
        if self.node_ranks is not None:
            return [rank for rank in range(nnodes) if rank in self.node_ranks]
        return list(range(nnodes - (self.nnodes or nnodes), nnodes))

    @property
    def ports(self) -> range:
        """The ports of its workers on a node; empty if ``port`` is not set."""
        return range(0) if self.port is None else range(self.port, self.port + self.nproc_per_node)

    def origin(self, key: str) -> str:
        return self.origins.get(key, self.where)


SHELL = ("/bin/sh", "-c")
"""Runs a command that is a text, not a list."""

LIST_KEYS = ("node_ranks", "devices", "after")
"""Keys whose value may be a list."""

PROGRAM_KEYS = ("command", "script", "module")
OPTIONS = rows_of(Service)
KEYS = (*PROGRAM_KEYS, "args", "env", *(name for name in OPTIONS if name != "ready_timeout"))


def read_services(entry: Entry) -> tuple[Service, ...]:
    """Return the services in the order of the job file.

    Raises:
        UsageError: a service is wrong; the message begins with file, line and key.

    """
    found = [_service(each) for each in entry.entries("server:\n      command: python server.py")]
    for service in found:
        _check_after(service, found)
    _check_no_cycle(found)
    return tuple(found)


def _service(entry: Entry) -> Service:
    name = entry.name
    if not _NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise UsageError(
            f"{entry.origin}: {name!r} can't be the name of a service",
            "use lowercase letters, digits and _, such as reward_model;"
            f" {', '.join(RESERVED_NAMES)} are reserved",
        )
    given: dict[str, Entry] = {}
    for each in entry.entries("command: python server.py"):
        if each.name not in KEYS:
            raise UsageError(
                f"{each.origin}: a service has no such key",
                did_you_mean(each.name, KEYS)
                or f"other keys go at the top level; a service's keys: {', '.join(KEYS)}",
            )
        if not each.is_empty:
            given[each.name] = each
    texts = {
        key: Setting(_text(each), each.origin)
        for key, each in given.items()
        if key in OPTIONS and not (key == "ready" and each.is_mapping)
    }
    if "ready" in given and given["ready"].is_mapping:
        texts |= _ready_texts(given["ready"])
    found: dict[str, Any] = {key: read_text(OPTIONS[key], text) for key, text in texts.items()}
    if "nnodes" in given and "node_ranks" in given:
        raise UsageError(
            f"{given['nnodes'].origin} and {given['node_ranks'].origin}: both choose the nodes",
            "remove one of the two lines",
        )
    service = Service(
        name=name,
        where=entry.origin,
        program=_program(entry, given),
        in_shell="command" in given and not given["command"].is_list,
        env=_env(given["env"]) if "env" in given else {},
        origins={key: text.origin for key, text in texts.items()},
        **found,
    )
    if max(service.ports, default=0) > LAST_PORT:
        raise UsageError(
            f"{service.origin('port')}: its {service.nproc_per_node} workers on a node would have"
            f" ports {service.ports[0]} to {service.ports[-1]}, but the highest port is {LAST_PORT}",
            f"give {LAST_PORT + 1 - service.nproc_per_node} or less",
        )
    gpus = service.nproc_per_node * service.gpus_per_worker
    if service.devices and gpus and len(service.devices) != gpus:
        raise UsageError(
            f"{service.origin('devices')}: {counted(len(service.devices), 'GPU')}, and"
            f" {counted(service.nproc_per_node, 'worker')} with {service.gpus_per_worker} each"
            f" ({service.origin('gpus_per_worker')}) need {gpus}",
            "remove gpus_per_worker: each worker has the same number of devices",
        )
    if service.world and service.on_failure is OnFailure.RESTART:
        raise UsageError(
            f"{service.origin('on_failure')}: starts one worker again, and with world: true"
            f" ({service.origin('world')}) the others would wait for the one that is gone",
            "remove on_failure: max_restarts at the top level starts all again",
        )
    return service


def _text(entry: Entry) -> str:
    return ",".join(entry.texts()) if entry.is_list and entry.name in LIST_KEYS else entry.text()


def _env(entry: Entry) -> dict[str, str]:
    found = variables_of(entry)
    if "PORT" in found:
        raise UsageError(
            f"{entry.origin}.PORT: PORT is a variable that clusterrun sets for each worker",
            f"write port: {found['PORT']} beside env",
        )
    return found


def _ready_texts(entry: Entry) -> dict[str, Setting[str]]:
    keys = {"path": "ready", "timeout": "ready_timeout"}
    texts = {}
    for each in entry.entries("path: /health"):
        if each.name not in keys:
            raise UsageError(
                f"{each.origin}: there is no such key", "the keys are path and timeout"
            )
        texts[keys[each.name]] = Setting(each.text(), each.origin)
    return {"ready": Setting("tcp", entry.origin), **texts}


def _program(entry: Entry, given: Mapping[str, Entry]) -> WorkerProgram:
    named = [given[key] for key in PROGRAM_KEYS if key in given]
    if len(named) != 1:
        raise UsageError(
            f"{entry.origin}: a service has one program, but this one has {len(named) or 'none'}",
            f"give it one of {', '.join(PROGRAM_KEYS)}",
        )
    args = given["args"].texts() if "args" in given else ()
    (program,) = named
    if program.name != "command":
        return WorkerProgram(ProgramKind(program.name), program.text(), args)
    if args:
        raise UsageError(
            f"{given['args'].origin}: goes with script or module", "write them into command"
        )
    words: tuple[str, ...] = ()
    if program.is_list:
        words = program.texts()
    elif program.text().strip():
        words = (*SHELL, program.text())
    if not words or not words[0]:
        raise UsageError(
            f"{program.origin}: the command is empty", "write [PROGRAM, ARGUMENT, ...]"
        )
    return WorkerProgram(ProgramKind.EXECUTABLE, words[0], words[1:])


def _check_after(service: Service, services: Iterable[Service]) -> None:
    by_name = {each.name: each for each in services}
    for other in service.after:
        if other not in by_name:
            raise UsageError(
                f"{service.origin('after')}: there is no service {other}",
                did_you_mean(other, by_name) or f"the services are {', '.join(by_name)}",
            )
        if not by_name[other].ready:
            raise UsageError(
                f"{service.origin('after')}: nothing says when {other} is ready",
                f"add ready: /health, or ready: tcp, to {other} ({by_name[other].where})",
            )


def _check_no_cycle(services: Iterable[Service]) -> None:
    left = {service.name: service for service in services}
    while free := [name for name, it in left.items() if left.keys().isdisjoint(it.after)]:
        for name in free:
            del left[name]
    if not left:
        return
    # Each remaining service waits for another one of them, so any path ends in a cycle.
    path = [next(iter(left))]
    while (following := next(it for it in left[path[-1]].after if it in left)) not in path:
        path.append(following)
    cycle = path[path.index(following) :]
    waits = f"{' and '.join(cycle)} wait for each other"
    if len(cycle) == 1:
        waits = f"{following} waits for itself"
    raise UsageError(f"{left[following].origin('after')}: {waits}", "remove one of the after keys")


def known_values(
    env: Mapping[str, Setting[str]], inherited: Mapping[str, str]
) -> tuple[dict[str, Setting[str]], dict[str, Setting[str]]]:
    """Return the job's variables with ``$NAME`` expanded, and those that wait for the workers' variables."""
    known: dict[str, Setting[str]] = {}
    late: dict[str, Setting[str]] = {}
    values = {
        name: text
        for name, text in inherited.items()
        if name not in WORKER_VARIABLES and not _OWN_VARIABLES.fullmatch(name)
    }
    for name, setting in env.items():
        text = setting.value
        if setting.origin not in EXPANDED_ORIGINS:
            if not _references(text) <= values.keys():
                late[name] = setting
                # A later variable may refer to this one.
                values.pop(name, None)
                continue
            text = expand_variables(text, values, setting.origin)
        known[name], values[name] = Setting(text, setting.origin), text
    return known, late


def _references(text: str) -> set[str]:
    """Return the names of the variables that a text refers to."""
    return {found[1] or found[2] for found in _REFERENCE.finditer(text) if not found[3]}


def expand_variables(
    text: str, environment: Mapping[str, str], origin: str, later: Collection[str] = ()
) -> str:
    """Expand ``$NAME`` and ``${NAME}`` in a text; ``$$`` is a dollar.

    Variables in ``later`` are left as they are, and if there are any, so are unknown variables that
    begin with CLUSTERRUN_.

    Raises:
        UsageError: a variable is not set.

    """

    def value(found: "re.Match[str]") -> str:
        name = found[1] or found[2]
        if found[3]:
            return "$"
        if name in environment:
            return environment[name]
        if name in later or (later and name.startswith("CLUSTERRUN_")):
            return found[0]
        raise UsageError(f"{origin}: ${name} is not set", f"set it, or write $${name} for the text")

    return _REFERENCE.sub(value, text)


def with_services(
    job: Job, job_file: JobFile, late_env: Mapping[str, Setting[str]], *, has_main_count: bool
) -> Job:
    """Return the job with the services of its file.

    ``late_env`` are the variables that wait for the workers'. With ``has_main_count``, an option sets the
    number of the main program's workers on each node. A number from a cluster or ``--devices`` is
    ignored, because it counts the GPUs of all programs.

    Raises:
        UsageError: an option cannot be used with services, or a service has no node.

    """
    services = job_file.services
    for setting, hint in _excluded(job):
        raise UsageError(
            f"{services[0].where}: a job with services can't have {setting.origin}", hint
        )
    if job.tasks is not None:
        raise UsageError(
            f"{services[0].where}: services need one agent for each node, but this node has"
            f" {job.tasks.local_size} tasks ({job.origin('tasks')})",
            f"start one task on each node: {job.tasks.one_per_node}",
        )
    for service in services:
        if service.name == job.program.role:
            raise UsageError(
                f"{service.where}: {service.name} is the role of the main program"
                f" ({job.origin('role')})",
                "give one of the two another name",
            )
    late_origins = {f"env.{name}": setting.origin for name, setting in late_env.items()}
    origins = {**job.origins, **late_origins}
    late = tuple((name, setting.value) for name, setting in late_env.items())
    job = replace(job, services=services, late_env=late, origins=origins)
    if "PORT" in job.all_env:
        raise UsageError(
            f"{job.origin('env.PORT')}: PORT is a variable that clusterrun sets for each worker",
            "remove it; a service may say port: 8000",
        )
    for service in services:
        if (service.nnodes or 0) > job.nnodes:
            raise UsageError(
                f"{service.origin('nnodes')}: {service.nnodes} nodes, but the job has"
                f" {job.setting('nnodes')}",
                f"give {job.nnodes} or fewer",
            )
        if service.on_failure is OnFailure.RESTART and not job.failures.max_restarts:
            raise UsageError(
                f"{service.origin('on_failure')}: never restarts a worker, because max_restarts is"
                f" {job.setting('max_restarts')}",
                "add max_restarts: 3 at the top level, the most for each worker",
            )
        if not service.nodes(job.nnodes):
            raise _no_such_node(service.origin("node_ranks"), service.node_ranks, job)
    _check_ports(services, job.nnodes)
    main = job_file.main_nodes
    nodes: RankSet | None = read_text(OPTIONS["node_ranks"], main) if main else None
    if main and nodes and not any(rank in nodes for rank in range(job.nnodes)):
        raise _no_such_node(main.origin, nodes, job)
    if not has_main_count:
        workers = replace(job.workers, nproc_per_node=WorkerCount.PER_GPU)
        origins = {name: text for name, text in job.origins.items() if name != "nproc_per_node"}
        job = replace(job, workers=workers, origins=origins)
    return replace(job, main_nodes=nodes)


def check_program(service: Service, search_path: str) -> None:
    """Check that the program of a service can be run on this node.

    Raises:
        UsageError: it cannot; the message begins with file, line and key.

    """
    name, where = service.program.name, f"{service.where}: "
    if service.python:
        find_interpreter(Setting(service.python, service.origin("python")), search_path)
    if "$" in name:
        # Variables are replaced when the worker starts.
        return
    if service.program.kind is ProgramKind.SCRIPT:
        check_script((name, *service.program.args), where, search_path)
    elif service.program.kind is ProgramKind.EXECUTABLE and not find_executable(name, search_path):
        raise UsageError(
            f"{where}there is no program {name}", "give its path, or put its folder on PATH"
        )


def _check_ports(services: Iterable[Service], nnodes: int) -> None:
    users: dict[tuple[int, int], Service] = {}
    for service in services:
        for node, port in product(service.nodes(nnodes), service.ports):
            other = users.setdefault((node, port), service)
            if other is not service:
                raise UsageError(
                    f"{other.origin('port')} and {service.origin('port')}: both have port {port} on"
                    f" node {node}",
                    "give a different one, or remove port: free ones are chosen",
                )


def _no_such_node(origin: str, ranks: object, job: Job) -> UsageError:
    return UsageError(
        f"{origin}: there is no node {ranks}: the job has {job.setting('nnodes')}",
        f"ranks go from 0 to {job.nnodes - 1}",
    )


def _excluded(job: Job) -> Iterator[tuple[Setting[Any], str]]:
    """Yield each option that a job with services can't have, with the hint."""
    if job.is_elastic:
        yield job.setting("nnodes"), f"give one number of nodes: --nnodes {job.nnodes}"
    for name in ("spares", "rejoin_timeout", "exec", "pdb"):
        if job.setting(name).value:
            yield job.setting(name), "remove it"
    if job.script.is_standard_input:
        yield job.setting("script"), "save the script to a file"
    if job.workers.cluster == "paddle":
        yield job.setting("cluster"), "add --cluster none"
