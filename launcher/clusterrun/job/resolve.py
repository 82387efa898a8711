"""Makes a job from the command line, environment variables, the job file and the cluster.

Flags > CLUSTERRUN_* > PET_* > the job file > the cluster > defaults.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.errors import UsageError, shell_line
from clusterrun.job.checks import check_compatible
from clusterrun.job.clusters.found import GPU_LISTS, DetectionContext, Variables
from clusterrun.job.declarations import Setting
from clusterrun.job.job import JOB_SUBJECTS, Given, Job, ProgramKind, WorkerProgram
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
    from clusterrun.job.ssh_targets import SshTargets

TOPO = "clusterrun topo"
"""The origin of what the command topo sets."""

NO_SCRIPT = Setting(WorkerProgram(ProgramKind.EXECUTABLE, "true", ()), TOPO)
"""The program of a job that is only shown by topo."""


class Resolved(Struct, frozen=True):
    """A job, and the options of this command that are not part of it."""

    job: Job
    unset: tuple[str, ...]
    """Variables to remove from the job's environment: those of an outer launch, and the token."""
    warnings: tuple[str, ...]
    """Each is one line."""
    dry_run: bool
    as_json: bool
    machine_root: Setting[Path | None]
    """The captured machine to plan for; None: this machine."""
    over_ssh: "SshTargets | None"
    """The hosts where ssh starts agents; None: this process is the agent of one node."""


def resolve(
    line: CommandLine,
    environ: Mapping[str, str],
    process: ThisProcess,
    *,
    for_topo: bool = False,
    local_only: bool = False,
) -> Resolved:
    """Return the job that the command line, ``environ`` and the job file describe.

    With ``for_topo`` the job needs no script. With ``local_only`` it also needs no address of node 0,
    and a cluster's error becomes a warning. Nothing is started or written.

    Raises:
        UsageError: the job is impossible.

    """
    left = outer_launch_variables(environ)
    variables = {name: value for name, value in environ.items() if name not in left}
    given, words, job_file = read_sources(line, variables)
    layers, warnings = translate(given, variables, called=process.called)
    env = environment(layers)
    late_env: dict[str, Setting[str]] = {}
    unset = {*left, *({TOKEN_VARIABLE} & environ.keys())}
    if job_file.services:
        from clusterrun.job.services import WORLD_VARIABLES, known_values

        env, late_env = known_values(env, variables)
        # A platform may have set these variables for the whole machine.
        unset |= WORLD_VARIABLES & environ.keys()
    # GPUs that the job's environment selects replace the cluster's.
    chosen = {name: env[name].value for name in env.keys() & {*GPU_LISTS}}
    known = Variables({**variables, **chosen})
    context = DetectionContext(process, line, local_only=local_only)
    is_nested = bool(left) and not is_new_step(environ)
    layout = resolve_node_layout(layers, known, context, is_nested=is_nested)
    path = env["PATH"].value if "PATH" in env else variables.get("PATH", os.defpath)
    is_torchrun = process.called == TORCHRUN
    script = NO_SCRIPT if for_topo else find_program(words, layers, path, runs_packages=is_torchrun)
    # With torchrun's static backend, the endpoint is MASTER_ADDR in ``layers``, with its origin.
    endpoint = value_of("rdzv_endpoint", given)
    addresses = [value_of(name, layers) for name in ("rdzv_endpoint", "master_addr")]
    at_endpoint = endpoint.value is not None and endpoint.origin in {it.origin for it in addresses}
    job = build_job(layout, known, context, script, env, at_endpoint=at_endpoint)
    if job_file.services:
        from clusterrun.job.services import with_services

        has_main_count = find("nproc_per_node", layers) is not None
        job = with_services(job, job_file, late_env, has_main_count=has_main_count)
    launcher, over_ssh = value_of("launcher", layers), None
    if launcher.value is not NodeLauncher.SSH:
        # With ssh, the interpreter is checked on the hosts.
        python = find_interpreter(job.setting("python"), path)
        job = replace(job, program=replace(job.program, python=python))
    elif not for_topo:
        from clusterrun.job.ssh_targets import find_ssh_targets

        over_ssh = find_ssh_targets(launcher, layers, layout.listed, line, process.called)
        if job.services:
            # A number of slots counts the GPUs of all programs.
            over_ssh = replace(over_ssh, slots={})
    if not for_topo:
        # Without a script, options about it have nothing to disagree with.
        check_hook(job.setting("suspend_hook"), path)
        check_compatible(job)
    if over_ssh is not None:
        over_ssh.check(job)
    dry_run = for_topo or value_of("dry_run", layers).value
    return Resolved(
        job=job,
        unset=tuple(sorted(unset)),
        warnings=(
            *((NESTED_WARNING,) if left else ()),
            *unknown_variables(variables),
            *warnings,
            *layout.found.warnings,
            *token_warnings(job),
            *_job_warnings(job, known, line, dry_run=dry_run),
        ),
        dry_run=dry_run,
        as_json=_dry_run_option("json", layers, dry_run=dry_run).value,
        machine_root=_dry_run_option("machine_root", layers, dry_run=dry_run),
        over_ssh=over_ssh,
    )


