"""From the command line, the variables and the job file to a job.

Flags > CLUSTERRUN_* > PET_* > the job file > the cluster > defaults.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.errors import UsageError
from clusterrun.job.checks import check_compatible
from clusterrun.job.clusters.found import Launch, Variables
from clusterrun.job.declarations import Setting
from clusterrun.job.job import OWN_SUBJECTS, Given, Job, ProgramKind, WorkerProgram
from clusterrun.job.nested_launches import (
    NESTED_WARNING,
    STEP_VARIABLE,
    is_new_step,
    outer_launch_variables,
    slurm_step,
)
from clusterrun.job.node_layout import (
    NodeLayout,
    resolve_node_layout,
    resolve_rendezvous,
    working_nodes,
)
from clusterrun.job.options import OPTIONS, NodeLauncher
from clusterrun.job.output import (
    find_coloured,
    find_kept_attempts,
    find_log_dir,
    log_dir_notices,
    unknown_prefix_names,
)
from clusterrun.job.program import (
    COMMAND_LINE,
    active_environment_warnings,
    check_hook,
    default_interpreter,
    find_interpreter,
    find_program,
    is_user_python,
    misplaced_options,
)
from clusterrun.job.scheduler import default_run_id, find_scheduler_job, no_end_warnings
from clusterrun.job.sources import (
    PREFIX,
    TOKEN_VARIABLE,
    TORCHRUN_PREFIX,
    CommandLine,
    JobFile,
    Layer,
    find,
    from_variables,
    layer_of,
    read,
    read_text,
    unknown_variables,
    value_of,
)
from clusterrun.job.this_process import ThisProcess
from clusterrun.job.token import find_token, token_warnings
from clusterrun.job.torchrun import ORIGIN, TORCHRUN, default_prefix, translate

if TYPE_CHECKING:
    # Few jobs are started on other hosts.
    from clusterrun.job.ssh_targets import SshTargets

TOPO = Setting(value=True, origin="clusterrun topo")
"""The command topo is a dry run by itself."""

NO_SCRIPT = Setting(WorkerProgram(ProgramKind.EXECUTABLE, "true", ()), TOPO.origin)
"""Takes the script's place in a job that is drawn, never run."""


class Resolved(Struct, frozen=True):
    """A job, and the options of this call of clusterrun that are not part of it."""

    job: Job
    unset: tuple[str, ...]
    """Variables to remove from the job's environment: those of an outer launch, and what only agents get."""
    warnings: tuple[str, ...]
    """One line each."""
    dry_run: bool
    as_json: bool
    machine_root: Setting[Path | None]
    """The captured machine to plan for; None: this machine."""
    verbose: bool
    over_ssh: "SshTargets | None"
    """The hosts to reach by ssh; None: this process is the agent of one node."""


def resolve(
    line: CommandLine,
    environ: Mapping[str, str],
    process: ThisProcess,
    *,
    for_topo: bool = False,
    is_drawn: bool = False,
) -> Resolved:
    """Return the job that the command line, ``environ`` and the job file describe.

    With ``for_topo`` the job needs no script; with ``is_drawn`` also no other node, and no place in
    its cluster.

    Raises:
        UsageError: something is impossible; nothing has been started or written.

    """
    left = outer_launch_variables(environ)
    variables = {name: value for name, value in environ.items() if name not in left}
    given, words, job_file = read_sources(line, variables)
    layers, warnings = translate(given, variables, called=process.called)
    env = environment(layers)
    # The job's own choice of GPUs replaces the cluster's.
    chosen = {name: env[name].value for name in env.keys() & {"CUDA_VISIBLE_DEVICES"}}
    known, launch = Variables({**variables, **chosen}), Launch(process, line, is_drawn=is_drawn)
    is_nested = bool(left) and not is_new_step(environ)
    shape = resolve_node_layout(layers, known, launch, is_nested=is_nested)
    path = env["PATH"].value if "PATH" in env else variables.get("PATH", os.defpath)
    is_torchrun = process.called == TORCHRUN
    script = NO_SCRIPT if for_topo else find_program(words, layers, path, runs_packages=is_torchrun)
    # --rdzv-endpoint, perhaps for torchrun's backend that takes it for an address.
    at_endpoint = any("rdzv_endpoint" in layer for layer in given)
    job = build_job(shape, known, launch, script, env, at_endpoint=at_endpoint)
    if job_file.services:
        from clusterrun.job.services import with_services

        has_main_count = find("nproc_per_node", layers) is not None
        job = with_services(job, job_file, has_main_count=has_main_count)
    launcher, over_ssh = value_of("launcher", layers), None
    if launcher.value is not NodeLauncher.SSH:
        # What is on the hosts, ssh will show; here it may be absent.
        python = find_interpreter(job.fact("python"), path)
        job = replace(job, program=replace(job.program, python=python))
    elif not for_topo:
        from clusterrun.job.ssh_targets import find_ssh_targets

        over_ssh = find_ssh_targets(launcher, layers, shape.listed, line, process.called)
    check_hook(job.fact("suspend_hook"), path)
    check_compatible(job)
    if over_ssh is not None:
        over_ssh.check(job)
    dry_run = TOPO if for_topo else value_of("dry_run", layers)
    return Resolved(
        job=job,
        unset=tuple(sorted({*left, *({TOKEN_VARIABLE} & environ.keys())})),
        warnings=(
            *((NESTED_WARNING,) if left else ()),
            *unknown_variables(variables),
            *warnings,
            *shape.found.warnings,
            *token_warnings(job),
            *_job_warnings(job, known, line, is_dry=dry_run.value),
        ),
        dry_run=dry_run.value,
        as_json=_of_a_plan("json", layers, is_planned=dry_run.value).value,
        machine_root=_of_a_plan("machine_root", layers, is_planned=dry_run.value),
        verbose=job.output.verbose,
        over_ssh=over_ssh,
    )


