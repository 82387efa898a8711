"""The command itself: what was typed -> exit code."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from clusterrun.cli.options import (
    Answer,
    instruction_variable,
    names_topo,
    parse,
)
from clusterrun.errors import ExitCode, LauncherError, MachineError, exit_code_of_signal
from clusterrun.planning.variables.worker_variables import environment_before
from clusterrun.sources.command_line import CommandLine
from clusterrun.sources.resolve import Resolved, resolve
from clusterrun.sources.this_process import ThisProcess
from clusterrun.workers.fork_server_process import ForkServerProcess
from clusterrun.workers.relay.log_folder import expect_log_folder
from clusterrun.workers.relay.outputs import write_within

SECONDS_TO_COMPLAIN = 2.0
"""For a line of ours where no relay prints it: before the workers, and after the end."""


def run(argv: Sequence[str], environ: Mapping[str, str], called: str = "clusterrun") -> int:
    """Do what a command line and the environment ask for; return the exit code.

    Args:
        argv: the words behind the program's name.
        environ: the environment of this process.
        called: the program's name, without its folder.

    """
    try:
        return _answer(argv, environ, called)
    except LauncherError as error:
        _complain(error.explain())
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our standard output has seen enough.
        return exit_code_of_signal(13)
    except Exception as error:  # noqa: BLE001 - the last resort: a bug of ours, and its own exit code
        from clusterrun.cli.limits import limit_behind

        if limit := limit_behind(error):
            _complain(limit.explain())
            return limit.exit_code
        import traceback

        _complain(f"{traceback.format_exc()}clusterrun: error: this is a bug of clusterrun's own")
        return ExitCode.INTERNAL


def _answer(argv: Sequence[str], environ: Mapping[str, str], called: str) -> int:
    if instruction := environ.get(instruction_variable(called)):
        from clusterrun.cli.completion import completions

        return _print(completions(instruction, called))
    parsed = parse(argv, called)
    if isinstance(parsed, Answer):
        return _print(parsed.text)
    if called != "torchrun" and names_topo(parsed):
        return _show_machine(parsed, environ, called)
    resolved = resolve(parsed, environ, _this_process(called))
    _warn(resolved)
    if resolved.dry_run:
        return _show_plan(resolved, environ)
    if resolved.job.exec.value:
        return _become_worker(resolved, environ)
    return _launch(resolved, environ)


def _launch(resolved: Resolved, environ: Mapping[str, str]) -> int:
    job = resolved.job
    expect_log_folder(job.log_dir)
    environment = environment_before(job, environ, resolved.unset)
    program = job.program.value
    fork_server = ForkServerProcess.start(
        job.python.value,
        environment,
        contain=job.contain.value,
        shown=(program.name, *program.args),
    )
    # Its interpreter starts while most of ours is still to be imported, here.
    from clusterrun.run.launch import launch

    exit_code, unprinted = launch(resolved, environ, fork_server)
    if unprinted:
        _complain(unprinted.rstrip("\n"))
    return exit_code


def _become_worker(resolved: Resolved, environ: Mapping[str, str]) -> int:
    # Only here is there no fork server to wait for.
    from clusterrun.run.attempts import remarks_of
    from clusterrun.run.launch import plan_lone_worker
    from clusterrun.workers.exec_replacement import become_worker, bind_to_worker

    plan = plan_lone_worker(resolved, environ)
    for remark in (*remarks_of(plan), bind_to_worker(plan)):
        if remark:
            _complain(f"clusterrun: {remark}")
    try:
        become_worker(plan, environment_before(resolved.job, environ, resolved.unset))
    except OSError as error:
        _complain(f"clusterrun: {plan.command[0]} can't be executed: {error.strerror}")
        return ExitCode.NOT_EXECUTABLE


def _show_plan(resolved: Resolved, environ: Mapping[str, str]) -> int:
    # Neither is on the way to the workers.
    from clusterrun.report.dry_run import as_json, as_text
    from clusterrun.run.preview import preview

    plan = preview(resolved, environ).plan
    return _print((as_json if resolved.as_json else as_text)(resolved.job, plan))


def _show_machine(parsed: CommandLine, environ: Mapping[str, str], called: str) -> int:
    from clusterrun.cli.topo import options_of_topo, topo

    asked = options_of_topo(parsed)
    if isinstance(asked, Answer):
        return _print(asked.text)
    resolved = resolve(CommandLine(asked, ()), environ, _this_process(called), for_topo=True)
    _warn(resolved)
    return _print(topo(resolved, environ))


def _print(text: str) -> ExitCode:
    try:
        print(_printable(text), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MachineError(f"standard output can't be written: {error.strerror}") from None
    return ExitCode.SUCCESS


def _printable(text: str) -> str:
    """Return the text with escapes for what standard output has no letters for: a path may have any."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _warn(resolved: Resolved) -> None:
    for warning in resolved.warnings:
        _complain(f"clusterrun: {warning}")


def _complain(text: str) -> None:
    # A standard error that is closed or full, or a terminal that is stopped, holds up nothing.
    if sys.stderr is None:
        return
    line = f"{text}\n"
    with suppress(OSError):
        if sys.stderr is not sys.__stderr__:
            # Somebody runs us in his own process and reads what he has put there.
            sys.stderr.write(line)
        else:
            write_within(2, line.encode(errors="backslashreplace"), SECONDS_TO_COMPLAIN)


def _this_process(called: str) -> ThisProcess:
    return ThisProcess(
        host=os.uname().nodename,
        cpus=len(os.sched_getaffinity(0)),
        python=sys.executable,
        run_id=_chosen_run_id(),
        has_terminal=os.isatty(1) and os.isatty(2),
        called=called,
        user_id=os.getuid(),
    )


def _chosen_run_id() -> str:
    """Return a name that sorts by time and is this process's own on this machine."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
