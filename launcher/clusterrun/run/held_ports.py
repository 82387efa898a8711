"""The ports of a node's programs, held for the whole job: every worker knows them before any has started."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack

from clusterrun.errors import RendezvousError
from clusterrun.job.job import MAIN
from clusterrun.job.services import Service
from clusterrun.planning.services import Share
from clusterrun.policy.messages import ProgramOffer
from clusterrun.ports import bound_everywhere, port_trouble


class HeldPorts:
    """One for each worker, and one for each program where its workers may meet.

    A bound socket that does not listen keeps the kernel from choosing a port; with SO_REUSEADDR on both
    sides a server can still listen there: see ``ports.WorkersPort``.
    """

    def __init__(self, workers: int, shares: Sequence[Share]) -> None:
        """Hold the ports of so many workers of the main program, and of these services.

        Raises:
            RendezvousError: another program listens at a port that is set.

        """
        self._stack = ExitStack()
        try:
            main = [self._offer(MAIN, workers, None)] if workers else []
            services = (self._offer(it.service.name, it.workers, it.service) for it in shares)
            self.offers: tuple[ProgramOffer, ...] = (*main, *services)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        self._stack.close()

    def _offer(self, name: str, workers: int, service: Service | None) -> ProgramOffer:
        if service is not None and service.port is not None:
            ports = tuple(range(service.port, service.port + workers))
            for port in ports:
                _expect_free(port, service)
        else:
            ports = tuple(self._hold() for _ in range(workers))
        return ProgramOffer(name, ports, self._hold())

    def _hold(self) -> int:
        holder: socket.socket = self._stack.enter_context(bound_everywhere(0))
        number: int = holder.getsockname()[1]
        return number


def _expect_free(port: int, service: Service) -> None:
    """Check that nothing listens at a port; it is not held, for a program that binds in its own way."""
    try:
        bound_everywhere(port).close()
    except OSError as error:
        origin = service.origin("port")
        raise RendezvousError(
            port_trouble(port, origin, "this machine", error),
            "stop the program that listens there, or leave port out: free ones are chosen",
        ) from error
