"""The end of a job: the report, the exit code, the error file for a parent process, requeueing."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from clusterrun.errors import ExitCode
from clusterrun.job.values import Std
from clusterrun.planning.variables import is_sole_writer
from clusterrun.policy.messages import Verdict
from clusterrun.policy.outcome import (
    HelperFailed,
    Interrupted,
    Killed,
    Outcome,
    OutputGone,
    Report,
    Succeeded,
    Suspended,
    WorkerFailed,
)
from clusterrun.run.node import LocalNode
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import Routes
from clusterrun.workers.terminal import StandardInput

PARENTS_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""A parent of the launcher sets this variable, as for torchrun, and reads the file."""


def report_before_start(end: Interrupted | HelperFailed | Verdict) -> Report:
    """Return the report of a job that ended before it started, or while this node waited to be admitted."""
    reason, why = (end.reason, end.no_restart) if isinstance(end, Verdict) else (end, "")
    outcome = Outcome(reason, attempt=0, results=(), survivors=(), no_restart=why)
    return Report(outcome, has_begun=isinstance(end, Verdict))


def report_of(
    outcome: Outcome, node: LocalNode, routes: Routes, standard_input: StandardInput
) -> Report:
    """Return the report of a job that has started."""
    cause, hidden = outcome.cause, _hidden(outcome, routes)
    # The output of a worker on another node went to that node's terminal.
    is_alone = outcome.cause_ran_here and is_sole_writer(node.job, node.size)
    _, is_printed = routes.is_logged_and_printed(Std.ERR, 0)
    return Report(
        outcome,
        already_shown=is_alone and is_printed and not hidden,
        hidden=hidden,
        had_input=cause is None or standard_input.is_read_by(cause.rank),
        flight_records=_flight_records(outcome, node),
    )


def _flight_records(outcome: Outcome, node: LocalNode) -> str:
    """Return a line on torch's flight records if a worker was aborted, e.g. by its watchdog; else ""."""
    if not any(result.exit_status == Killed(signal.SIGABRT) for result in outcome.results):
        return ""
    from clusterrun.workers.flight_records import flight_records_line

    started = min(result.clock - result.ran_for for result in outcome.results)
    return flight_records_line(
        node.environment, (result.rank for result in outcome.results), started
    )


def text_of(report: Report) -> str:
    """Return the text of the report; "" if the job has succeeded and left nothing."""
    if isinstance(report.outcome.reason, Succeeded) and not report.outcome.survivors:
        return ""
    # Most jobs succeed.
    from clusterrun.report.outcome import report_text

    return report_text(report)


def copy_error_file(outcome: Outcome, environ: Mapping[str, str]) -> None:
    """Copy the error file of the cause to where the launcher's parent expects it."""
    path = environ.get(PARENTS_ERROR_FILE)
    if path and isinstance(outcome.reason, WorkerFailed) and outcome.reason.cause.error:
        # An error is not worth a message, because the report says the same as the file.
        with suppress(OSError):
            Path(path).write_text(outcome.reason.cause.error, encoding="utf-8")


def exit_code_and_unprinted(report: Report, relay: RelayClient) -> tuple[int, str]:
    """Return the exit code, and the text that the relay, which has ended, has not printed."""
    outcome = report.outcome
    code: int = outcome.exit_code
    if code == ExitCode.SUCCESS and relay.output_closed:
        # The workers ended before the agent learned that nothing reads their last lines.
        gone = Report(replace(outcome, reason=OutputGone()))
        return gone.outcome.exit_code, text_of(gone)
    if relay.losses == ():
        return code, ""
    from clusterrun.report.outcome import lost_output_text, silent_relay_text

    is_cause = code == ExitCode.SUCCESS
    named = ExitCode.MACHINE if is_cause else None
    if relay.losses is None:
        known = isinstance(outcome.reason, HelperFailed)
        why = "" if known else f"{silent_relay_text(relay.exit_description, named)}\n"
        rest = f"{why}{text_of(report)}"
    else:
        rest = lost_output_text(relay.losses, named)
    return ExitCode.MACHINE if is_cause else code, rest


def _hidden(outcome: Outcome, routes: Routes) -> str:
    """Return why the lines of the failed worker were not on the screen; "" if they were."""
    cause, tasks = outcome.cause, routes.job.tasks
    if cause is None or cause.service:
        return ""
    if tasks is None:
        return routes.hidden_by(cause.rank, cause.local_rank)
    # Each task's worker has local rank 0 in its own clusterrun; those of other tasks are unknown.
    return routes.hidden_by(cause.rank, tasks.local_rank if cause.rank == tasks.rank else None)


def requeue(node: LocalNode, outcome: Outcome) -> str:
    """Requeue a suspended job if the user has asked for it.

    To be called last, on node 0 only: the scheduler ends the job at once.

    Returns:
        The result, as the last line for the user; "" if nothing was done.

    """
    scheduler, is_suspended = node.job.scheduler, isinstance(outcome.reason, Suspended)
    # For schedulers without such a command the exit code is enough.
    if not (node.job.suspending.requeue and is_suspended and scheduler and scheduler.requeue):
        return ""
    from clusterrun.job.this_process import run_command

    command = " ".join(scheduler.requeue[:2])
    # The scheduler ends the job's processes, including this command, before the command gets its answer.
    # An ignored signal stays ignored in an executed program (signal(7)).
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answer = run_command(scheduler.requeue, node.variables)
    if answer.failure:
        return f"clusterrun: error: {scheduler} was not requeued: {command}: {answer.failure}\n"
    return f"clusterrun: {scheduler} was requeued ({command})\n"
