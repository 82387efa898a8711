"""The end of a job: its report for people, its error file for a parent, the exit code."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.domain.streams import Std
from clusterrun.errors import ExitCode
from clusterrun.job.sources import REPORT_VARIABLE
from clusterrun.planning.variables import has_output_to_itself
from clusterrun.policy.messages import Verdict
from clusterrun.policy.outcome import (
    HelperFailed,
    Interrupted,
    Killed,
    Outcome,
    OutputGone,
    Succeeded,
    WorkerFailed,
)
from clusterrun.run.node import Node
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import Routes
from clusterrun.workers.terminal import StandardInput

PARENTS_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Set by a scheduler that reads there why the launcher failed, as torchrun's parents do."""


class JobEnd(Struct, frozen=True):
    """How the job ended, and the report of it."""

    outcome: Outcome
    report: str


def end_while_joining(end: Interrupted | HelperFailed | Verdict) -> JobEnd:
    """Return the end of a job before it began, or while this node waited for a place in it."""
    from clusterrun.report.outcome import explain, explain_wait

    if isinstance(end, Verdict):
        outcome = Outcome(end.reason, 0, fates=(), survivors=(), no_restart=end.no_restart)
        return JobEnd(outcome, explain(outcome))
    outcome = Outcome(end, attempt=0, fates=(), survivors=())
    return JobEnd(outcome, explain_wait(end) if isinstance(end, Interrupted) else explain(outcome))


def report_of(outcome: Outcome, node: Node, routes: Routes, standard_input: StandardInput) -> str:
    """Return the report; "" if there is nothing to say."""
    if isinstance(outcome.reason, Succeeded) and not outcome.survivors:
        return ""
    from clusterrun.report.outcome import explain

    cause = outcome.cause
    alone = has_output_to_itself(node.job, node.workers) and routes.shows(Std.ERR, 0, 0)
    # What a worker of another node printed went to that node's terminal.
    is_local = cause is not None and any(fate.rank == cause.rank for fate in outcome.fates)
    return explain(
        outcome,
        already_shown=alone and is_local,
        hidden=_hidden(outcome, routes),
        had_input=cause is None or standard_input.is_read_by(cause.rank),
        flight_records=_flight_records(outcome, node),
    )


def _flight_records(outcome: Outcome, node: Node) -> str:
    """Name the files of torch's flight recorder, if a worker was aborted, as by its watchdog."""
    if not any(fate.ending == Killed(signal.SIGABRT) for fate in outcome.fates):
        return ""
    from clusterrun.workers.flight_records import named_flight_records

    started = min(fate.clock - fate.ran_for for fate in outcome.fates)
    return named_flight_records(node.environment, (fate.rank for fate in outcome.fates), started)


def print_report(end: JobEnd, environ: Mapping[str, str], relay: RelayClient) -> None:
    """Print the report, or write it to the file from which the client of all nodes takes it."""
    file = environ.get(REPORT_VARIABLE)
    if file:
        with suppress(OSError):
            Path(file).write_text(end.report, encoding="utf-8", errors="replace")
            return
    relay.say(end.report)


def copy_error_file(outcome: Outcome, environ: Mapping[str, str]) -> None:
    """Copy the error file of the cause to where the launcher's parent expects it."""
    wanted = environ.get(PARENTS_ERROR_FILE)
    if wanted and isinstance(outcome.reason, WorkerFailed) and outcome.reason.cause.error:
        # The report says the same.
        with suppress(OSError):
            Path(wanted).write_text(outcome.reason.cause.error, encoding="utf-8")


def exit_code_and_rest(end: JobEnd, relay: RelayClient) -> tuple[int, str]:
    """Return the exit code, and what the relay, which has ended, has not printed."""
    code: int = end.outcome.exit_code
    if code == ExitCode.SUCCESS and relay.output_closed:
        # The workers ended before the agent learned that their last lines have no reader.
        from clusterrun.report.outcome import explain

        gone = replace(end.outcome, reason=OutputGone())
        return gone.exit_code, explain(gone)
    if relay.losses == ():
        return code, ""
    from clusterrun.report.outcome import describe_losses, describe_silent_relay

    if relay.losses is None:
        known = isinstance(end.outcome.reason, HelperFailed)
        why = "" if known else f"{describe_silent_relay(relay.how_it_ended)}\n"
        return code, f"{why}{end.report}"
    if code == ExitCode.SUCCESS:
        return ExitCode.MACHINE, describe_losses(relay.losses, ExitCode.MACHINE)
    return code, describe_losses(relay.losses, None)


def _hidden(outcome: Outcome, routes: Routes) -> str:
    """Return what kept the lines of the worker that failed off the screen; "" if nothing did."""
    cause, tasks = outcome.cause, routes.job.tasks
    if cause is None:
        return ""
    if tasks is None:
        return routes.hidden_by(cause.rank, cause.local_rank)
    # Each clusterrun counts its one worker as 0, and knows no other task's place on its node.
    return routes.hidden_by(cause.rank, tasks.local_rank if cause.rank == tasks.rank else None)
