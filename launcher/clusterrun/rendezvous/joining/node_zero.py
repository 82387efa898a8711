"""Node 0 while the nodes gather: it runs the coordinator, and is the first member."""

import select

from clusterrun.coordination.messages import (
    FromCoordinator,
    Notice,
    Refused,
    WorldFormed,
)
from clusterrun.coordination.state import Terms
from clusterrun.domain.bounds import as_name
from clusterrun.domain.facts import Fact
from clusterrun.errors import RendezvousError
from clusterrun.rendezvous.coordinator_server import CoordinatorServer
from clusterrun.rendezvous.joining.duplicate_node_zero import Lookout
from clusterrun.rendezvous.joining.joining_node import Candidate
from clusterrun.rendezvous.joining.settings import RendezvousSettings
from clusterrun.rendezvous.names.addresses import loopback_address
from clusterrun.rendezvous.ports.held_port import HeldPort, hold_free_port, hold_port
from clusterrun.rendezvous.ports.joining_port import open_joining_port
from clusterrun.rendezvous.wire.connection import Connection
from clusterrun.rendezvous.wire.frames import (
    FROM_COORDINATOR,
)

SECONDS_TO_TELL_LATECOMERS = 0.7
"""Nodes that start at about the same time should all hear why nothing comes of it."""

SECONDS_TO_FINISH = 0.2

NEVER = float("inf")


class NodeZero:
    """One descriptor; ``turn`` does what can be done. Ends with ``formed`` or ``failure``."""

    def __init__(self, candidate: Candidate, now: float) -> None:
        """Open the coordinator.

        Raises:
            PortBusy: no port is free for it.
            RendezvousError: somebody has the port that was given for the workers.

        """
        self.formed: WorldFormed | None = None
        self.failure: RendezvousError | None = None
        self.early: list[FromCoordinator] = []
        """What the coordinator said after ``formed`` and we have heard already."""
        settings, hello, token, hooks = candidate
        self._hooks = hooks
        self._refused: RendezvousError | None = None
        self._latest_end = NEVER
        # Nobody reaches it from elsewhere: all nodes are on this machine.
        only_at = loopback_address(settings.host.value)
        door = open_joining_port(settings.ports, hello.host, only_at)
        chosen = _port_apart(settings) if settings.open_for_good else None
        terms = _terms(candidate, chosen.number if chosen else door.number)
        self.server = CoordinatorServer(door, terms, token, hooks, now, chosen=chosen)
        self.connection: Connection[FromCoordinator] = Connection(
            self.server.own_end, FROM_COORDINATOR
        )
        self._lookout = Lookout(candidate, now)
        self._epoll = select.epoll()
        for watched in (self.server, self.connection, self._lookout):
            self._epoll.register(watched, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when ``turn`` has something to do."""
        return self._epoll.fileno()

    @property
    def finished(self) -> bool:
        """Whether ``formed`` or ``failure`` is there."""
        return self.formed is not None or self.failure is not None

    @property
    def due(self) -> float:
        """When ``turn`` is to be called even if nothing happens."""
        return min(self.server.due, self._lookout.due, self._latest_end)

    @property
    def master_addr(self) -> str:
        """What the workers of this node are told."""
        return self._lookout.master_addr

    def turn(self, now: float) -> None:
        """Do all that can be done now."""
        self._lookout.turn(now)
        if (failure := self._lookout.failure) is not None and self._refused is None:
            self.server.abandon(failure.message, now, failure.hint)
        self.server.turn(now)
        messages = self.connection.receive()
        for index, message in enumerate(messages):
            match message:
                case Notice(text):
                    self._hooks.notice(text)
                case Refused(_, text, hint):
                    self._refused = RendezvousError(text, hint)
                    self._latest_end = now + SECONDS_TO_TELL_LATECOMERS
                case WorldFormed():
                    self.formed = message
                    self.early = messages[index + 1 :]
                    return
                case _:
                    raise AssertionError("our own coordinator ends a job that has not begun")
        if self.server.has_told_everybody or now >= self._latest_end:
            self.failure = self._refused

    def abandon(self, why: str, now: float) -> None:
        """Tell those who have joined that nothing comes of it, and close everything."""
        self.server.abandon(why, now)
        self.close()

    def let_go(self) -> None:
        """Close all but the server, and our connection to it."""
        self._lookout.close()
        self._epoll.close()

    def close(self) -> None:
        """Close everything."""
        self.let_go()
        self.connection.close()
        self.server.finish(SECONDS_TO_FINISH, self._hooks.clock)


def _port_apart(settings: RendezvousSettings) -> HeldPort:
    given = settings.workers_port
    return hold_free_port() if given.value is None else hold_port(Fact(given.value, given.origin))


def _terms(candidate: Candidate, master_port: int) -> Terms:
    settings, hello, token, _ = candidate
    return Terms(
        hello=hello,
        nodes=settings.nodes,
        run_id=hello.run_id or settings.run_id,
        place=settings.place,
        master_addr=settings.host.value,
        master_port=master_port,
        timeout=settings.timeout,
        hosts=tuple(as_name(host) for host in settings.hosts),
        strict=settings.strict,
        rhythm=settings.rhythm,
        restarts=settings.restarts,
        open_for_good=settings.open_for_good,
        has_token=bool(token),
        last_call=settings.last_call,
        exports=settings.exports,
    )
