"""Forks the agent; where the kernel refuses, the limit is named."""

import os

from clusterrun.errors import MachineError
from clusterrun.workers.fork_server.system.fork_limits import why_no_fork


def fork() -> int:
    """Return what ``os.fork`` does.

    Raises:
        MachineError: there may be no more processes; it names the limit.

    """
    try:
        return os.fork()
    except OSError as error:
        raise no_process(error) from error


def no_process(error: OSError) -> MachineError:
    """Return why ``error`` stands in the way of another process, for the user."""
    return MachineError(why_no_fork(error), "raise the limit, or end processes that count for it")
