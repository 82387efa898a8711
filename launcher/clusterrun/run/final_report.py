"""The end of a job: its report, its error file for a parent, its way back into the queue, the exit code."""

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
"""Set by a scheduler that reads there why the launcher failed, as torchrun's parents do."""


def report_before_start(end: Interrupted | HelperFailed | Verdict) -> Report:
    """Return the report of a job before it began, or while this node waited for a place in it."""
    reason, why = (end.reason, end.no_restart) if isinstance(end, Verdict) else (end, "")
    outcome = Outcome(reason, attempt=0, results=(), survivors=(), no_restart=why)
    return Report(outcome, has_begun=isinstance(end, Verdict))


def report_of(
    outcome: Outcome, node: LocalNode, routes: Routes, standard_input: StandardInput
) -> Report:
    """Return the report of a job that has begun."""
    cause, hidden = outcome.cause, _hidden(outcome, routes)
    # What a worker of another node printed went to that node's terminal.
    is_alone = outcome.cause_ran_here and is_sole_writer(node.job, node.size)
    _, is_printed = routes.ways(Std.ERR, 0)
    return Report(
        outcome,
        already_shown=is_alone and is_printed and not hidden,
        hidden=hidden,
        had_input=cause is None or standard_input.is_read_by(cause.rank),
        flight_records=_flight_records(outcome, node),
    )


def _flight_records(outcome: Outcome, node: LocalNode) -> str:
    """Name the files of torch's flight recorder, if a worker was aborted, as by its watchdog."""
    if not any(result.ending == Killed(signal.SIGABRT) for result in outcome.results):
        return ""
    from clusterrun.workers.flight_records import flight_records_line

    started = min(result.clock - result.ran_for for result in outcome.results)
    return flight_records_line(
        node.environment, (result.rank for result in outcome.results), started
    )


def text_of(report: Report) -> str:
    """Return the text of the report; "" if there is nothing to say."""
    if isinstance(report.outcome.reason, Succeeded) and not report.outcome.survivors:
        return ""
    # Most jobs succeed.
    from clusterrun.report.outcome import report_text

    return report_text(report)


def copy_error_file(outcome: Outcome, environ: Mapping[str, str]) -> None:
    """Copy the error file of the cause to where the launcher's parent expects it."""
    wanted = environ.get(PARENTS_ERROR_FILE)
    if wanted and isinstance(outcome.reason, WorkerFailed) and outcome.reason.cause.error:
        # The report says the same.
        with suppress(OSError):
            Path(wanted).write_text(outcome.reason.cause.error, encoding="utf-8")


def exit_code_and_unprinted(report: Report, relay: RelayClient) -> tuple[int, str]:
    """Return the exit code, and what the relay, which has ended, has not printed."""
    outcome = report.outcome
    code: int = outcome.exit_code
    if code == ExitCode.SUCCESS and relay.output_closed:
        # The workers ended before the agent learned that their last lines have no reader.
        gone = Report(replace(outcome, reason=OutputGone()))
        return gone.outcome.exit_code, text_of(gone)
    if relay.losses == ():
        return code, ""
    from clusterrun.report.outcome import lost_output_text, silent_relay_text

    is_cause = code == ExitCode.SUCCESS
    named = ExitCode.MACHINE if is_cause else None
    if relay.losses is None:
        known = isinstance(outcome.reason, HelperFailed)
        why = "" if known else f"{silent_relay_text(relay.describe_wait_status, named)}\n"
        rest = f"{why}{text_of(report)}"
    else:
        rest = lost_output_text(relay.losses, named)
    return ExitCode.MACHINE if is_cause else code, rest


def _hidden(outcome: Outcome, routes: Routes) -> str:
    """Return what kept the lines of the worker that failed off the screen; "" if nothing did."""
    cause, tasks = outcome.cause, routes.job.tasks
    if cause is None or cause.service:
        return ""
    if tasks is None:
        return routes.hidden_by(cause.rank, cause.local_rank)
    # Each clusterrun counts its one worker as 0, and knows no other task's place on its node.
    return routes.hidden_by(cause.rank, tasks.local_rank if cause.rank == tasks.rank else None)


def requeue(node: LocalNode, outcome: Outcome) -> str:
    """Ask the scheduler to start the job again, if it is suspended and that is wanted.

    For node 0, when all else is done: a scheduler ends the job at once.

    Returns:
        What it has answered, as the last line for people; "" if nothing was asked.

    """
    scheduler, is_suspended = node.job.scheduler, isinstance(outcome.reason, Suspended)
    # Without such a command the exit code is enough.
    if not (node.job.suspending.requeue and is_suspended and scheduler and scheduler.requeue):
        return ""
    from clusterrun.job.this_process import ask

    command = " ".join(scheduler.requeue[:2])
    # The scheduler ends the job's processes, the command among them, before the command has its
    # answer. A signal that is ignored stays so in a program that is executed (signal(7)).
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answer = ask(scheduler.requeue, node.variables)
    if answer.failure:
        return f"clusterrun: error: {scheduler} was not requeued: {command}: {answer.failure}\n"
    return f"clusterrun: {scheduler} was requeued ({command})\n"
