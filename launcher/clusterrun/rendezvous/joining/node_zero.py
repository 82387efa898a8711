"""Node 0 while the nodes join: it runs the coordinator and is its first member."""

import select

from clusterrun.domain.facts import Fact
from clusterrun.errors import RendezvousError
from clusterrun.network.addresses import loopback_address
from clusterrun.network.channel import FROM_COORDINATOR, Channel
from clusterrun.policy.event_source import NEVER
from clusterrun.policy.messages import FromCoordinator, Notice, Refused, WorldFormed
from clusterrun.policy.notices import ended_while_waiting
from clusterrun.policy.outcome import HelperFailed, Interrupted
from clusterrun.policy.terms import Terms
from clusterrun.rendezvous.coordinator_server import CoordinatorServer
from clusterrun.rendezvous.joining.duplicate_node_zero import DuplicateNodeZeroCheck
from clusterrun.rendezvous.joining.joining_node import JoiningNode
from clusterrun.rendezvous.ports.held_port import HeldPort, hold_free_port, hold_port
from clusterrun.rendezvous.ports.joining_port import open_joining_port

SECONDS_TO_REFUSE_LATECOMERS = 0.7
"""Nodes that start a little later should learn why the job can't start, too."""

SECONDS_TO_FINISH = 0.2


class JoiningNodeZero:
    """One descriptor; ``turn`` does what is possible. Ends with ``formed`` or ``failure``.

    Raises:
        PortBusy: no port is free for the coordinator.
        RendezvousError: another program listens on the port that was given for the workers.

    """

    def __init__(self, node: JoiningNode, now: float) -> None:
        self.formed: WorldFormed | None = None
        self.failure: RendezvousError | None = None
        self.early: list[FromCoordinator] = []
        """Messages received after ``formed``."""
        terms, hello, token, hooks = node
        self._host = hello.host
        self._hooks = hooks
        self._refused: RendezvousError | None = None
        self._latest_end = NEVER
        # At a loopback address no other machine needs to reach the coordinator.
        only_at = loopback_address(terms.host.value)
        joining = open_joining_port(terms.ports, hello.host, only_at)
        chosen = _workers_port(terms) if terms.keeps_joining_port else None
        self.server = CoordinatorServer(
            joining, terms, hello, hooks, now, token=token, chosen=chosen
        )
        self.connection: Channel[FromCoordinator] = Channel(FROM_COORDINATOR, self.server.own_end)
        self._duplicate_check = DuplicateNodeZeroCheck(node, now)
        self._epoll = select.epoll()
        for watched in (self.server, self.connection, self._duplicate_check):
            self._epoll.register(watched, select.EPOLLIN)

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def finished(self) -> bool:
        return self.formed is not None or self.failure is not None

    @property
    def due(self) -> float:
        return min(self.server.due, self._duplicate_check.due, self._latest_end)

    @property
    def master_addr(self) -> str:
        """MASTER_ADDR of this node's workers."""
        return self._duplicate_check.master_addr

    def turn(self, now: float) -> None:
        self._duplicate_check.turn(now)
        if (failure := self._duplicate_check.failure) is not None and self._refused is None:
            self.server.abandon(failure.message, now, failure.hint)
        self.server.turn(now)
        messages = self.connection.receive()
        for index, message in enumerate(messages):
            match message:
                case Notice(text):
                    self._hooks.notice(text)
                case Refused(_, text, hint):
                    self._refused = RendezvousError(text, hint)
                    self._latest_end = now + SECONDS_TO_REFUSE_LATECOMERS
                case WorldFormed():
                    self.formed = message
                    self.early = messages[index + 1 :]
                    return
                case _:
                    raise AssertionError("the coordinator ends a job that has not started")
        if self.server.all_are_informed or now >= self._latest_end:
            self.failure = self._refused

    def abandon(self, cause: Interrupted | HelperFailed, now: float) -> None:
        """Refuse the nodes that have joined, because of ``cause``, and close."""
        self.server.abandon(ended_while_waiting(self._host, cause), now)
        self.close()

    def close_all_but_server(self) -> None:
        """Close all but the server and the connection to it."""
        self._duplicate_check.close()
        self._epoll.close()

    def close(self) -> None:
        self.close_all_but_server()
        self.connection.close()
        self.server.finish(SECONDS_TO_FINISH, self._hooks.clock)


def _workers_port(terms: Terms) -> HeldPort:
    given = terms.workers_port
    return hold_free_port() if given.value is None else hold_port(Fact(given.value, given.origin))
