"""The lines on the worker that caused the end: which it was, how it ended, and its last output."""

import signal
import time
from collections.abc import Callable
from typing import assert_never

from clusterrun.policy.outcome import Exited, Fate, Killed, NotStarted
from clusterrun.policy.tracebacks import plain_lines
from clusterrun.report.excerpt import decode_error_file, exception_of, excerpt
from clusterrun.report.worker_endings import common_cause, in_words

LocalTime = Callable[[float], time.struct_time]
"""Returns the local time of seconds since the epoch."""


def cause_lines(cause: Fate, *, already_shown: bool, local_time: LocalTime) -> list[str]:
    """Return the headline, the circumstances, and the tails of standard error and error file."""
    tail = [] if already_shown else _block(excerpt(cause.tail))
    error = decode_error_file(cause.error)
    if (words := plain_lines(error)) and words[-1] not in plain_lines(cause.tail):
        tail += ["", "  in its error file:", *_block(excerpt(error))[1:]]
    return [
        headline(cause),
        *circumstances(cause, local_time),
        *tail,
        *_stack_lines(cause),
        *([""] if tail or cause.hung else []),
        *([f"  its log: {cause.log}"] if cause.log else []),
    ]


def headline(cause: Fate) -> str:
    """Return the line with the rank that failed, and how."""
    worker = f"clusterrun: rank {cause.rank} on {cause.host}"
    match cause.ending:
        case NotStarted():
            return f"{worker} could not be started: {in_words(cause.ending)}"
        case Killed(signal.SIGKILL) if cause.out_of_memory:
            return f"{worker} was killed by SIGKILL: out of memory"
        case Killed():
            return f"{worker} was killed by {in_words(cause.ending)}"
        case Exited(code):
            exception = exception_of(cause)
            return f"{worker} failed: {exception or f'exit code {code}'}"
        case _:
            assert_never(cause.ending)


def circumstances(cause: Fate, local_time: LocalTime) -> list[str]:
    """Return the local rank, the pid and the time, and common causes of such an end."""
    clock = time.strftime("%Y-%m-%d %H:%M:%S", local_time(cause.clock))
    is_in_headline = not isinstance(cause.ending, Exited) or not exception_of(cause)
    parts = [] if is_in_headline else [in_words(cause.ending)]
    parts += [f"local rank {cause.local_rank}"]
    parts += [f"pid {cause.pid}"] if cause.pid else []
    parts += [f"at {clock}"]
    if not isinstance(cause.ending, NotStarted):
        parts += [f"{_duration(cause.ran_for)} after its start"]
    reason = f"out of memory: {cause.out_of_memory}" if cause.out_of_memory else _hint(cause)
    return [f"  {', '.join(parts)}"] + ([f"  {reason}"] if reason else [])


def _stack_lines(cause: Fate) -> list[str]:
    """Return where it hung after its failure."""
    if not cause.hung:
        return []
    return [
        "",
        "  it did not exit after its failure, and was killed here:",
        *_block(cause.hung.split("\n"))[1:],
    ]


def _hint(cause: Fate) -> str:
    # If the worker printed the cause itself, guesses only distract.
    is_known = exception_of(cause) or "Fatal Python error: " in cause.tail
    return "" if is_known else _lacks_local_rank(cause.tail) or common_cause(cause.ending)


def _lacks_local_rank(tail: str) -> str:
    """Return what to type for a script for torch.distributed.launch, known by argparse's error."""
    last = tail.rstrip().rpartition("\n")[2]
    for name in ("local_rank", "local-rank"):
        if "the following arguments are required:" in last and f"--{name}" in last:
            option = "--pass-local-rank" if name == "local-rank" else "--pass-local-rank=local_rank"
            return f"it requires its local rank as an argument: add {option}"
    if "unrecognized arguments: --local-rank=" in last:
        return "leave --pass-local-rank out; for a script for torch 1, use --pass-local-rank=local_rank"
    return ""


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _block(lines: list[str]) -> list[str]:
    return ["", *(f"    {line}".rstrip() for line in lines)] if lines else []
