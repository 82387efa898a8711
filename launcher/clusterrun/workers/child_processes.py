"""Forks the agent's children, and says in words why that failed, or how they ended."""

import os

from clusterrun.domain.signal_names import signal_name
from clusterrun.errors import MachineError
from clusterrun.workers.fork_server.system.fork_limits import why_no_fork


def fork() -> int:
    """Return what ``os.fork`` returns.

    Raises:
        MachineError: a limit allows no more processes.

    """
    try:
        return os.fork()
    except OSError as error:
        raise no_process(error) from error


def no_process(error: OSError) -> MachineError:
    return MachineError(why_no_fork(error), "raise the limit, or end processes that it counts")


def how_it_ended(status: int) -> str:
    """Return "exited with code 1" or "was killed by SIGKILL" for a ``wait`` status."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal_name(os.WTERMSIG(status))}"
    return f"exited with code {os.WEXITSTATUS(status)}"


def signal_of(status: int) -> int:
    """Return the signal that ended the process of a ``wait`` status; 0 if it exited."""
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
