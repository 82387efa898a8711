"""The report at the end of a job: the cause, then the other workers, then the exit code."""

import signal
import time
from collections.abc import Sequence
from typing import assert_never

from clusterrun.domain.counts import counted
from clusterrun.domain.ranks import named_ranks
from clusterrun.domain.signal_names import signal_name
from clusterrun.domain.streams import LostOutput
from clusterrun.errors import exit_code_of_signal
from clusterrun.policy.outcome import (
    Ending,
    Exited,
    Fate,
    HelperFailed,
    Hung,
    Interrupted,
    Killed,
    NodeLost,
    NodesJoined,
    NotStarted,
    NotSuspended,
    Outcome,
    OutputGone,
    Replacement,
    RestartProgress,
    Succeeded,
    Suspended,
    WorkerFailed,
)
from clusterrun.report.cause import LocalTime, cause_lines, circumstances, headline
from clusterrun.report.excerpt import exception_line, exception_of, excerpt
from clusterrun.report.worker_endings import group_lines, in_words


def explain(  # noqa: PLR0913 - what the end of a job leaves to say
    outcome: Outcome,
    *,
    already_shown: bool = False,
    hidden: str = "",
    had_input: bool = True,
    flight_records: str = "",
    local_time: LocalTime = time.localtime,
) -> str:
    """Return the report of a job, for standard error; "" if there is nothing to report.

    Args:
        outcome: how the job, or its last attempt, ended.
        already_shown: the worker's standard error was just printed without a prefix, as it is the
            only worker: its tail is not repeated.
        hidden: the option that hid the output of the worker that failed; "" if none did.
        had_input: the worker that failed could read standard input, which was not /dev/null.
        flight_records: names the files of torch's flight recorder; "" if there are none.
        local_time: returns the local time of seconds since the epoch.

    """
    lines = _reason_lines(outcome)
    if (cause := outcome.cause) is not None:
        lines = cause_lines(cause, already_shown=already_shown, local_time=local_time)
        lines += [f"  its output was hidden by {hidden}"] if hidden else []
        lines += [] if had_input else _missing_input_lines(cause)
        lines += group_lines(fate for fate in outcome.fates if fate.rank != cause.rank)
    lines += [f"  {flight_records}"] if flight_records else []
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
    progress = outcome.progress or RestartProgress(next_attempt)
    lines = [_replacement_line(each) for each in progress.replacements]
    if isinstance(outcome.reason, WorkerFailed):
        cause = outcome.reason.cause
        lines += [headline(cause), *circumstances(cause, local_time)]
        if cause.tail and not exception_line(cause.tail):
            lines += [f"  its last line: {line}" for line in excerpt(cause.tail)[-1:]]
        lines += [f"  its log: {cause.log}"] if cause.log else []
        which = f"restart {progress.restarts} of {max_restarts}"
    elif isinstance(outcome.reason, Hung):
        lines += _hang_lines(outcome.reason, "clusterrun: ")
        which = f"restart {progress.restarts} of {max_restarts}"
    elif isinstance(outcome.reason, NodesJoined):
        which = f"{outcome.reason.hosts} joined"
    else:
        which = f"{counted(progress.losses, 'node')} lost so far"
    where = f" on {counted(progress.nodes, 'node')}" if progress.nodes else ""
    return "\n".join([*lines, f"clusterrun: restarting all workers{where} ({which})"])


def _replacement_line(replacement: Replacement) -> str:
    lost, host = replacement.lost, replacement.host
    what = f"clusterrun: node {lost.node_rank} ({lost.host}) {lost.how}"
    if not host:
        return what
    return f"{what}; {'it has joined again' if host == lost.host else f'{host} takes its place'}"


