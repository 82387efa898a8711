"""``--exec``: the launcher's process becomes its one worker."""

import os
import signal
from collections.abc import Mapping
from typing import NoReturn

from clusterrun.domain.plan import NodePlan
from clusterrun.workers.fork_server.binding import bind, set_memory_policy
from clusterrun.workers.fork_server_client import binding_of

IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""The program must not inherit that our interpreter ignores these."""


def bind_to_worker(plan: NodePlan) -> str:
    """Bind this process as planned for its worker; return a remark if that failed, or ""."""
    (worker,) = plan.workers
    cpus, memory = binding_of(worker)
    return "; ".join(filter(None, [bind(cpus), set_memory_policy(memory)]))


def become_worker(plan: NodePlan, environment: Mapping[str, str]) -> NoReturn:
    """Execute the plan's one worker in place of this process, in the job's ``environment``.

    Raises:
        OSError: the program can't be executed.

    """
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    (worker,) = plan.workers
    command = plan.command_of(worker)
    os.execvpe(command[0], command, {**environment, **plan.env, **worker.env})
