"""The end of a job in words: the cause first, then everybody else, last whose exit code it is."""

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
    """Return what standard error shows of the end of a job, without a trailing newline.

    Args:
        outcome: how the job, or its last attempt, ended.
        already_shown: the worker's standard error just went to ours, unprefixed, being the only
            one: don't repeat it.
        hidden: the option that kept the lines of the worker that failed off the screen; "" if
            none did.
        had_input: the worker that failed could read standard input, which was not /dev/null.
        local_time: turns seconds since the epoch into the time to show.

    Returns:
        The lines for the user; "" if there is nothing to say.

    """
    lines = _reason_lines(
        outcome,
        already_shown=already_shown,
        hidden=hidden,
        had_input=had_input,
        local_time=local_time,
    )
    lines += [f"  not restarted: {outcome.no_restart}"] if outcome.no_restart else []
    lines += [f"  SIGKILL did not end {survivor}" for survivor in outcome.survivors]
    # The line that says whose exit code it is closes the report.
    return "\n".join([*lines, *_last_line(outcome)])


def explain_wait(interrupted: Interrupted) -> str:
    """Return what standard error shows where a signal came before all nodes did."""
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
    """Return what standard error shows between two attempts, without a trailing newline.

    Args:
        outcome: how the attempt ended that is followed by another.
        next_attempt: number of that other, from 1.
        max_restarts: how many restarts there may be in all.
        local_time: turns seconds since the epoch into the time to show.

    """
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


def _reason_lines(
    outcome: Outcome, *, already_shown: bool, hidden: str, had_input: bool, local_time: LocalTime
) -> list[str]:
    if (cause := outcome.cause) is not None:
        others = [fate for fate in outcome.fates if fate.rank != cause.rank]
        told = cause_lines(cause, already_shown=already_shown, local_time=local_time)
        told += [f"  its lines were not printed: {hidden}"] if hidden else []
        told += [] if had_input else _missing_input_lines(cause)
        return told + group_lines(others)
    match outcome.reason:
        case Interrupted(number):
            return _interruption_lines(number, outcome.fates)
        case NodeLost(node_rank, host, how):
            return [f"clusterrun: error: node {node_rank} ({host}) {how}; the job was ended"]
        case HelperFailed(name, how, _):
            return [f"clusterrun: error: its own {name} {how}; the job was ended"]
        case WorkerFailed() | Succeeded() | OutputGone():
            return []
        case _:
            assert_never(outcome.reason)


def _missing_input_lines(cause: Fate) -> list[str]:
    if not exception_of(cause).startswith(("EOFError", "bdb.BdbQuit")):
        return []
    option = f"--stdin-rank {cause.rank}"
    return [f"  its standard input was /dev/null: give it clusterrun's with {option}"]


def _interruption_lines(number: int, fates: tuple[Fate, ...]) -> list[str]:
    if number != signal.SIGINT:
        return group_lines(fate for fate in fates if not _went_in_order(fate))
    killed = [fate for fate in fates if fate.ending == Killed(signal.SIGKILL)]
    if not killed:
        return []
    return [f"  {ranks_of(killed)} needed SIGKILL; --shutdown-timeout gives workers longer to end"]


def _went_in_order(fate: Fate) -> bool:
    return fate.ending in (Exited(0), Killed(signal.SIGTERM)) or (
        fate.stopped_by_us and isinstance(fate.ending, NotStarted)
    )


def _last_line(outcome: Outcome) -> list[str]:
    code = outcome.exit_code
    match outcome.reason:
        case Succeeded():
            return []
        case WorkerFailed(cause):
            return [f"clusterrun: exit code {code} is rank {cause.rank}'s{_origin(cause)}"]
        case Interrupted(signal.SIGINT) if outcome.failure is None:
            # Ctrl-C gets one line, and had it at once: "interrupted: stopping ...; exit code 130".
            return []
        case Interrupted(number):
            return [
                f"clusterrun: exit code {code}: {signal_name(number)} from outside ended the job"
            ]
        case OutputGone():
            return [f"clusterrun: exit code {code}: nobody reads the output any more (SIGPIPE)"]
        case NodeLost(node_rank):
            return [f"clusterrun: exit code {code}: node {node_rank} was lost"]
        case HelperFailed(name, _, number):
            whose = f"is the {name}'s{_for_signal(number)}" if number else "is clusterrun's own"
            return [f"clusterrun: exit code {code} {whose}"]
        case _:
            assert_never(outcome.reason)


def _origin(cause: Fate) -> str:
    match cause.ending:
        case Killed(number):
            return _for_signal(number)
        case NotStarted():
            return ": it could not be started"
        case _:
            return ""


def _for_signal(number: int) -> str:
    return f": 128 + {number} for {signal_name(number)}"
