"""Forks the agent's children, and says in words why that failed, or how they ended."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from clusterrun.domain.signal_names import signal_name
from clusterrun.errors import MachineError
from clusterrun.workers.fork_server.other_processes import why_no_fork


def fork() -> int:
    """Return what ``os.fork`` returns.

    Raises:
        MachineError: a limit allows no more processes.

    """
    try:
        return os.fork()
    except OSError as error:
        raise no_process(error) from error


@contextmanager
def blocked(*signals: int) -> Iterator[set[int]]:
    """Block these signals meanwhile; yield what was blocked before."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield {*mask}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def no_process(error: OSError) -> MachineError:
    return MachineError(why_no_fork(error), "raise the limit, or end processes that it counts")


def how_it_ended(status: int) -> tuple[str, int]:
    """Return "exited with code 1" and 0, or "was killed by SIGKILL" and 9, for a ``wait`` status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by {signal_name(number)}", number
    return f"exited with code {os.WEXITSTATUS(status)}", 0
