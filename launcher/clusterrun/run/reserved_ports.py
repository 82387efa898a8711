"""The ports of a node's programs, held for the whole job: every worker knows them before any has started."""

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
    """One for each worker, and one for each program where its workers may meet.

    A bound socket that does not listen keeps the kernel from choosing a port; with SO_REUSEADDR on both
    sides a server can still listen there: see ``ports.MasterPort``.
    """

    def __init__(self, services: Iterable[Service], seats: Iterable[WorkerSlot]) -> None:
        """Hold the ports of this agent's workers among ``seats``.

        Raises:
            RendezvousError: another program listens at a port that is set.

        """
        self._stack = ExitStack()
        # First, and until all others are chosen: none of these is such a port.
        set_ones = ExitStack()
        try:
            by_name: dict[str | None, Service] = {each.name: each for each in services}
            workers = Counter(seat.program for seat in seats if seat.is_ours)
            for service in (each for name, each in by_name.items() if name in workers):
                for port in service.ports:
                    set_ones.enter_context(_held(port, service))
            self.offers: tuple[ProgramOffer, ...] = tuple(
                self._offer(name or MAIN, count, by_name.get(name))
                for name, count in workers.items()
            )
        except BaseException:
            self.release()
            raise
        finally:
            set_ones.close()

    def release(self) -> None:
        self._stack.close()

    def _offer(self, name: str, workers: int, service: Service | None) -> ProgramOffer:
        is_set = service is not None and service.port is not None
        chosen = service.ports if service and is_set else (self._hold() for _ in range(workers))
        ports = tuple(chosen)
        return ProgramOffer(name, ports, self._hold())

    def _hold(self) -> int:
        holder: socket.socket = self._stack.enter_context(bind_wildcard(0))
        number: int = holder.getsockname()[1]
        return number


def _held(port: int, service: Service) -> socket.socket:
    """Return what holds a port that is set, for a while: its program may bind in its own way.

    Raises:
        RendezvousError: another program listens there.

    """
    try:
        return bind_wildcard(port)
    except OSError as error:
        origin = service.origin("port")
        raise RendezvousError(
            port_error_text(port, origin, "this machine", error),
            "stop the program that listens there, or leave port out: free ones are chosen",
        ) from error