def read_sources(
    line: CommandLine, variables: Mapping[str, str]
) -> tuple[tuple[Layer, ...], Setting[tuple[str, ...]], JobFile]:
    """Return what each source sets, the program with its arguments, and the job file.

    The strongest source comes first.

    Raises:
        UsageError: the job file can't be read.

    """
    stronger = (
        line.options,
        from_variables(variables, PREFIX),
        from_variables(variables, TORCHRUN_PREFIX),
    )
    job_file, config = JobFile(), value_of("config", stronger)
    if config.value:
        from clusterrun.job.job_file import read_job_file

        job_file = read_job_file(config)
    if job_file.words.value and line.after_dashes:
        typed = line.words
        if job_file.services:
            # $NAME is replaced in the words of the file; the shell has already done so in typed words.
            typed = tuple(word.replace("$", "$$") for word in typed)
        words = (*job_file.words.value, *typed)
        settings = job_file.settings
        if typed:
            origins = [*(each.origin for each in settings.get("args", ())), COMMAND_LINE]
            args = Setting(shell_line(words[1:]), ", ".join(origins))
            settings = {**settings, "args": (args,)}
        return (*stronger, settings), Setting(words, job_file.words.origin), job_file
    if line.words:
        # torchrun's parser drops a "--" after the script, so existing command lines may have one.
        words = (line.words[0], *line.words[2:]) if _ends_options(line) else line.words
        return (*stronger, job_file.without_program()), Setting(words, COMMAND_LINE), job_file
    return (*stronger, job_file.settings), job_file.words, job_file


def _ends_options(line: CommandLine) -> bool:
    """Return whether a ``--`` follows the script."""
    return line.words[1:2] == ("--",)


def environment(layers: Sequence[Layer]) -> dict[str, Setting[str]]:
    """Return the workers' variables that the sources set; for each name, the strongest source wins."""
    texts = [text for layer in reversed(layers) for text in layer.get("env", ())]
    return {
        name: Setting(value, text.origin)
        for text in texts
        for name, value in [read_text(OPTIONS["env"], text)]
    }


