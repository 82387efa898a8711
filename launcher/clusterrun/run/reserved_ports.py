"""Ports of the job's programs on a node, reserved for the whole job.

They are chosen before any worker starts, so every worker knows all of them.
"""

import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack

from clusterrun.errors import RendezvousError
from clusterrun.job.job import MAIN
from clusterrun.job.services import Service
from clusterrun.planning.plan import WorkerSlot
from clusterrun.policy.messages import ProgramOffer
from clusterrun.ports import bind_wildcard, port_error_text


class ReservedPorts:
    """A port for each worker, and a MASTER_PORT for each program.

    The kernel does not choose a port to which a socket is bound, even if that does not listen. Because
    both sides set SO_REUSEADDR, a server can still listen there: see ``ports.MasterPort``.
    """

    def __init__(self, services: Iterable[Service], slots: Iterable[WorkerSlot]) -> None:
        """Reserve the ports of this agent's workers among ``slots``.

        Raises:
            RendezvousError: another program listens at a port that the user has set.

        """
        self._stack = ExitStack()
        # Bound until the others are chosen, which must be different.
        set_ports = ExitStack()
        try:
            by_name: dict[str | None, Service] = {each.name: each for each in services}
            workers = Counter(slot.program for slot in slots if slot.is_ours)
            for service in (each for name, each in by_name.items() if name in workers):
                for port in service.ports:
                    set_ports.enter_context(_bind_set_port(port, service))
            self.offers: tuple[ProgramOffer, ...] = tuple(
                self._offer(name or MAIN, count, by_name.get(name))
                for name, count in workers.items()
            )
        except BaseException:
            self.release()
            raise
        finally:
            set_ports.close()

    def release(self) -> None:
        self._stack.close()

    def _offer(self, name: str, workers: int, service: Service | None) -> ProgramOffer:
        if service is not None and service.port is not None:
            ports = tuple(service.ports)
        else:
            ports = tuple(self._reserve() for _ in range(workers))
        return ProgramOffer(name, ports, self._reserve())

    def _reserve(self) -> int:
        holder: socket.socket = self._stack.enter_context(bind_wildcard(0))
        number: int = holder.getsockname()[1]
        return number


def _bind_set_port(port: int, service: Service) -> socket.socket:
    """Bind a port that the user has set, to see whether it is free.

    It is not reserved for the job, because the program may bind it without SO_REUSEADDR.

    Raises:
        RendezvousError: another program listens there.

    """
    try:
        return bind_wildcard(port)
    except OSError as error:
        origin = service.origin("port")
        raise RendezvousError(
            port_error_text(port, origin, "this machine", error),
            "stop the program that listens there, or remove port: free ones are chosen",
        ) from error
