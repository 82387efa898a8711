"""What the launcher's own process does of a worker's start: ``--numa-strict`` and ``--exec`` have no server."""

import os
import signal
from collections.abc import Mapping
from functools import partial
from typing import NoReturn

from clusterrun.planning.plan import NodePlan, WorkerPlan
from clusterrun.processes import describe_wait_status, is_fork_patched, python_options
from clusterrun.signals import ENDING_SIGNALS
from clusterrun.workers.children import fork
from clusterrun.workers.fork_server.binding import bind, set_memory_policy
from clusterrun.workers.fork_server.kernel import describe_exec_error
from clusterrun.workers.fork_server_client import binding_of

IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""The program must not inherit that our interpreter ignores these."""


def binding_failures(plan: NodePlan) -> list[str]:
    """Return why the kernel does not bind workers as planned, a line each; [] if it binds all.

    A child tries it, as this process must not be bound.

    Raises:
        MachineError: a limit allows no more processes.

    """
    reading, writing = os.pipe()
    child = fork(partial(_try_all, plan, writing))
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as report:
        failures = report.read().splitlines()
    _, status = os.waitpid(child, 0)
    return [f"the process that tried it {describe_wait_status(status)[0]}"] if status else failures


def _try_all(plan: NodePlan, writing: int) -> None:
    tried = [(worker.local_rank, _bind(worker)) for worker in plan.workers]
    lines = [f"local rank {local_rank}: {failure}" for local_rank, failure in tried if failure]
    os.write(writing, "\n".join(lines).encode())


def exec_worker(plan: NodePlan, environment: Mapping[str, str]) -> NoReturn:
    """Execute the plan's one worker in place of this process, in the job's ``environment``.

    Raises:
        OSError: the program can't be executed.

    """
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    (worker,) = plan.workers
    command = worker.command
    if worker.runs_python and is_fork_patched():
        # A debugger goes on in it.
        command = (command[0], python_options(command[1]), *command[2:])
    variables = {**environment, **plan.env, **worker.env}
    try:
        os.execvpe(command[0], command, variables)
    except OSError as error:
        why = describe_exec_error(command[0], os.get_exec_path(variables), error)
        raise OSError(error.errno, why) from None


def bind_to_worker(plan: NodePlan) -> str:
    """Bind this process as planned for its one worker; return a remark if that failed, or ""."""
    (worker,) = plan.workers
    return _bind(worker)


def _bind(worker: WorkerPlan) -> str:
    cpus, memory = binding_of(worker)
    return "; ".join(filter(None, [bind(cpus), set_memory_policy(memory)]))