def read_sources(
    line: CommandLine, variables: Mapping[str, str]
) -> tuple[tuple[Layer, ...], Setting[tuple[str, ...]], JobFile]:
    """Return what each source sets, the strongest first, the program with its arguments, and the job file.

    Raises:
        UsageError: the job file can't be read.

    """
    stronger = (
        line.options,
        from_variables(variables, PREFIX),
        from_variables(variables, TORCHRUN_PREFIX),
    )
    job_file = _job_file(value_of("config", stronger))
    if job_file.words.value and line.after_dashes:
        typed = line.words
        if job_file.services:
            # Of the file's words, $NAME is replaced; a shell has done that with what was typed.
            typed = tuple(word.replace("$", "$$") for word in typed)
        words = (*job_file.words.value, *typed)
        return (*stronger, job_file.settings), Setting(words, job_file.words.origin), job_file
    if line.words:
        # torchrun's parser drops a "--" after the script, and people's command lines have one.
        words = (line.words[0], *line.words[2:]) if _ends_options(line) else line.words
        return (*stronger, job_file.without_program()), Setting(words, COMMAND_LINE), job_file
    return (*stronger, job_file.settings), job_file.words, job_file


def _ends_options(line: CommandLine) -> bool:
    return line.words[1:2] == ("--",)


def _job_file(config: Setting[str]) -> JobFile:
    if not config.value:
        return JobFile()
    # Reads YAML.
    from clusterrun.job.job_file import read_job_file

    return read_job_file(config)


def environment(layers: Sequence[Layer]) -> dict[str, Setting[str]]:
    """Return the variables that the sources set; the strongest source of each name wins."""
    texts = [text for layer in reversed(layers) for text in layer.get("env", ())]
    return {
        name: Setting(value, text.origin)
        for text in texts
        for name, value in [read_text(OPTIONS["env"], text)]
    }


