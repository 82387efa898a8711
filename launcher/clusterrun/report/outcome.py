"""The report at the end of a job, as text: the cause, the other workers, and the exit code.

``report_text`` composes it from the data in ``policy.outcome``.
"""

import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from clusterrun.bounds import counted, named_ranks
from clusterrun.descriptor_output import LostOutput
from clusterrun.errors import exit_code_of_signal, printable
from clusterrun.policy.cause import is_consequence
from clusterrun.policy.notices import lost
from clusterrun.policy.outcome import (
    EarlierExits,
    EndedEarly,
    Exited,
    ExitStatus,
    HangSign,
    HelperFailed,
    Hung,
    Interrupted,
    Killed,
    NodeLost,
    NotReady,
    NotStarted,
    NotSuspended,
    Outcome,
    OutputGone,
    Replacement,
    Report,
    RestartProgress,
    Succeeded,
    Suspended,
    WorkerFailed,
    WorkerResult,
)
from clusterrun.policy.tracebacks import plain_lines
from clusterrun.report.excerpt import decode_error_file, exception_line, exception_of, excerpt
from clusterrun.signals import signal_name


def report_text(report: Report) -> str:
    """Return the report for standard error; "" if there is nothing to report."""
    outcome = report.outcome
    if not report.has_begun and isinstance(outcome.reason, Interrupted):
        return _interrupted_wait(outcome.reason.number)
    lines = _reason_lines(outcome)
    if (cause := outcome.cause) is not None:
        lines = _cause_lines(cause, already_shown=report.already_shown)
        if isinstance(outcome.reason, WorkerFailed):
            lines[0] += _earlier(cause, outcome.reason.earlier)
        lines += [f"  its output was hidden by {report.hidden}"] if report.hidden else []
        lines += [] if report.had_input else _missing_input_lines(cause)
        lines += _group_lines(result for result in outcome.results if result.rank != cause.rank)
    lines += [f"  {report.flight_records}"] if report.flight_records else []
    lines += [f"  not restarted: {outcome.no_restart}"] if outcome.no_restart else []
    lines += [f"  SIGKILL did not end {survivor}" for survivor in outcome.survivors]
    return _text([*lines, *_exit_code_line(outcome)])


def restart_text(outcome: Outcome, max_restarts: int) -> str:
    """Return the lines that are printed between the attempt that ended and the next one."""
    progress = outcome.progress or RestartProgress(outcome.attempt + 1)
    lines = [_replacement_line(each) for each in progress.replacements]
    match outcome.reason:
        case WorkerFailed(cause, earlier=earlier):
            lines += [_headline(cause) + _earlier(cause, earlier), *_circumstances(cause)]
            if cause.tail and not exception_line(cause.tail):
                lines += [f"  its last line: {line}" for line in excerpt(cause.tail)[-1:]]
            lines += [f"  its log: {cause.log}"] if cause.log else []
            which = f"restart {progress.restarts} of {max_restarts}"
        case Hung() as hang:
            lines += _hang_lines(hang, "clusterrun: ")
            which = f"restart {progress.restarts} of {max_restarts}"
        case _:
            which = f"{counted(progress.losses, 'node')} lost so far" if progress.losses else ""
    if isinstance(outcome.reason, NodeLost) and not progress.replacements:
        # The lease of its workers expired, but the node is a member again.
        lines.append(f"clusterrun: {lost(outcome.reason)}")
    where = f" on {counted(progress.nodes, 'node')}" if progress.nodes else ""
    how_often = f" ({which})" if which else ""
    return _text([*lines, f"clusterrun: restarting all workers{where}{how_often}"])


def _text(lines: Iterable[str]) -> str:
    # Python aligns the carets below a source line with tabs.
    return "\n".join(printable(line, "\t") for line in lines)


def _replacement_line(replacement: Replacement) -> str:
    host, what = replacement.host, f"clusterrun: {lost(replacement.lost)}"
    if not host:
        return what
    is_back = host == replacement.lost.host
    return f"{what}; {'it has joined again' if is_back else f'{host} takes its place'}"


