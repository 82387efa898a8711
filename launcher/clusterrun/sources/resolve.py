"""From what the sources say to a JobSpec.

Flags > CLUSTERRUN_* > PET_* > the job file > what the cluster says > defaults.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from clusterrun.domain.bounds import as_run_id
from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec, Program, ProgramKind, StartMethod
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs
from clusterrun.sources.colours import find_coloured
from clusterrun.sources.command_line import CommandLine
from clusterrun.sources.log_options import (
    find_log_dir,
    find_prefix,
    unknown_in_prefix,
    where_logs_go,
)
from clusterrun.sources.meeting_point import settle_meeting
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.rows.failing import (
    CONTAIN,
    HANG_TIMEOUT,
    HEARTBEAT_TIMEOUT,
    MAX_RESTARTS,
    NO_FAIL_FAST,
    NO_RESTART_EXIT_CODES,
    SHUTDOWN_TIMEOUT,
)
from clusterrun.sources.options.rows.joining import (
    LAST_CALL_TIMEOUT,
    RDZV_TIMEOUT,
    RUN_ID,
    STRICT_JOIN,
)
from clusterrun.sources.options.rows.launcher import (
    ALLOWED_CPUS,
    CAPTURE,
    CONFIG,
    DRY_RUN,
    JSON,
    MACHINE_ROOT,
)
from clusterrun.sources.options.rows.logs import EVENTS, REDIRECTS, TEE, WORKERLOG
from clusterrun.sources.options.rows.meeting import BASE_PORT
from clusterrun.sources.options.rows.output import (
    DUPLICATE_STDERR_FILTERS,
    DUPLICATE_STDOUT_FILTERS,
    LOCAL_RANKS_FILTER,
    PROGRESS_INTERVAL,
    RANKS,
    VERBOSE,
)
from clusterrun.sources.options.rows.placing import (
    GPU_PER_RANK,
    GPUS_PER_WORKER,
    NUMA_BINDING,
    NUMA_MAP,
    NUMA_MEMORY,
    NUMA_STRICT,
    VIRTUAL_LOCAL_RANK,
)
from clusterrun.sources.options.rows.program import (
    ENV,
    MODULE,
    NO_PYTHON,
    PASS_LOCAL_RANK,
    PYTHON,
    ROLE,
    RUN_PATH,
    STDIN_RANK,
)
from clusterrun.sources.options.rows.starting import EXEC, PRELOAD, PRELOAD_TIMEOUT, START_METHOD
from clusterrun.sources.options.rows.torchrun import SIGNALS_TO_HANDLE
from clusterrun.sources.options.rows.workers import DEVICES
from clusterrun.sources.options.table import FEWEST_NODES
from clusterrun.sources.other_launchers.nested_launches import (
    NESTED_WARNING,
    STEP_VARIABLE,
    is_new_step,
    left_by_outer_launch,
    slurm_step,
)
from clusterrun.sources.other_launchers.torchrun_lines import called_as_torchrun, translate
from clusterrun.sources.programs.exec_requirements import expect_replaceable
from clusterrun.sources.programs.executables import another_environment, find_interpreter
from clusterrun.sources.programs.file_kinds import FileKind, kind_of
from clusterrun.sources.programs.misplaced_options import misplaced_options
from clusterrun.sources.programs.programs import (
    COMMAND_LINE,
    Manner,
    expect_read_once,
    find_program,
)
from clusterrun.sources.settings import (
    NO_JOB_FILE,
    PREFIX,
    TOKEN_VARIABLE,
    TORCHRUN_PREFIX,
    Flags,
    JobFile,
    Settings,
    settings_from_flags,
    settings_from_variables,
    unknown_variables,
    value_of,
)
from clusterrun.sources.this_process import ThisProcess
from clusterrun.sources.token import find_token, token_of_job
from clusterrun.sources.world_shape import Shape, find_shape

ValueT = TypeVar("ValueT")

PLAIN: tuple[Option[object], ...] = (
    RDZV_TIMEOUT,
    LAST_CALL_TIMEOUT,
    STRICT_JOIN,
    HEARTBEAT_TIMEOUT,
    HANG_TIMEOUT,
    PROGRESS_INTERVAL,
    MAX_RESTARTS,
    NO_RESTART_EXIT_CODES,
    NO_FAIL_FAST,
    SHUTDOWN_TIMEOUT,
    CONTAIN,
    EXEC,
    DEVICES,
    NUMA_BINDING,
    STDIN_RANK,
    ROLE,
    PASS_LOCAL_RANK,
    SIGNALS_TO_HANDLE,
    NUMA_MEMORY,
    NUMA_MAP,
    NUMA_STRICT,
    GPUS_PER_WORKER,
    GPU_PER_RANK,
    VIRTUAL_LOCAL_RANK,
    START_METHOD,
    PRELOAD,
    PRELOAD_TIMEOUT,
    REDIRECTS,
    TEE,
    LOCAL_RANKS_FILTER,
    RANKS,
    DUPLICATE_STDOUT_FILTERS,
    DUPLICATE_STDERR_FILTERS,
    WORKERLOG,
    BASE_PORT,
)
"""Options that are fields of the job as they stand, whatever else is said."""


TOPO = Fact(value=True, origin="clusterrun topo")
"""It is a dry run by itself."""

NO_PROGRAM = Fact(Program(ProgramKind.EXECUTABLE, "true", ()), TOPO.origin)
"""What stands for one where a job is only looked at."""

DRY = ("a dry run or clusterrun topo", "add --dry-run")
REPLAYED = (
    "--machine-root",
    "to leave a job fewer CPUs of this machine:\n  taskset -c LIST clusterrun ...",
)
DRAWN = ("clusterrun topo", "type clusterrun topo --capture FILE")
"""What else must be said, and what to type."""


class Resolved(Struct, frozen=True):
    """A job, and what was said about this call of clusterrun."""

    job: JobSpec
    unset: tuple[str, ...]
    """Variables of an outer launch and our secret, to be removed from the job's environment."""
    warnings: tuple[str, ...]
    """One line each, for whoever prints."""
    dry_run: bool
    as_json: bool
    machine_root: Fact[Path | None]
    """The captured machine to plan for; None: this one."""
    allowed_cpus: Fact[CpuSet | None]
    """The CPUs that a job may use there; None: those that the captured process might."""
    capture: Fact[Path | None]
    """The archive to write; None: none."""
    verbose: bool