def build_job(  # noqa: PLR0913 - a job is made of all that is known
    shape: NodeLayout,
    variables: Variables,
    launch: Launch,
    script: Setting[WorkerProgram],
    env: Mapping[str, Setting[str]],
    *,
    at_endpoint: bool,
) -> Job:
    """Return the job of this shape, with what follows from several options.

    Raises:
        UsageError: an option has an impossible value, or two of them cannot both hold.

    """
    called, found, options = launch.process.called, shape.found, shape.layers
    rank = found.tasks.value.rank if found.tasks else value_of("node_rank", options).value
    of_scheduler, no_end = find_scheduler_job(
        options, variables, launch.process, found.cluster, rank
    )
    run_id = find("run_id", options) or default_run_id(of_scheduler["scheduler"], options)
    rendezvous, ports = resolve_rendezvous(shape, variables, launch)
    log_dir = find_log_dir(options)
    known = layer_of(
        cluster=found.cluster,
        log_dir=log_dir,
        run_id=run_id or Setting(launch.process.run_id, "default"),
    )
    is_paddle, is_torchrun = found.cluster.value == "paddle", called == TORCHRUN
    weak = layer_of(
        python=default_interpreter(script.value, launch.process, variables),
        base_port=variables.number("PADDLE_PORT", "PADDLE_START_PORT") if is_paddle else None,
    )
    layers = (rendezvous, working_nodes(shape), known, *options, weak)
    facts: dict[str, Setting[Any] | None] = {
        "script": script,
        "tasks": found.tasks,
        "numa_node": found.numa_node,
        "unclear": found.unclear,
        "port_candidates": ports,
        "token": find_token(launch.line.options, layers, variables, _default_token(shape, launch)),
        **of_scheduler,
        # Nodes whose run id is node 0's do not know it yet: it is a new one.
        "kept_attempts": find_kept_attempts(log_dir, run_id.value, is_torchrun=is_torchrun)
        if run_id
        else None,
        "is_merged": Setting(value=True, origin="the caller") if launch.process.is_merged else None,
        "coloured": find_coloured(launch.process, variables, found.cluster, log_dir),
        "workerlog": Setting(value=True, origin=found.cluster.origin)
        if is_paddle and find("log_dir", options)
        else None,
        "as_torchrun": Setting(value=True, origin=ORIGIN) if is_torchrun else None,
        "signals_to_handle": value_of("signals_to_handle", layers),
    }
    prefix = find("log_line_prefix_template", layers) or default_prefix(called, layers)
    subjects: dict[str, Any] = {
        subject.__name__.lower(): read(subject, layers) for subject in OWN_SUBJECTS
    }
    subjects["output"] = replace(subjects["output"], log_line_prefix_template=prefix.value)
    all_env = {**env, **_outer_step(value_of("run_id", layers).value, variables)}
    variables_of_workers = tuple((name, fact.value) for name, fact in all_env.items())
    subjects["program"] = replace(subjects["program"], env=variables_of_workers)
    return Job(
        **subjects,
        **{name: fact.value for name, fact in facts.items() if fact},
        given=Given(
            run_id=run_id is not None,
            python=find("python", options) is not None,
            signals_to_handle=find("signals_to_handle", options) is not None,
            at_endpoint=at_endpoint,
            exports=_exports(shape, layers),
            no_end=no_end,
        ),
        origins={
            **{
                name: each[-1].origin
                for layer in reversed(layers)
                for name, each in layer.items()
                if each
            },
            **{name: fact.origin for name, fact in facts.items() if fact},
            **{f"env.{name}": fact.origin for name, fact in all_env.items()},
            "log_line_prefix_template": prefix.origin,
        },
    )


def _exports(shape: NodeLayout, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Return the variables of a script that say that there are several nodes, if no option does."""
    found, options = shape.found, shape.layers
    if found.cluster.value != "exports" or find("nnodes", options) or find("hosts", options):
        return ()
    address = find("master_addr", layers) if not find("master_addr", options) else None
    rank = found.node_rank if find("node_rank", options) == found.node_rank else None
    return tuple(fact.origin for fact in (found.nnodes, rank, address) if fact)


def _default_token(shape: NodeLayout, launch: Launch) -> Setting[str] | None:
    # Nodes that the cluster has not started do not know its secret.
    secret = shape.found.secret
    if secret is None or shape.agents == 1:
        return None
    return Setting(f"{secret.value} of user {launch.process.user_id}", secret.origin)


def _outer_step(run_id: str, variables: Mapping[str, str]) -> dict[str, Setting[str]]:
    """Return the variable by which a launch inside a worker knows our Slurm step, unless the run id is it."""
    step = slurm_step(variables)
    return {STEP_VARIABLE: Setting(step, "Slurm")} if step and step != run_id else {}


def _job_warnings(
    job: Job, variables: Variables, line: CommandLine, *, is_dry: bool
) -> Iterator[str]:
    if is_user_python(job.script) and not job.given.python:
        yield from active_environment_warnings(job.program.python, variables)
    yield from unknown_prefix_names(job.fact("log_line_prefix_template"))
    yield from no_end_warnings(job)
    if not is_dry:
        yield from log_dir_notices(job)
    # What stands after a -- is meant for the script.
    if not (_ends_options(line) or line.after_dashes):
        yield from misplaced_options(job.script)


def _of_a_plan(name: str, layers: Sequence[Layer], *, is_planned: bool) -> Setting[Any]:
    asked = value_of(name, layers)
    if asked.value and not is_planned:
        raise UsageError(
            f"{asked.origin}: works only with --dry-run or clusterrun topo", "add --dry-run"
        )
    return asked