# Reasons other than a failed worker.


def _interrupted_wait(number: int) -> str:
    what = "interrupted" if number == signal.SIGINT else f"received {signal_name(number)}"
    code = exit_code_of_signal(number)
    return f"clusterrun: {what} before any worker was started; exit code {code}"


def _reason_lines(outcome: Outcome) -> list[str]:
    match outcome.reason:
        case Interrupted(number):
            return _interruption_lines(number, outcome.results)
        case NodeLost() as node:
            return [f"clusterrun: error: {lost(node)}; the job was stopped"]
        case HelperFailed(name, how, _):
            return [f"clusterrun: error: the {name} {how}; the job was stopped"]
        case Suspended(silent=silent):
            # Services had nothing to save.
            ranks = [result for result in outcome.results if not result.service]
            others = [result for result in ranks if result.rank not in silent]
            return [*_silent_lines(silent), *_failures_at_exit(others)]
        case NotSuspended():
            return _late_lines(outcome.reason)
        case Hung():
            return _hang_lines(outcome.reason, "clusterrun: error: ")
        case WorkerFailed() | Succeeded() | OutputGone():
            return []
        case _:
            assert_never(outcome.reason)


def _interruption_lines(number: int, results: Sequence[WorkerResult]) -> list[str]:
    if number != signal.SIGINT:
        return _group_lines(result for result in results if not _ended_as_asked(result))
    killed = [
        result
        for result in results
        if result.exit_status == Killed(signal.SIGKILL) and not result.killed_by_others
    ]
    if not killed:
        return []
    return [f"  {_worker_names(killed)} needed SIGKILL; --shutdown-timeout gives workers more time"]


def _ended_as_asked(result: WorkerResult) -> bool:
    return result.exit_status in (Exited(0), Killed(signal.SIGTERM)) or (
        result.stopped_by_us and isinstance(result.exit_status, NotStarted)
    )


def _late_lines(late: NotSuspended) -> list[str]:
    who = named_ranks(late.unsaved) if late.unsaved else "the ranks"
    if late.step is None:
        when = f"{late.grace:g} s (--suspend-grace) after {late.by}"
        return [f"clusterrun: error: not suspended: the nodes of {who} had not answered {when}"]
    when = (
        f"{late.grace:g} s (--suspend-grace) after all ranks were asked to save at step {late.step}"
    )
    if late.was_cut_short:
        when = f"at step {late.step} before the second request"
    first = f"clusterrun: error: not suspended: {who} had not saved {when}"
    return [first, *_silent_lines(late.silent)]


def _silent_lines(silent: Sequence[int]) -> list[str]:
    return [f"  {named_ranks(silent)} never called suspend.requested()"] if silent else []


def _failures_at_exit(results: Sequence[WorkerResult]) -> list[str]:
    """Return a line for each exit status other than 0 of ranks that had saved."""
    ranks: dict[ExitStatus, list[WorkerResult]] = {}
    for result in results:
        if result.exit_status != Exited(0):
            ranks.setdefault(result.exit_status, []).append(result)
    return [
        f"  {_worker_names(alike)} had saved, and then ended with {exit_status_text(exit_status)}"
        for exit_status, alike in ranks.items()
    ]


HANG_SIGNS = {
    HangSign.SILENT: "no rank printed or exited",
    HangSign.STILL: "ranks printed, but no main thread ran",
    HangSign.BEHIND: "ranks printed, but some were behind in NCCL, and none made progress",
}


def _hang_lines(hang: Hung, start: str) -> list[str]:
    seconds = f"{round(hang.seconds, 1):g} s"
    first = f"{start}the job hung: {HANG_SIGNS[hang.sign]} for {seconds} (--hang-timeout)"
    who = [f"  the others waited for {named_ranks(hang.stragglers)}"] if hang.stragglers else []
    return [first, *who, *([f"  {hang.where}"] if hang.where else [])]


