"""From the command line, the variables and the job file to a job.

Flags > CLUSTERRUN_* > PET_* > the job file > the cluster > defaults.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec, OnHang, Program, ProgramKind, StartMethod
from clusterrun.errors import UsageError
from clusterrun.job.checks import check_debuggable, check_read_once, check_replaceable
from clusterrun.job.clusters.found import Launch, Variables
from clusterrun.job.nested_launches import (
    NESTED_WARNING,
    is_new_step,
    left_by_outer_launch,
)
from clusterrun.job.place import settle_shape
from clusterrun.job.program import (
    COMMAND_LINE,
    another_environment,
    check_hook,
    find_program,
    misplaced_options,
)
from clusterrun.job.scheduler import end_warnings
from clusterrun.job.sources import (
    PREFIX,
    REPORT_VARIABLE,
    TOKEN_VARIABLE,
    TORCHRUN_PREFIX,
    CommandLine,
    JobFile,
    Layer,
    from_variables,
    unknown_variables,
    value_of,
)
from clusterrun.job.this_process import ThisProcess
from clusterrun.job.token import token_warnings
from clusterrun.job.torchrun import translate
from clusterrun.sources.job_spec import environment, job_spec, search_path
from clusterrun.sources.output_options import unknown_in_prefix, where_logs_go
from clusterrun.sources.over_ssh import OverSsh, check_over_ssh, find_over_ssh

TOPO = Fact(value=True, origin="clusterrun topo")
"""The command topo is a dry run by itself."""

NO_PROGRAM = Fact(Program(ProgramKind.EXECUTABLE, "true", ()), TOPO.origin)
"""Takes the program's place in a job that is drawn, never run."""


class Resolved(Struct, frozen=True):
    """A job, and the options of this call of clusterrun that are no part of it."""

    job: JobSpec
    unset: tuple[str, ...]
    """Variables to remove from the job's environment: those of an outer launch, and what only agents get."""
    warnings: tuple[str, ...]
    """One line each."""
    dry_run: bool
    as_json: bool
    machine_root: Fact[Path | None]
    """The captured machine to plan for; None: this machine."""
    verbose: bool
    over_ssh: OverSsh | None
    """The hosts to reach by ssh; None: this process is the agent of one node."""


def resolve(
    line: CommandLine,
    environ: Mapping[str, str],
    process: ThisProcess,
    *,
    for_topo: bool = False,
) -> Resolved:
    """Return the job that the command line, ``environ`` and the job file describe.

    With ``for_topo`` the job is only drawn, and needs no program.

    Raises:
        UsageError: something is impossible; nothing has been started or written.

    """
    left = left_by_outer_launch(environ)
    variables = {name: value for name, value in environ.items() if name not in left}
    given, words = read_sources(line, variables)
    sources, warnings = translate(given, variables, called=process.called)
    env = environment(sources)
    # The job's own choice of GPUs replaces the cluster's.
    chosen = {name: env[name].value for name in env.keys() & {"CUDA_VISIBLE_DEVICES"}}
    known, launch = Variables({**variables, **chosen}), Launch(process, line)
    is_nested = bool(left) and not is_new_step(environ)
    shape = settle_shape(sources, known, launch, is_nested=is_nested)
    path = search_path(env, variables)
    program = NO_PROGRAM if for_topo else find_program(words, sources, path)
    # --rdzv-endpoint, perhaps for torchrun's backend that takes it for an address.
    at_endpoint = any("rdzv_endpoint" in layer for layer in given)
    job = job_spec(shape, program, env, known, launch, at_endpoint=at_endpoint)
    over_ssh = None if for_topo else find_over_ssh(sources, line, process.called)
    check_hook(job.suspend_hook, path)
    _expect_possible(job)
    if over_ssh is not None:
        check_over_ssh(over_ssh, job)
    dry_run = TOPO if for_topo else value_of("dry_run", sources)
    return Resolved(
        job=job,
        unset=tuple(sorted({*left, *({TOKEN_VARIABLE, REPORT_VARIABLE} & environ.keys())})),
        warnings=(
            *((NESTED_WARNING,) if left else ()),
            *unknown_variables(variables),
            *warnings,
            *shape.found.warnings,
            *token_warnings(line.options, sources, variables),
            *_job_warnings(job, known, line, is_dry=dry_run.value),
        ),
        dry_run=dry_run.value,
        as_json=_of_a_plan("json", sources, is_planned=dry_run.value).value,
        machine_root=_of_a_plan("machine_root", sources, is_planned=dry_run.value),
        verbose=value_of("verbose", sources).value,
        over_ssh=over_ssh,
    )


def read_sources(
    line: CommandLine, variables: Mapping[str, str]
) -> tuple[tuple[Layer, ...], Fact[tuple[str, ...]]]:
    """Return what each source sets, the strongest first, and the program with its arguments.

    Raises:
        UsageError: the job file cannot be read.

    """
    stronger = (
        line.options,
        from_variables(variables, PREFIX),
        from_variables(variables, TORCHRUN_PREFIX),
    )
    job_file = _job_file(value_of("config", stronger))
    if line.words:
        # torchrun's parser drops a "--" after the script, and people's command lines have one.
        words = (line.words[0], *line.words[2:]) if _ends_options(line) else line.words
        return (*stronger, job_file.without_program()), Fact(words, COMMAND_LINE)
    return (*stronger, job_file.settings), job_file.words


def _ends_options(line: CommandLine) -> bool:
    return line.words[1:2] == ("--",)


def _job_file(config: Fact[str]) -> JobFile:
    if not config.value:
        return JobFile()
    # Reads YAML.
    from clusterrun.job.job_file import read_job_file

    return read_job_file(config)


def _expect_possible(job: JobSpec) -> None:
    method, program = job.start_method, job.program.value
    if method.value is StartMethod.FORK and program.kind is ProgramKind.EXECUTABLE:
        raise UsageError(
            f"{method.origin}: only Python scripts and modules can be forked, and --no-python runs"
            f" {program.name}",
            "leave one of the two out",
        )
    if job.on_hang.value is not OnHang.REPORT and not job.hang_timeout.value:
        raise UsageError(
            f"{job.on_hang.origin}: nothing finds a hang, as --hang-timeout is not set",
            "add --hang-timeout SECONDS",
        )
    check_read_once(job)
    check_debuggable(job)
    if job.exec.value:
        check_replaceable(job)


def _job_warnings(
    job: JobSpec, variables: Variables, line: CommandLine, *, is_dry: bool
) -> Iterator[str]:
    if job.program.value.kind is not ProgramKind.EXECUTABLE and not job.given.python:
        yield from another_environment(job.python.value, variables)
    yield from unknown_in_prefix(job.log_line_prefix_template)
    yield from end_warnings(job)
    if not is_dry:
        yield from where_logs_go(job)
    # With a -- after the script, the options after it are meant for the script.
    if not _ends_options(line):
        yield from misplaced_options(job.program.value)


def _of_a_plan(name: str, sources: Sequence[Layer], *, is_planned: bool) -> Fact[Any]:
    asked = value_of(name, sources)
    if asked.value and not is_planned:
        raise UsageError(
            f"{asked.origin}: goes with a dry run or clusterrun topo only", "add --dry-run"
        )
    return asked