def read_subjects(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the options of a job by subject, as the fields of ``Job`` have them.

    Raises:
        UsageError: an option has an impossible value.

    """
    return {subject.__name__.lower(): read(subject, layers) for subject in JOB_SUBJECTS}


def build_job(  # noqa: PLR0913 - a job is made of all that is known
    layout: NodeLayout,
    variables: Variables,
    context: DetectionContext,
    script: Setting[WorkerProgram],
    env: Mapping[str, Setting[str]],
    *,
    at_endpoint: bool,
) -> Job:
    """Return the job with these nodes; other values follow from several options.

    Raises:
        UsageError: an option has an impossible value, or two options are incompatible.

    """
    process, found, options = context.process, layout.found, layout.layers
    rank = found.tasks.value.rank if found.tasks else value_of("node_rank", options).value
    scheduler, ends_at, resumed, no_end = find_scheduler_job(
        options, variables, process, found.cluster, rank
    )
    run_id = find("run_id", options) or default_run_id(scheduler, options)
    rendezvous, ports = resolve_rendezvous(layout, variables, context)
    log_dir = find_log_dir(options)
    known = layer_of(
        cluster=found.cluster,
        log_dir=log_dir,
        run_id=run_id or Setting(process.run_id, "default"),
    )
    is_paddle, is_torchrun = found.cluster.value == "paddle", process.called == TORCHRUN
    weak = layer_of(
        python=default_interpreter(script.value, process, variables),
        base_port=variables.number("PADDLE_PORT", "PADDLE_START_PORT") if is_paddle else None,
    )
    layers = (rendezvous, working_nodes(layout), known, *options, weak)
    settings: dict[str, Setting[Any] | None] = {
        "script": script,
        "tasks": found.tasks,
        "numa_node": found.numa_node,
        "unclear": found.unclear,
        "port_candidates": ports,
        "token": find_token(
            context.line.options, layers, variables, _default_token(layout, context)
        ),
        "scheduler": scheduler,
        "ends_at": ends_at,
        "resumed": resumed,
        # Without a run id, node 0 chooses a new one, which has no folders yet.
        "kept_attempts": find_kept_attempts(log_dir, run_id.value, is_torchrun=is_torchrun)
        if run_id
        else None,
        "is_merged": Setting(value=True, origin="the caller") if process.is_merged else None,
        "coloured": find_coloured(process, variables, found.cluster, log_dir),
        "workerlog": Setting(value=True, origin=found.cluster.origin)
        if is_paddle and find("log_dir", options)
        else None,
        "as_torchrun": Setting(value=True, origin=ORIGIN) if is_torchrun else None,
        "signals_to_handle": value_of("signals_to_handle", layers),
    }
    prefix = find("log_line_prefix_template", layers) or default_prefix(process.called, layers)
    subjects = read_subjects(layers)
    subjects["output"] = replace(subjects["output"], log_line_prefix_template=prefix.value)
    all_env = {**env, **_outer_step(value_of("run_id", layers).value, variables)}
    worker_env = tuple((name, setting.value) for name, setting in all_env.items())
    subjects["program"] = replace(subjects["program"], env=worker_env)
    return Job(
        **subjects,
        **{name: setting.value for name, setting in settings.items() if setting},
        given=Given(
            run_id=run_id is not None,
            python=find("python", options) is not None,
            signals_to_handle=find("signals_to_handle", options) is not None,
            at_endpoint=at_endpoint,
            exports=_exports(layout, layers),
            no_end=no_end,
        ),
        origins={
            "args": script.origin,
            **{
                name: each[-1].origin
                for layer in reversed(layers)
                for name, each in layer.items()
                if each
            },
            **{name: setting.origin for name, setting in settings.items() if setting},
            **{f"env.{name}": setting.origin for name, setting in all_env.items()},
            "log_line_prefix_template": prefix.origin,
        },
    )


def _exports(layout: NodeLayout, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Return the exported variables that make this a multi-node job; () if an option sets the nodes."""
    found, options = layout.found, layout.layers
    if found.cluster.value != "exports" or find("nnodes", options) or find("hosts", options):
        return ()
    address = find("master_addr", layers) if not find("master_addr", options) else None
    rank = found.node_rank if find("node_rank", options) == found.node_rank else None
    return tuple(setting.origin for setting in (found.nnodes, rank, address) if setting)


def _default_token(layout: NodeLayout, context: DetectionContext) -> Setting[str] | None:
    secret = layout.found.secret
    if secret is None or layout.agents == 1:
        return None
    return Setting(f"{secret.value} of user {context.process.user_id}", secret.origin)


def _outer_step(run_id: str, variables: Mapping[str, str]) -> dict[str, Setting[str]]:
    """Return the variable that shows our Slurm step to nested launches, unless the run id is the step."""
    step = slurm_step(variables)
    return {STEP_VARIABLE: Setting(step, "Slurm")} if step and step != run_id else {}


def _job_warnings(
    job: Job, variables: Variables, line: CommandLine, *, dry_run: bool
) -> Iterator[str]:
    if is_user_python(job.script) and not job.given.python:
        yield from active_environment_warnings(job.program.python, variables)
    yield from unknown_prefix_names(job.setting("log_line_prefix_template"))
    yield from no_end_warnings(job)
    if not dry_run:
        yield from log_dir_notices(job)
    # Arguments after a -- are meant for the script.
    if not (_ends_options(line) or line.after_dashes):
        yield from misplaced_options(job.script)


def _dry_run_option(name: str, layers: Sequence[Layer], *, dry_run: bool) -> Setting[Any]:
    asked = value_of(name, layers)
    if asked.value and not dry_run:
        raise UsageError(
            f"{asked.origin}: works only with --dry-run or clusterrun topo", "add --dry-run"
        )
    return asked
