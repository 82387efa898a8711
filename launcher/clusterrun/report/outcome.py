"""The report at the end of a job: the cause, then the other workers, then the exit code."""

import signal
import time
from typing import assert_never

from clusterrun.domain.outcome import (
    Exited,
    Fate,
    HelperFailed,
    Interrupted,
    Killed,
    NodeLost,
    NotStarted,
    Outcome,
    OutputGone,
    Succeeded,
    WorkerFailed,
)
from clusterrun.domain.signal_names import signal_name
from clusterrun.errors import exit_code_of_signal
from clusterrun.report.cause import LocalTime, cause_lines, circumstances, headline
from clusterrun.report.excerpt import exception_line, exception_of, excerpt
from clusterrun.report.other_workers import group_lines, ranks_of


def explain(
    outcome: Outcome,
    *,
    already_shown: bool = False,
    hidden: str = "",
    had_input: bool = True,
    local_time: LocalTime = time.localtime,
) -> str:
    """Return the report of a job, for standard error; "" if there is nothing to report.

    Args:
        outcome: how the job, or its last attempt, ended.
        already_shown: the worker's standard error was just printed without a prefix, as it is the
            only worker: its tail is not repeated.
        hidden: the option that hid the output of the worker that failed; "" if none did.
        had_input: the worker that failed could read standard input, which was not /dev/null.
        local_time: returns the local time of seconds since the epoch.

    """
    lines = _reason_lines(outcome)
    if (cause := outcome.cause) is not None:
        lines = cause_lines(cause, already_shown=already_shown, local_time=local_time)
        lines += [f"  its output was hidden by {hidden}"] if hidden else []
        lines += [] if had_input else _missing_input_lines(cause)
        lines += group_lines(fate for fate in outcome.fates if fate.rank != cause.rank)
    lines += [f"  not restarted: {outcome.no_restart}"] if outcome.no_restart else []
    lines += [f"  SIGKILL did not end {survivor}" for survivor in outcome.survivors]
    return "\n".join([*lines, *_exit_code_line(outcome)])


def explain_wait(interrupted: Interrupted) -> str:
    """Return the line for a signal that ended the wait for the other nodes."""
    number = interrupted.number
    what = "interrupted" if number == signal.SIGINT else signal_name(number)
    code = exit_code_of_signal(number)
    return f"clusterrun: {what} while waiting for the other nodes; exit code {code}"


def explain_restart(
    outcome: Outcome,
    next_attempt: int,
    max_restarts: int,
    *,
    local_time: LocalTime = time.localtime,
) -> str:
    """Return the lines between the attempt that ended with ``outcome`` and the next one."""
    lines = []
    if isinstance(outcome.reason, WorkerFailed):
        cause = outcome.reason.cause
        lines += [headline(cause), *circumstances(cause, local_time)]
        if cause.tail and not exception_line(cause.tail):
            lines += [f"  its last line: {line}" for line in excerpt(cause.tail)[-1:]]
        lines += [f"  its log: {cause.log}"] if cause.log else []
    return "\n".join(
        [*lines, f"clusterrun: restarting all workers (restart {next_attempt} of {max_restarts})"]
    )


def _reason_lines(outcome: Outcome) -> list[str]:
    match outcome.reason:
        case Interrupted(number):
            return _interruption_lines(number, outcome.fates)
        case NodeLost(node_rank, host, how):
            return [f"clusterrun: error: node {node_rank} ({host}) {how}; the job was stopped"]
        case HelperFailed(name, how, _):
            return [f"clusterrun: error: its {name} {how}; the job was stopped"]
        case WorkerFailed() | Succeeded() | OutputGone():
            return []
        case _:
            assert_never(outcome.reason)


def _missing_input_lines(cause: Fate) -> list[str]:
    if not exception_of(cause).startswith(("EOFError", "bdb.BdbQuit")):
        return []
    option = f"--stdin-rank {cause.rank}"
    return [f"  its standard input was /dev/null; to pass it clusterrun's, use {option}"]


def _interruption_lines(number: int, fates: tuple[Fate, ...]) -> list[str]:
    if number != signal.SIGINT:
        return group_lines(fate for fate in fates if not _ended_as_asked(fate))
    killed = [fate for fate in fates if fate.ending == Killed(signal.SIGKILL)]
    if not killed:
        return []
    return [f"  {ranks_of(killed)} needed SIGKILL; --shutdown-timeout gives workers more time"]


def _ended_as_asked(fate: Fate) -> bool:
    return fate.ending in (Exited(0), Killed(signal.SIGTERM)) or (
        fate.stopped_by_us and isinstance(fate.ending, NotStarted)
    )


def _exit_code_line(outcome: Outcome) -> list[str]:
    """Return the last line of the report: the exit code, and where it comes from."""
    if isinstance(outcome.reason, Succeeded):
        return []
    if outcome.reason == Interrupted(signal.SIGINT) and outcome.failure is None:
        # For Ctrl-C the exit code was printed at once: "interrupted: stopping ...; exit code 130".
        return []
    return [f"clusterrun: exit code {outcome.exit_code}{_exit_code_origin(outcome)}"]


def _exit_code_origin(outcome: Outcome) -> str:
    match outcome.reason:
        case WorkerFailed(cause):
            return f", from rank {cause.rank}{_cause_of_code(cause)}"
        case Interrupted(number):
            return f": clusterrun received {signal_name(number)}"
        case OutputGone():
            return ": the reader of the output has gone (SIGPIPE)"
        case NodeLost(node_rank):
            return f": node {node_rank} was lost"
        case HelperFailed(name, _, number):
            return (
                f", from the {name}{_for_signal(number)}" if number else ", from clusterrun itself"
            )
        case Succeeded():
            return ""
        case _:
            assert_never(outcome.reason)


def _cause_of_code(cause: Fate) -> str:
    match cause.ending:
        case Killed(number):
            return _for_signal(number)
        case NotStarted():
            return ": could not be started"
        case _:
            return ""


def _for_signal(number: int) -> str:
    return f": 128 + {number} for {signal_name(number)}"
