"""Ports for NCCL's RAS, which answers queries about a worker; reserved from the start of an attempt.

NCCL binds with SO_REUSEPORT. The agent does the same before: then the kernel does not choose the port for
another program, and only processes of the same user can bind it by number (``sk_reuseport`` in
net/ipv4/inet_connection_sock.c). The agent does not listen, so every connection reaches the worker.
"""

import socket
from contextlib import ExitStack

from msgspec.structs import replace

from clusterrun.job.nested_launches import RAS_VARIABLE
from clusterrun.job.values import LOOPBACK
from clusterrun.planning.plan import NodePlan, WorkerPlan


class RasPorts:
    """A port for each worker that needs one, different in each attempt.

    Ranks that share a port, as with NCCL's default, answer in turn, even a stopped rank or one of another
    program. A process that is left from an earlier attempt still has that attempt's port.
    """

    def __init__(self) -> None:
        self._reserved = ExitStack()

    def with_addresses(self, plan: NodePlan) -> NodePlan:
        """Return the plan with NCCL_RAS_ADDR for the workers that need it.

        If no port is free for a worker, its NCCL listens at the default port.
        """
        previous, self._reserved = self._reserved, ExitStack()
        # While the previous attempt's ports are still reserved, so the new ones are different.
        workers = tuple(map(self._with_address, plan.workers))
        previous.close()
        return replace(plan, workers=workers)

    def release(self) -> None:
        self._reserved.close()

    def _with_address(self, worker: WorkerPlan) -> WorkerPlan:
        if not worker.needs_ras_port:
            return worker
        try:
            holder = self._reserved.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # Without SO_REUSEADDR: if both sides set it, other users could bind the port.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind((LOOPBACK, 0))
        except OSError:
            # There is no descriptor, no port or no loopback interface; the job can run without it.
            return worker
        port: int = holder.getsockname()[1]
        return replace(worker, env={**worker.env, RAS_VARIABLE: f"{LOOPBACK}:{port}"})
