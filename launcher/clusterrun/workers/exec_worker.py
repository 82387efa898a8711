"""Binding and exec without a fork server, in the launcher's own process: ``--numa-strict``, ``--exec``."""

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
from clusterrun.workers.fork_server.kernel import execute
from clusterrun.workers.fork_server_client import binding_of

IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that our interpreter ignores, which the program must not inherit."""


def binding_failures(plan: NodePlan) -> list[str]:
    """Return why the kernel does not bind workers as planned, a line each; [] if it binds all.

    A child process tries it, because this process must not be bound.

    Raises:
        MachineError: a limit allows no more processes.

    """
    read_end, write_end = os.pipe()
    child = fork(partial(_bind_all, plan, write_end))
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as report:
        failures = report.read().splitlines()
    _, status = os.waitpid(child, 0)
    return [f"the process that tried it {describe_wait_status(status)[0]}"] if status else failures


def _bind_all(plan: NodePlan, report: int) -> None:
    results = [(worker.local_rank, _bind(worker)) for worker in plan.workers]
    lines = [f"local rank {local_rank}: {failure}" for local_rank, failure in results if failure]
    os.write(report, "\n".join(lines).encode())


def exec_worker(plan: NodePlan, environment: Mapping[str, str]) -> NoReturn:
    """Execute the plan's only worker in place of this process, in the job's ``environment``.

    Raises:
        OSError: the program can't be executed.

    """
    for number in IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    (worker,) = plan.workers
    command = worker.command
    if worker.runs_python and is_fork_patched():
        # The debugger continues in the program.
        command = (command[0], python_options(command[1]), *command[2:])
    variables = {**environment, **plan.env, **worker.env}
    execute(command, variables)


def bind_to_worker(plan: NodePlan) -> str:
    """Bind this process as planned for its only worker; return a warning if that failed, or ""."""
    (worker,) = plan.workers
    return _bind(worker)


def _bind(worker: WorkerPlan) -> str:
    cpus, memory = binding_of(worker)
    return "; ".join(filter(None, [bind(cpus), set_memory_policy(memory)]))
