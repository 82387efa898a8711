"""``clusterrun SCRIPT``: runs a job, prints its plan, or becomes its only worker."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from clusterrun.cli.commands import SSH_LAUNCHER, load_object, suggest_command
from clusterrun.cli.printing import complain, print_text, warn
from clusterrun.errors import ExitCode, UsageError
from clusterrun.job.resolve import Resolved, resolve
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import this_process

if TYPE_CHECKING:
    from clusterrun.run.caller import CallingProgram


def execute(
    line: CommandLine,
    environ: Mapping[str, str],
    called: str,
    caller: "CallingProgram | None" = None,
) -> int:
    """Run the job, or do what its options request instead."""
    is_merged = caller is not None and caller.merges_output
    try:
        resolved = resolve(line, environ, this_process(called, is_merged=is_merged))
    except UsageError as error:
        raise (error if called == "torchrun" else suggest_command(line, error)) from None
    if resolved.over_ssh is not None and not resolved.dry_run:
        # The agents print the warnings.
        code: int = load_object(SSH_LAUNCHER)(resolved, resolved.over_ssh, line, environ, caller)
        return code
    warn(resolved.warnings)
    if resolved.dry_run:
        return _print_plan(resolved, environ)
    if resolved.job.starting.exec:
        return _become_worker(resolved, environ)
    return _launch(resolved, environ, caller)


def _launch(resolved: Resolved, environ: Mapping[str, str], caller: "CallingProgram | None") -> int:
    # A dry run needs none of this.
    from clusterrun.run.fork_server_start import start_fork_server

    fork_server = start_fork_server(resolved, environ)
    # Imported while the fork server's interpreter starts.
    from clusterrun.run.launch import launch

    ended = launch(resolved, environ, fork_server, caller)
    if caller is not None:
        caller.ended(ended.as_data())
    elif ended.unprinted:
        complain(*ended.unprinted.rstrip("\n").split("\n"))
    return ended.code


def _become_worker(resolved: Resolved, environ: Mapping[str, str]) -> int:
    from clusterrun.planning.variables import user_environment
    from clusterrun.run.preview import plan_lone_worker
    from clusterrun.workers.exec_worker import bind_to_worker, exec_worker

    plan = plan_lone_worker(resolved, environ)
    for warning in (*plan.all_warnings(), bind_to_worker(plan)):
        if warning:
            complain(f"clusterrun: {warning}")
    try:
        exec_worker(plan, user_environment(resolved.job, environ, resolved.unset))
    except OSError as error:
        complain(f"clusterrun: {plan.workers[0].command[0]} can't be executed: {error.strerror}")
        return ExitCode.NOT_EXECUTABLE


def _print_plan(resolved: Resolved, environ: Mapping[str, str]) -> int:
    # A launch needs none of this.
    from clusterrun.report.plan import PlanView, dry_run_text
    from clusterrun.run.preview import preview

    _, plan = preview(resolved, environ)
    if resolved.as_json:
        from clusterrun.cli.printing import print_json

        return print_json(PlanView.of(resolved.job, plan))
    return print_text(dry_run_text(resolved.job, plan))
