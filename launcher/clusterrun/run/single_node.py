"""A job on one node: its coordinator and its only agent, without a network."""

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
from clusterrun.policy.members import OWN
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
    """The membership of the only agent: every message is answered at once."""

    def __init__(
        self,
        job: Job,
        hello: Hello,
        notice: Callable[[str], object],
        loop: Loop[Event],
    ) -> None:
        """Begin a job; ``notice`` prints a line for people.

        Raises:
            RendezvousError: the given port is in use.

        """
        self._notice = notice
        self._loop = loop
        self._port = MasterPort(job.fact("master_port"))
        settings = RendezvousSettings(
            job,
            nodes=1,
            host=Setting(job.rendezvous.master_addr or LOOPBACK, job.origin("master_addr")),
            ports=Setting((self._port.number,), job.origin("master_port")),
            # There is no port where nodes join.
            keeps_rendezvous_port=True,
            rhythm=heartbeat_rhythm(1, job.failures.heartbeat_timeout),
        )
        now = loop.clock()
        self._coordinator = Coordinator(settings, hello, self._port.number, now)
        loop.time(self)
        # At once: the world waits for nobody.
        loop.add(self.events(now))

    @property
    def due(self) -> float:
        return self._coordinator.due

    def events(self, now: float) -> Iterable[Event]:
        """Return what the coordinator orders because time has passed; first of all the world."""
        return self._happens(job_events.TimePassed(now))

    def send(self, message: AgentMessage) -> Iterable[Event]:
        """Return the coordinator's answers."""
        now = self._loop.clock()
        return self._happens(job_events.MessageReceived(OWN, message, now))

    @property
    def node_zero(self) -> str:
        """Node 0's host."""
        return self._coordinator.own_hello.host

    def node_zero_time(self, age: float) -> float:
        """Return when something happened ``age`` seconds ago, by node 0's clock."""
        return self._loop.clock() - age

    def rejoin(self) -> None:
        raise AssertionError("a job of one node does not go on without it")

    def abandon(self, _cause: object) -> None:
        """Do nothing: nobody has joined."""

    def leave(self) -> None:
        """Release the port."""
        self._loop.remove_timer(self)
        self._port.release()

    def _happens(self, event: job_events.CoordinatorEvent) -> list[Event]:
        """Do what the coordinator decides, and return what it tells its own agent: there is no other."""
        told = list[Event]()
        for action in self._coordinator.handle(event):
            match action:
                case job_events.Send(_, message):
                    told += self._told(message, event.at)
                case job_events.PreparePort():
                    told += self._happens(job_events.PortReady(self._port.next(), event.at))
                case job_events.PrintOnNodeZero(text):
                    self._notice(text)
                case job_events.Disconnect() | job_events.StopListening():
                    # Nobody else is connected, and nobody can call.
                    pass
                case _:
                    assert_never(action)
        return told

    def _told(self, message: FromCoordinator, now: float) -> Iterable[Event]:
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
    """Return what node 0 would introduce itself with, if there were others."""
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