# The worker that caused the end.


def _cause_lines(cause: WorkerResult, *, already_shown: bool) -> list[str]:
    tail = [] if already_shown else _block(excerpt(cause.tail))
    error = decode_error_file(cause.error)
    if (words := plain_lines(error)) and words[-1] not in plain_lines(cause.tail):
        tail += ["", "  in its error file:", *_block(excerpt(error))[1:]]
    if cause.hung:
        tail += ["", "  it did not exit after its failure, and was killed; its stack:"]
        tail += _block(cause.hung.split("\n"))[1:]
    return [
        _headline(cause),
        *_circumstances(cause),
        *([*tail, ""] if tail else []),
        *([f"  its log: {cause.log}"] if cause.log else []),
    ]


def _block(lines: list[str]) -> list[str]:
    return ["", *(f"    {line}".rstrip() for line in lines)] if lines else []


def _headline(cause: WorkerResult) -> str:
    worker = f"clusterrun: {cause.worker} on {cause.host}"
    match cause.exit_status:
        case NotStarted():
            return f"{worker} could not be started: {exit_status_text(cause.exit_status)}"
        case Killed() if cause.is_oom_victim:
            return f"{worker} was killed by SIGKILL: out of memory"
        case Killed():
            return f"{worker} was killed by {exit_status_text(cause.exit_status)}"
        case Exited(code):
            return f"{worker} failed: {exception_of(cause) or f'exit code {code}'}"
        case EndedEarly() | NotReady():
            return f"{worker} {exit_status_text(cause.exit_status)}"
        case _:
            assert_never(cause.exit_status)


def _earlier(cause: WorkerResult, exits: EarlierExits | None) -> str:
    """Return " (rank 1 had exited with code 0 1.20 s before)"; "" if no peer had."""
    if exits is None:
        return ""
    who = f"{cause.service} {named_ranks(exits.ranks)}".strip()
    who += f" and {exits.more} more" if exits.more else ""
    last = ", the last" if len(exits.ranks) > 1 else ""
    when = f"{last} {_duration(exits.seconds)} before"
    return f" ({who} had exited with code 0{when})"


def _circumstances(cause: WorkerResult) -> list[str]:
    """Return the local rank, the pid and the time, and common causes of the exit status."""
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(cause.clock))
    is_in_headline = not isinstance(cause.exit_status, Exited) or not exception_of(cause)
    parts = [] if is_in_headline else [exit_status_text(cause.exit_status)]
    parts += [f"local rank {cause.local_rank}"]
    parts += [f"pid {cause.pid}"] if cause.pid else []
    parts += [f"at {clock}"]
    if not isinstance(cause.exit_status, NotStarted):
        parts += [f"{_duration(cause.ran_for)} after its start"]
    reason = f"out of memory: {cause.out_of_memory}" if cause.out_of_memory else _hint(cause)
    return [f"  {', '.join(parts)}"] + ([f"  {reason}"] if reason else [])


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _hint(cause: WorkerResult) -> str:
    # If the worker printed the cause itself, a guess only distracts.
    is_known = exception_of(cause) or "Fatal Python error: " in cause.tail
    return "" if is_known else _lacks_local_rank(cause.tail) or _common_cause(cause.exit_status)


def _lacks_local_rank(tail: str) -> str:
    """Return the option that a script for torch.distributed.launch needs, by argparse's error."""
    last = tail.rstrip().rpartition("\n")[2]
    for name in ("local_rank", "local-rank"):
        if "the following arguments are required:" in last and f"--{name}" in last:
            option = "--pass-local-rank" if name == "local-rank" else "--pass-local-rank=local_rank"
            return f"it requires its local rank as an argument: add {option}"
    if "unrecognized arguments: --local-rank=" in last:
        return (
            "remove --pass-local-rank; for a script for torch 1, use --pass-local-rank=local_rank"
        )
    return ""


