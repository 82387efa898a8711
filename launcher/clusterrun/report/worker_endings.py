"""How workers ended, in words: the ending, its common causes, and a line for all that ended alike."""

import signal
from collections.abc import Iterable, Mapping
from typing import assert_never

from clusterrun.domain.ranks import named_ranks
from clusterrun.domain.signal_names import signal_name
from clusterrun.policy.outcome import Ending, Exited, Fate, Killed, NotStarted
from clusterrun.report.excerpt import exception_of

_MEANINGS: Mapping[int, str] = {
    signal.SIGABRT: "abort",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGSYS: "bad system call",
}

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
    signal.SIGXCPU: "the limit of CPU time: check ulimit -t",
    signal.SIGXFSZ: "the limit of file size: check ulimit -f",
}


def in_words(ending: Ending) -> str:
    """Return "exit code 7", "SIGSEGV (segmentation fault)" or the failed step of the start."""
    match ending:
        case Exited(code):
            return f"exit code {code}"
        case Killed(number):
            meaning = _MEANINGS.get(number)
            return signal_name(number) + (f" ({meaning})" if meaning else "")
        case NotStarted(step, error):
            return f"{step}: {error}"
        case _:
            assert_never(ending)


def common_cause(ending: Ending) -> str:
    """Return common causes of such an end; "" if there are none."""
    match ending:
        case Exited(code):
            return _meaning_of_shells(code)
        case Killed(number):
            return _CAUSES.get(number, "")
        case NotStarted():
            return ""
        case _:
            assert_never(ending)


def _meaning_of_shells(code: int) -> str:
    # A wrapper script passes on the exit code of its program.
    if code == 126:
        return "a shell exits with 126 if it may not execute a program"
    if code == 127:
        return "a shell exits with 127 if it cannot find a program"
    if 128 < code < 128 + signal.NSIG:
        return f"a shell exits with {code} if {signal_name(code - 128)} ended its program"
    return ""


def group_lines(fates: Iterable[Fate]) -> list[str]:
    """Return one line for all workers that ended in the same way."""
    groups: dict[str, list[Fate]] = {}
    for fate in fates:
        groups.setdefault(_role(fate), []).append(fate)
    return [
        f"  {named_ranks(fate.rank for fate in group)}: {role}{_exception(group)}"
        for role, group in groups.items()
    ]


def _role(fate: Fate) -> str:
    words = "out of memory" if fate.out_of_memory else in_words(fate.ending)
    match fate.ending:
        case NotStarted() if fate.stopped_by_us:
            return "not started"
        case NotStarted():
            return f"not started, {words}"
        case Killed(signal.SIGTERM) if fate.stopped_by_us:
            return "stopped by clusterrun"
        case Killed(signal.SIGKILL) if fate.stopped_by_us:
            return "stopped by clusterrun, needed SIGKILL"
        case _ if fate.stopped_by_us:
            return f"stopped by clusterrun, {words}"
        case Exited(0):
            return f"ended earlier, {words}"
        case _:
            return f"failed too, {words}"


def _exception(group: list[Fate]) -> str:
    # A worker that a signal ended may have printed a traceback long before.
    exceptions = [exception_of(fate) for fate in group if isinstance(fate.ending, Exited)]
    if not exceptions or not exceptions[0] or group[0].ending == Exited(0):
        return ""
    first = exceptions[0]
    return f": {first}" if len(set(exceptions)) == 1 else f"; rank {group[0].rank}: {first}"
