"""The ports at which the workers' NCCL answers queries (its RAS), held from the start of an attempt.

NCCL binds with SO_REUSEPORT. So does the agent, before: then the kernel gives the port to no program
that asks for any port, and lets only processes of the same user bind it by number (``sk_reuseport`` in
net/ipv4/inet_connection_sock.c). The agent does not listen, so every connection reaches the worker.
"""

import socket
from contextlib import ExitStack

from msgspec.structs import replace

from clusterrun.job.nested_launches import RAS_VARIABLE
from clusterrun.job.values import LOOPBACK
from clusterrun.planning.plan import NodePlan, WorkerPlan


class RasPorts:
    """One port for each worker that needs one, and others in each attempt.

    Ranks that shared one, as with NCCL's default, would answer in turn: those of another program, too,
    or one that is stopped. A process that an earlier attempt has left still has that attempt's port.
    """

    def __init__(self) -> None:
        self._held = ExitStack()

    def with_addresses(self, plan: NodePlan) -> NodePlan:
        """Return the plan of an attempt with NCCL_RAS_ADDR for the workers that need it.

        If there is no port for a worker, its NCCL listens at its default.
        """
        last, self._held = self._held, ExitStack()
        # While those of the last attempt are still held, so that these are others.
        workers = tuple(map(self._with_address, plan.workers))
        last.close()
        return replace(plan, workers=workers)

    def release(self) -> None:
        self._held.close()

    def _with_address(self, worker: WorkerPlan) -> WorkerPlan:
        if not worker.needs_ras_port:
            return worker
        try:
            holder = self._held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # Without SO_REUSEADDR: where both sides have it, other users could bind the port.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind((LOOPBACK, 0))
        except OSError:
            # No descriptor, no port or no loopback interface: no reason to end the job.
            return worker
        port: int = holder.getsockname()[1]
        return replace(worker, env={**worker.env, RAS_VARIABLE: f"{LOOPBACK}:{port}"})
