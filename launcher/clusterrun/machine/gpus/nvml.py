"""Querying NVML in a child process that can be killed: the library hangs on a broken GPU."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable

from clusterrun.machine.gpus.nvml_query import NvmlGpu, query_nvml
from clusterrun.processes.descriptors import close_all_but
from clusterrun.processes.reaping import status_of

SECONDS_TO_DIE = 1.0
"""After SIGKILL."""

_END = "end"
HUNG = "hung"
"""The answer if there is none in time: opening any GPU may hang."""


Question = Callable[[], Iterable[NvmlGpu]]


def ask_in_child(question: Question | None = None, timeout: float = 10.0) -> str:
    """Return NVML's answer, which ``gpus_in`` decodes.

    Args:
        question: what the child does; None: it queries NVML.
        timeout: seconds, after which the child is killed.

    Returns:
        "", or half an answer, if NVML is missing or fails, or no process can be started; ``HUNG``
        if it takes too long.

    """
    reading, writing = os.pipe()
    try:
        child = _fork(writing, question or query_nvml, timeout)
    except OSError:
        os.close(reading)
        return ""
    finally:
        os.close(writing)
    try:
        answer = _read_until_end(reading, time.monotonic() + timeout)
        return HUNG if answer is None else answer.decode(errors="replace")
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        # A process that is stuck in the driver outlives even SIGKILL.
        status_of(child, SECONDS_TO_DIE)


def gpus_in(answer: str) -> tuple[NvmlGpu, ...]:
    """Return each GPU that NVML lets us use, in NVML's order; () for half an answer."""
    *lines, last = answer.split("\n")
    if last != _END:
        return ()
    facts = (line.split("\t") for line in lines)
    return tuple(NvmlGpu(*fields) for fields in facts if len(fields) == len(NvmlGpu._fields))


def _fork(writing: int, question: Question, timeout: float) -> int:
    # The child keeps every signal blocked: none of the launcher's handlers may run in it, and a
    # Ctrl-C that reaches both must not be written to the launcher's wake-up pipe twice.
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        child = os.fork()
        if child == 0:
            _answer(writing, question, timeout)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return child


def _answer(writing: int, question: Question, timeout: float) -> None:
    try:
        # Our connections must close when this process exits: a hung child must not hold them open.
        close_all_but({0, 1, 2, writing})
        # If our parent dies meanwhile, no other process ends a child that hangs.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, timeout + 1)
        lines = ["\t".join(gpu) for gpu in question()]
        os.write(writing, "\n".join([*lines, _END]).encode())
    finally:
        # Whatever was raised: no traceback, no exit handlers of the launcher.
        os._exit(0)


def _read_until_end(reading: int, deadline: float) -> bytes | None:
    answer = b""
    waiter = select.poll()
    waiter.register(reading, select.POLLIN)
    while waiter.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = os.read(reading, 65536)
        if not chunk:
            return answer
        answer += chunk
    return None