def resolve(
    flags: Flags,
    words: Sequence[str],
    environ: Mapping[str, str],
    process: ThisProcess,
    *,
    for_topo: bool = False,
) -> Resolved:
    """Return the job that the command line, ``environ`` and the job file describe.

    Args:
        flags: the raw text of each flag given, by its name in snake_case.
        words: what stands after the flags: SCRIPT and its arguments.
        environ: the environment of this process.
        process: what else there is to know of it.
        for_topo: the job is only looked at: it needs no program, and has none.

    Raises:
        UsageError: something is impossible; nothing has been started or written.

    """
    left = left_by_outer_launch(environ)
    inherited = {name: value for name, value in environ.items() if name not in left}
    typed = CommandLine(flags, tuple(words))
    told, program_words = _sources(typed, inherited)
    translated = translate(told, inherited, called=process.called)
    sources = translated.sources
    env = _env(sources)
    # Which GPUs the workers see is the job's own choice, whatever the cluster has set.
    seen = {name: env[name].value for name in env.keys() & {"CUDA_VISIBLE_DEVICES"}}
    inputs = Inputs(inherited | seen, process, typed)
    is_nested = bool(left) and not is_new_step(environ)
    shape = find_shape(sources, inputs, is_nested=is_nested)
    program = NO_PROGRAM if for_topo else _program(program_words, sources, env, inputs)
    job = _job(sources, program, env, inputs, shape)
    _expect_forkable(job)
    expect_read_once(job)
    if job.exec.value:
        expect_replaceable(job)
    dry_run = TOPO if for_topo else value_of(DRY_RUN, sources)
    machine_root = _only_with(dry_run.value, value_of(MACHINE_ROOT, sources), *DRY)
    allowed_cpus = value_of(ALLOWED_CPUS, sources)
    return Resolved(
        job=job,
        unset=tuple(sorted({*left, *({TOKEN_VARIABLE} & environ.keys())})),
        warnings=(
            *((NESTED_WARNING,) if left else ()),
            *unknown_variables(inherited),
            *translated.warnings,
            *shape.warnings,
            *_job_warnings(job, inputs, is_dry=dry_run.value),
        ),
        dry_run=dry_run.value,
        as_json=_only_with(dry_run.value, value_of(JSON, sources), *DRY).value,
        machine_root=machine_root,
        allowed_cpus=_only_with(machine_root.value, allowed_cpus, *REPLAYED),
        capture=_only_with(for_topo, value_of(CAPTURE, sources), *DRAWN),
        verbose=value_of(VERBOSE, sources).value,
    )


