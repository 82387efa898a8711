"""NVML, asked in a child that can be killed: the library hangs on a sick GPU."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable

_END = "end"

Question = Callable[[], Iterable[tuple[str, str]]]


def ask_in_child(question: Question | None = None, timeout: float = 10.0) -> str:
    """Return what NVML answers, for ``devices_in`` to read.

    Args:
        question: what the child does; None: it asks NVML.
        timeout: seconds, after which the child is killed.

    Returns:
        "", or half an answer, where NVML is missing, fails, or does not answer in time.

    """
    reading, writing = os.pipe()
    child = _fork(writing, question or _ask_nvml, timeout)
    os.close(writing)
    try:
        answer = _read_until_end(reading, time.monotonic() + timeout)
        return answer.decode(errors="replace")
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        _reap(child)


def devices_in(answer: str) -> tuple[tuple[str, str], ...]:
    """Return PCI address and UUID of each GPU that NVML lets us use, in NVML's order.

    Half an answer tells of none.
    """
    *lines, last = answer.split("\n")
    if last != _END:
        return ()
    pairs = (line.partition(" ") for line in lines)
    return tuple((address, uuid) for address, _, uuid in pairs)


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
        # Others read from our connections that we have gone: a hung child must not hold them open.
        os.closerange(3, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        # Should our parent die meanwhile, nobody else ends a child that hangs.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, timeout + 1)
        lines = [f"{address} {uuid}" for address, uuid in question()]
        os.write(writing, "\n".join([*lines, _END]).encode())
    finally:
        # Whatever was raised: no traceback, no exit handlers of the launcher.
        os._exit(0)


def _ask_nvml() -> Iterable[tuple[str, str]]:
    import pynvml  # noqa: PLC0415 - only here, in the child, and only where the driver is

    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            found = (pynvml.nvmlDeviceGetPciInfo(handle).busId, pynvml.nvmlDeviceGetUUID(handle))
        except pynvml.NVMLError:
            # Not ours (a container's device rules) or lost: CUDA does not count it either.
            continue
        address, uuid = (text.decode() if isinstance(text, bytes) else text for text in found)
        yield address, uuid


def _read_until_end(reading: int, deadline: float) -> bytes:
    answer = b""
    waiter = select.poll()
    waiter.register(reading, select.POLLIN)
    while waiter.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = os.read(reading, 65536)
        if not chunk:
            break
        answer += chunk
    return answer


def _reap(child: int) -> None:
    # A child stuck in the driver outlives even SIGKILL: waiting for it for good would hang us too.
    # A pidfd would do, but Linux before 5.3 has none, nor has the Python of conda.
    deadline = time.monotonic() + 1
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            signal.sigtimedwait({signal.SIGCHLD}, deadline - time.monotonic())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
