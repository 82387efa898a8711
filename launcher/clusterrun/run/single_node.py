"""The membership of a single-node job: the coordinator and its only agent, without a network."""

import os
from collections.abc import Callable, Iterable
from typing import assert_never

from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job
from clusterrun.job.values import LOOPBACK
from clusterrun.loop import Loop
from clusterrun.policy import job_events
from clusterrun.policy.coordinator import Coordinator
from clusterrun.policy.events import CoordinatorSent, Event, QueryReceived, WorldJoined
from clusterrun.policy.members import LOCAL_CONNECTION
from clusterrun.policy.messages import (
    AgentMessage,
    FromCoordinator,
    Hello,
    Notice,
    Order,
    QueryMessage,
    WorldFormed,
)
from clusterrun.policy.settings import RendezvousSettings, heartbeat_rhythm
from clusterrun.ports import MasterPort


class SingleNodeMembership:
    """The membership of the only agent; the coordinator answers every message at once."""

    def __init__(
        self,
        job: Job,
        hello: Hello,
        notice: Callable[[str], object],
        loop: Loop[Event],
    ) -> None:
        """Start the coordinator; ``notice`` prints a line for the user.

        Raises:
            RendezvousError: the port that the user has set is in use.

        """
        self._notice = notice
        self._loop = loop
        self._port = MasterPort(job.setting("master_port"))
        settings = RendezvousSettings(
            job,
            nodes=1,
            host=Setting(job.rendezvous.master_addr or LOOPBACK, job.origin("master_addr")),
            ports=Setting((self._port.number,), job.origin("master_port")),
            # There is no rendezvous port.
            keeps_rendezvous_port=True,
            rhythm=heartbeat_rhythm(1, job.failures.heartbeat_timeout),
        )
        now = loop.clock()
        self._coordinator = Coordinator(settings, hello, self._port.number, now)
        loop.add_timer(self)
        # At once, because there are no other nodes to wait for.
        loop.add(self.events(now))

    @property
    def due(self) -> float:
        return self._coordinator.due

    def events(self, now: float) -> Iterable[Event]:
        """Return the coordinator's messages that are due; the first one is the world."""
        return self._handle(job_events.TimePassed(now))

    def send(self, message: AgentMessage) -> Iterable[Event]:
        """Return the coordinator's answers."""
        now = self._loop.clock()
        return self._handle(job_events.MessageReceived(LOCAL_CONNECTION, message, now))

    @property
    def node_zero(self) -> str:
        """Node 0's host."""
        return self._coordinator.own_hello.host

    def node_zero_time(self, age: float) -> float:
        """Return the time ``age`` seconds ago."""
        return self._loop.clock() - age

    def rejoin(self) -> None:
        raise AssertionError("a single-node job does not continue without its node")

    def abandon(self, _cause: object) -> None:
        """Do nothing, because there are no other nodes."""

    def leave(self) -> None:
        """Release the port."""
        self._loop.remove_timer(self)
        self._port.release()

    def _handle(self, event: job_events.CoordinatorEvent) -> list[Event]:
        """Perform the coordinator's actions; return its messages to the agent as events."""
        events = list[Event]()
        for action in self._coordinator.handle(event):
            match action:
                case job_events.Send(_, message):
                    events += self._events_of(message, event.at)
                case job_events.PreparePort():
                    events += self._handle(job_events.PortReady(self._port.next(), event.at))
                case job_events.PrintOnNodeZero(text):
                    self._notice(text)
                case job_events.Disconnect() | job_events.StopListening():
                    # There are no connections.
                    pass
                case _:
                    assert_never(action)
        return events

    def _events_of(self, message: FromCoordinator, now: float) -> Iterable[Event]:
        match message:
            case Notice(text):
                self._notice(text)
            case WorldFormed(world):
                yield WorldJoined(world, now)
            case _ if isinstance(message, QueryMessage):
                yield QueryReceived(message, now)
            case _ if isinstance(message, Order):
                yield CoordinatorSent(message, now)


def hello_of_single_node(job: Job, host: str, workers: int) -> Hello:
    """Return the ``Hello`` of the only node, which the coordinator reads."""
    return Hello(
        identity="",
        run_id=job.join.run_id,
        user_id=os.getuid(),
        host=host,
        pid=os.getpid(),
        rank=0,
        workers=workers,
        must={},
        should={},
        role=job.program.role,
        kept_attempts=job.kept_attempts,
    )
