"""Tries, before any worker starts, whether the kernel binds workers as planned."""

import os
from functools import partial
from typing import NoReturn

from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.processes import how_it_ended
from clusterrun.workers.children import fork
from clusterrun.workers.fork_server.binding import bind, set_memory_policy
from clusterrun.workers.fork_server_client import binding_of


def binding_failures(plan: NodePlan) -> list[str]:
    """Return why workers can't be bound as planned, a line each; [] if all can.

    A child tries it, as this process must not be bound.

    Raises:
        MachineError: a limit allows no more processes.

    """
    reading, writing = os.pipe()
    child = fork(partial(_try_as_child, plan, writing))
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as report:
        failures = report.read().splitlines()
    _, status = os.waitpid(child, 0)
    return [f"the process that tried it {how_it_ended(status)[0]}"] if status else failures


def _try_as_child(plan: NodePlan, writing: int) -> NoReturn:
    try:
        os.write(writing, "\n".join(_tried(plan)).encode())
        os._exit(0)
    except BaseException:  # noqa: BLE001 - whatever it is, two agents must not go on
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def _tried(plan: NodePlan) -> list[str]:
    tried = ((worker, _try(worker)) for worker in plan.workers)
    return [f"local rank {worker.local_rank}: {failure}" for worker, failure in tried if failure]


def _try(worker: WorkerPlan) -> str:
    cpus, memory = binding_of(worker)
    return bind(cpus) or set_memory_policy(memory)