def _sources(
    typed: CommandLine, inherited: Mapping[str, str]
) -> tuple[tuple[Settings, ...], Fact[tuple[str, ...]]]:
    """Return what each source says, the strongest first, and the program with its arguments."""
    said = (
        settings_from_flags(typed.flags),
        settings_from_variables(inherited, PREFIX),
        settings_from_variables(inherited, TORCHRUN_PREFIX),
    )
    job_file = _job_file(value_of(CONFIG, said))
    if typed.words:
        return (*said, job_file.without_program()), Fact(_program_words(typed), COMMAND_LINE)
    return (*said, job_file.settings), job_file.words


def _program_words(typed: CommandLine) -> tuple[str, ...]:
    """Return the script and its arguments.

    A ``--`` between them is torchrun's to take away (argparse's, of whom it has that), and lines
    of its users have one.
    """
    return (typed.words[0], *typed.words[2:]) if _ends_options(typed) else typed.words


def _ends_options(typed: CommandLine) -> bool:
    return typed.words[1:2] == ("--",)


def _job_file(config: Fact[str]) -> JobFile:
    if not config.value:
        return NO_JOB_FILE
    from clusterrun.sources.job_files.job_file import read_job_file

    return read_job_file(config)


def _job(
    sources: Sequence[Settings],
    program: Fact[Program],
    env: Mapping[str, Fact[str]],
    inputs: Inputs,
    shape: Shape,
) -> JobSpec:
    interpreter = value_of(PYTHON, sources, _default_python(inputs))
    meeting = settle_meeting(sources, inputs.variables, shape, inputs.typed)
    run_id = value_of(RUN_ID, sources, _run_id_otherwise(shape, inputs))
    plain: dict[str, Any] = {option.name: value_of(option, sources) for option in PLAIN}
    if shape.cluster.value == "paddle":
        from clusterrun.sources.other_launchers.paddle_defaults import paddles_own

        plain |= paddles_own(sources, inputs.variables, shape.cluster)
    log_dir = find_log_dir(sources)
    return JobSpec(
        **plain,
        nnodes=shape.nnodes,
        fewest_nodes=_fewest_nodes(sources, shape),
        node_rank=shape.node_rank,
        nproc_per_node=shape.nproc_per_node,
        tasks=shape.tasks,
        hosts=shape.hosts,
        cluster=shape.cluster,
        numa_node=shape.numa_node,
        unclear=shape.unclear,
        master_addr=meeting.master_addr,
        master_port=meeting.master_port,
        port_candidates=meeting.port_candidates,
        rdzv_endpoint=meeting.rdzv_endpoint,
        token=find_token(sources, inputs.variables, _token_otherwise(shape, inputs)),
        run_id=run_id,
        python=find_interpreter(interpreter, _search_path(env, inputs)),
        env={**env, **_own_step(run_id.value, inputs.variables)},
        log_dir=log_dir,
        coloured=find_coloured(inputs.process, inputs.variables, shape.cluster, log_dir),
        log_line_prefix_template=find_prefix(sources, inputs.variables, inputs.process.called),
        events=_expect_no_folder(value_of(EVENTS, sources)),
        program=program,
        as_torchrun=called_as_torchrun(inputs.process.called),
    )


