"""Forks the agent, or reports the limit by which the kernel refuses."""

import os

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