def _reason_lines(outcome: Outcome) -> list[str]:
    match outcome.reason:
        case Interrupted(number):
            return _interruption_lines(number, outcome.fates)
        case NodeLost(node_rank, host, how):
            return [f"clusterrun: error: node {node_rank} ({host}) {how}; the job was stopped"]
        case HelperFailed(name, how, _):
            return [f"clusterrun: error: its {name} {how}; the job was stopped"]
        case Suspended(silent=silent):
            others = [fate for fate in outcome.fates if fate.rank not in silent]
            return [*_silent_lines(silent), *_failures_at_exit(others)]
        case NotSuspended():
            return _late_lines(outcome.reason)
        case Hung():
            return _hang_lines(outcome.reason, "clusterrun: error: ")
        case WorkerFailed() | Succeeded() | OutputGone() | NodesJoined():
            return []
        case _:
            assert_never(outcome.reason)


def _late_lines(late: NotSuspended) -> list[str]:
    who = named_ranks(late.unsaved) if late.unsaved else "the ranks"
    when = f"{late.grace:g} s (--suspend-grace) after all were to save at step {late.step}"
    if late.is_given_up:
        when = f"at step {late.step} when it was asked for again"
    first = f"clusterrun: error: not suspended: {who} had not saved {when}"
    return [first, *_silent_lines(late.silent)]


def _hang_lines(hang: Hung, start: str) -> list[str]:
    seconds = f"{round(hang.seconds, 1):g} s"
    first = f"{start}the job hung: no rank printed or exited for {seconds} (--hang-timeout)"
    who = [f"  the others waited for {named_ranks(hang.waited_for)}"] if hang.waited_for else []
    return [first, *who, *([f"  {hang.where}"] if hang.where else [])]


def _failures_at_exit(fates: Sequence[Fate]) -> list[str]:
    """Return a line for all ranks that had saved and then did not end with 0 in the same way."""
    ranks: dict[Ending, list[int]] = {}
    for fate in fates:
        if fate.ending != Exited(0):
            ranks.setdefault(fate.ending, []).append(fate.rank)
    return [
        f"  {named_ranks(alike)} had saved, and then ended with {in_words(ending)}"
        for ending, alike in ranks.items()
    ]


def _silent_lines(silent: Sequence[int]) -> list[str]:
    return [f"  {named_ranks(silent)} never called suspend.requested()"] if silent else []


def _missing_input_lines(cause: Fate) -> list[str]:
    if not exception_of(cause).startswith(("EOFError", "bdb.BdbQuit")):
        return []
    return ["  its standard input was /dev/null; rank 0 has clusterrun's"]


def _interruption_lines(number: int, fates: tuple[Fate, ...]) -> list[str]:
    if number != signal.SIGINT:
        return group_lines(fate for fate in fates if not _ended_as_asked(fate))
    killed = [fate.rank for fate in fates if fate.ending == Killed(signal.SIGKILL)]
    if not killed:
        return []
    return [f"  {named_ranks(killed)} needed SIGKILL; --shutdown-timeout gives workers more time"]


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
        case Suspended(by, step, seconds):
            return f": suspended at step {step}, {seconds:.2f} s after {by}"
        case NotSuspended(by):
            return f": not all ranks saved in time after {by}"
        case Hung():
            return ": the job hung"
        case Succeeded() | NodesJoined():
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


def describe_losses(losses: Sequence[LostOutput], exit_code: int | None) -> str:
    """Return the last line of a report: what was lost, and the exit code if that is its cause."""
    first = losses[0]
    what = f"{_bytes(sum(loss.size for loss in losses))} of {first.name}"
    if len(losses) > 1:
        what += f" and {len(losses) - 1} other{'s' if len(losses) > 2 else ''}"
    why = first.why or "not enough time at the end"
    code = "" if exit_code is None else f"exit code {exit_code}: "
    return f"clusterrun: {code}{what} could not be written: {why}"


def describe_silent_relay(how: str) -> str:
    """Return the line on the last lines of workers, which the relay may not have printed."""
    return f"clusterrun: its relay {how}: the last lines of workers may be missing"


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} byte{'s' if count > 1 else ''}"
    return f"{count / 1000:.0f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"