def _missing_input_lines(cause: WorkerResult) -> list[str]:
    if not exception_of(cause).startswith(("EOFError", "bdb.BdbQuit")):
        return []
    return ["  its standard input was /dev/null; only rank 0 reads clusterrun's standard input"]


# The other workers: one line for all that ended in the same way.


def _worker_names(results: Iterable[WorkerResult]) -> str:
    """Return the workers' names in messages: "ranks 0-3, server rank 2"."""
    ranks: dict[str, list[int]] = {}
    for result in results:
        own = result.rank_in_service if result.service else result.rank
        ranks.setdefault(result.service, []).append(own)
    return ", ".join(
        f"{service} {named_ranks(own)}" if service else named_ranks(own)
        for service, own in ranks.items()
    )


def _group_lines(results: Iterable[WorkerResult]) -> list[str]:
    groups: dict[str, list[WorkerResult]] = {}
    for result in results:
        groups.setdefault(_role(result), []).append(result)
    return [
        f"  {_worker_names(group)}: {role}{_exception(group)}" for role, group in groups.items()
    ]


def _role(result: WorkerResult) -> str:
    words = "out of memory" if result.is_oom_victim else exit_status_text(result.exit_status)
    match result.exit_status:
        case NotStarted() if result.stopped_by_us:
            return "not started"
        case NotStarted():
            return f"not started, {words}"
        case Killed(signal.SIGTERM) if result.stopped_by_us:
            return "stopped by clusterrun"
        case Killed(signal.SIGKILL) if result.stopped_by_us and not result.killed_by_others:
            return "stopped by clusterrun, needed SIGKILL"
        case _ if result.stopped_by_us:
            return f"stopped by clusterrun, {words}"
        case Exited(0):
            return f"ended earlier, {words}"
        case Exited() | Killed(signal.SIGABRT) if is_consequence(result):
            return f"failed because a peer was gone, {words}"
        case _:
            return f"failed too, {words}"


def _exception(group: list[WorkerResult]) -> str:
    # A worker that a signal killed may have printed a traceback long before.
    exceptions = [
        exception_of(result) for result in group if isinstance(result.exit_status, Exited)
    ]
    if not exceptions or not exceptions[0] or group[0].exit_status == Exited(0):
        return ""
    first = exceptions[0]
    return f": {first}" if len(set(exceptions)) == 1 else f"; {group[0].worker}: {first}"


# The exit code, and where it comes from.


def _exit_code_line(outcome: Outcome) -> list[str]:
    if isinstance(outcome.reason, Succeeded):
        return []
    if outcome.reason == Interrupted(signal.SIGINT) and outcome.failure is None:
        # For Ctrl-C the exit code was printed at once: "interrupted: stopping ...; exit code 130".
        return []
    return [f"clusterrun: exit code {outcome.exit_code}{_exit_code_origin(outcome)}"]


def _exit_code_origin(outcome: Outcome) -> str:
    match outcome.reason:
        case WorkerFailed(fails_check=True):
            return ": a node has failed its check"
        case WorkerFailed(cause):
            return f", from {cause.worker}{_cause_of_code(cause)}"
        case Interrupted(number):
            return f": clusterrun received {signal_name(number)}"
        case OutputGone():
            return ": the reader of the output has gone (SIGPIPE)"
        case NodeLost() as node:
            return f": {node} was lost"
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
        case Succeeded():
            return ""
        case _:
            assert_never(outcome.reason)


def _cause_of_code(cause: WorkerResult) -> str:
    match cause.exit_status:
        case Killed(number):
            return _for_signal(number)
        case NotStarted():
            return ": could not be started"
        case Exited() | EndedEarly() | NotReady():
            return ""
        case _:
            assert_never(cause.exit_status)


def _for_signal(number: int) -> str:
    return f": 128 + {number} for {signal_name(number)}"


# Lost output.


