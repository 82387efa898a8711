"""How a worker ended, in words, and what commonly causes such an end."""

import signal
from collections.abc import Mapping
from typing import assert_never

from clusterrun.domain.outcome import Ending, Exited, Killed, NotStarted
from clusterrun.domain.signal_names import signal_name

_MEANINGS: Mapping[int, str] = {
    signal.SIGABRT: "abort",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGSYS: "bad system call",
}

_FROM_OUTSIDE = "clusterrun did not send it: the scheduler did, or a person"

_CAUSES: Mapping[int, str] = {
    signal.SIGABRT: (
        "a failed check in native code, an uncaught C++ exception,"
        " or NCCL's watchdog after a collective timed out"
    ),
    signal.SIGBUS: (
        "often a full /dev/shm, which data loaders and NCCL use: see df -h /dev/shm;"
        " a container gets more by --shm-size"
    ),
    signal.SIGFPE: "an integer division by zero in native code",
    signal.SIGHUP: _FROM_OUTSIDE,
    signal.SIGILL: "native code that was built for another kind of CPU",
    signal.SIGINT: _FROM_OUTSIDE,
    signal.SIGKILL: (
        "clusterrun did not send it: the kernel does when memory runs out,"
        " else the scheduler at a limit, or a person"
    ),
    signal.SIGPIPE: "it wrote to a pipe or socket that nobody reads any more",
    signal.SIGSEGV: (
        "a fault in native code, or a stack that overflowed;"
        " --env PYTHONFAULTHANDLER=1 shows where in Python it was"
    ),
    signal.SIGSYS: "a seccomp filter of the container forbids a system call",
    signal.SIGTERM: _FROM_OUTSIDE,
    signal.SIGUSR1: "it has no handler for it",
    signal.SIGUSR2: "it has no handler for it",
    signal.SIGXCPU: "the limit of CPU time: see ulimit -t",
    signal.SIGXFSZ: "the limit of file size: see ulimit -f",
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
    """Return what commonly causes such an end; "" where the end says nothing of its cause."""
    match ending:
        case Exited(code):
            return _meaning_to_a_shell(code)
        case Killed(number):
            return _CAUSES.get(number, "")
        case NotStarted():
            return ""
        case _:
            assert_never(ending)


def _meaning_to_a_shell(code: int) -> str:
    # What a wrapper script passes on of the program that it ran.
    if code == 126:
        return "a shell says so of a program that it may not execute"
    if code == 127:
        return "a shell says so of a program that it cannot find"
    if 128 < code < 128 + signal.NSIG:
        return f"a shell says so of a program that was ended by {signal_name(code - 128)}"
    return ""