def _program(
    words: Fact[tuple[str, ...]],
    sources: Sequence[Settings],
    env: Mapping[str, Fact[str]],
    inputs: Inputs,
) -> Fact[Program]:
    manner = Manner(
        module=value_of(MODULE, sources),
        no_python=value_of(NO_PYTHON, sources),
        run_path=value_of(RUN_PATH, sources),
        pass_local_rank=value_of(PASS_LOCAL_RANK, sources),
    )
    return find_program(words, manner, _search_path(env, inputs))


def _job_warnings(job: JobSpec, inputs: Inputs, *, is_dry: bool) -> Iterator[str]:
    if job.program.value.kind is not ProgramKind.EXECUTABLE:
        yield from another_environment(job.python, inputs.variables)
    yield from unknown_in_prefix(job.log_line_prefix_template)
    if not is_dry:
        yield from where_logs_go(job)
    # Who writes -- behind the script knows whose these are.
    if not _ends_options(inputs.typed):
        yield from misplaced_options(job.program.value)


def _search_path(env: Mapping[str, Fact[str]], inputs: Inputs) -> str:
    return env["PATH"].value if "PATH" in env else inputs.variables.get("PATH", os.defpath)


def _env(sources: Sequence[Settings]) -> dict[str, Fact[str]]:
    """Return the variables that the sources set; the strongest source of each name wins."""
    texts = [text for said in reversed(sources) for text in said.get(ENV.name, ())]
    return {
        name: Fact(value, text.origin)
        for text in texts
        for name, value in ENV.read(text).value.items()
    }


def _fewest_nodes(sources: Sequence[Settings], shape: Shape) -> Fact[int]:
    """Return how many nodes are enough: the cluster's number, or MIN where that is said."""
    fewest = value_of(FEWEST_NODES, sources, shape.nnodes)
    return fewest if fewest.value <= shape.nnodes.value else shape.nnodes


def _run_id_otherwise(shape: Shape, inputs: Inputs) -> Fact[str]:
    if shape.run_id is None:
        return Fact(inputs.process.run_id, "default")
    # What a cluster calls a job need not be the name of a folder.
    return Fact(as_run_id(shape.run_id.value), shape.run_id.origin)


def _token_otherwise(shape: Shape, inputs: Inputs) -> Fact[str] | None:
    # Who starts nodes against the cluster's word may start some where it has set nothing.
    secret = shape.place.secret if shape.place else None
    if secret is None or shape.agents == 1:
        return None
    return token_of_job(secret, inputs.process.user_id)


def _own_step(run_id: str, environ: Mapping[str, str]) -> dict[str, Fact[str]]:
    """Return what tells a launch inside a worker our step, where the run id does not."""
    step = slurm_step(environ)
    return {STEP_VARIABLE: Fact(step, "Slurm")} if step and step != run_id else {}


def _default_python(inputs: Inputs) -> Fact[str]:
    # torchrun's own variable for it; it beats the default alone.
    if inputs.variables.get("PYTHON_EXEC"):
        return Fact(inputs.variables["PYTHON_EXEC"], "PYTHON_EXEC")
    return Fact(inputs.process.python, "default")


def _expect_no_folder(events: Fact[str | None]) -> Fact[str | None]:
    if kind_of(events.value or "") is FileKind.FOLDER:
        raise UsageError(f"{events.origin}: {events.value} is a folder", "give the path of a file")
    return events


def _expect_forkable(job: JobSpec) -> None:
    """Refuse to fork workers that run a program which is not Python's."""
    method, program = job.start_method, job.program.value
    if method.value is StartMethod.FORK and program.kind is ProgramKind.EXECUTABLE:
        raise UsageError(
            f"{method.origin}: only Python scripts and modules can be forked, and --no-python runs"
            f" {program.name}",
            "leave one of the two out",
        )


def _only_with(other: object, asked: Fact[ValueT], what: str, hint: str) -> Fact[ValueT]:
    if asked.value and not other:
        raise UsageError(f"{asked.origin}: goes with {what} only", hint)
    return asked