def lost_output_text(losses: Sequence[LostOutput], exit_code: int | None) -> str:
    """Return the last line of a report: what was lost, and the exit code that this causes."""
    first = losses[0]
    what = f"{_bytes(sum(loss.size for loss in losses))} of {first.name}"
    if len(losses) > 1:
        what += f" and {len(losses) - 1} other{'s' if len(losses) > 2 else ''}"
    why = first.why or "not enough time at the end"
    return _last_line(f"{what} could not be written: {why}", exit_code)


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} byte{'s' if count > 1 else ''}"
    return f"{count / 1000:.0f} kB" if count < 1_000_000 else f"{count / 1_000_000:.1f} MB"


def silent_relay_text(how: str, exit_code: int | None) -> str:
    """Return the last line of a report if the relay was killed or hung, with the exit code."""
    return _last_line(f"its relay {how}: the last lines of workers may be missing", exit_code)


def _last_line(what: str, exit_code: int | None) -> str:
    code = "" if exit_code is None else f"exit code {exit_code}: "
    return f"clusterrun: {code}{what}"


# Exit statuses of workers.

_MEANINGS: Mapping[int, str] = {
    signal.SIGABRT: "abort",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGSYS: "bad system call",
}


def exit_status_text(exit_status: ExitStatus) -> str:
    """Return "exit code 7", "SIGSEGV (segmentation fault)" or the step of the start that failed."""
    match exit_status:
        case Exited(code):
            return f"exit code {code}"
        case Killed(number):
            meaning = _MEANINGS.get(number)
            return signal_name(number) + (f" ({meaning})" if meaning else "")
        case NotStarted(step, error):
            return f"{step}: {error}"
        case EndedEarly():
            return "exited with code 0 while the job was still running: a service must keep running"
        case NotReady(seconds, why):
            return f"was not ready within {seconds:g} s: {why}"
        case _:
            assert_never(exit_status)


_FROM_OUTSIDE = "clusterrun did not send it; the scheduler or a person did"

_CAUSES: Mapping[int, str] = {
    signal.SIGABRT: (
        "usually a failed check in native code, an uncaught C++ exception,"
        " or NCCL's watchdog after a collective timed out"
    ),
    signal.SIGBUS: (
        "often a full /dev/shm, which data loaders and NCCL use: check df -h /dev/shm;"
        " for a container, raise --shm-size"
    ),
    signal.SIGFPE: "an integer division by zero in native code",
    signal.SIGHUP: _FROM_OUTSIDE,
    signal.SIGILL: "native code built for another kind of CPU",
    signal.SIGINT: _FROM_OUTSIDE,
    signal.SIGKILL: (
        "clusterrun did not send it; the kernel (out of memory), the scheduler (at a limit) or a"
        " person did"
    ),
    signal.SIGPIPE: "it wrote to a pipe or socket whose reader has gone",
    signal.SIGSEGV: (
        "usually a bug in native code or a stack overflow;"
        " --env PYTHONFAULTHANDLER=1 prints the Python stack"
    ),
    signal.SIGSYS: "a seccomp filter, as containers have, forbids a system call",
    signal.SIGTERM: _FROM_OUTSIDE,
    signal.SIGUSR1: "it has no handler for it",
    signal.SIGUSR2: "it has no handler for it",
    signal.SIGXCPU: "it reached the CPU time limit: check ulimit -t",
    signal.SIGXFSZ: "it reached the file size limit: check ulimit -f",
}


def _common_cause(exit_status: ExitStatus) -> str:
    """Return common causes of an exit status; "" if there are none."""
    match exit_status:
        case Exited(code):
            return _meaning_of_shells(code)
        case Killed(number):
            return _CAUSES.get(number, "")
        case NotStarted() | EndedEarly() | NotReady():
            return ""
        case _:
            assert_never(exit_status)


def _meaning_of_shells(code: int) -> str:
    # A wrapper script passes on the exit code of its program.
    if code == 126:
        return "a shell exits with 126 if it may not execute a program"
    if code == 127:
        return "a shell exits with 127 if it can't find a program"
    if 128 < code < 128 + signal.NSIG:
        return f"a shell exits with {code} if {signal_name(code - 128)} ended its program"
    return ""
