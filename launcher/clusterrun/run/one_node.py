"""A job on one node: its coordinator and its only agent, without a network."""

import os
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from clusterrun.job.declaring import Fact
from clusterrun.job.job import Job
from clusterrun.job.values import LOOPBACK
from clusterrun.loop import Loop
from clusterrun.policy import job as policy
from clusterrun.policy.coordinator import Coordinator
from clusterrun.policy.events import CoordinatorSent, Event, LookOrdered, WorldJoined
from clusterrun.policy.job_events import MessageReceived, TimePassed
from clusterrun.policy.members import OWN
from clusterrun.policy.messages import AgentMessage, Hello, LookOrder, Notice, Order, WorldFormed
from clusterrun.policy.terms import Terms, terms_of
from clusterrun.ports import WorkersPort


class OneNode:
    """The membership of the only agent: every message is answered at once."""

    def __init__(
        self,
        job: Job,
        host: str,
        workers: int,
        notice: Callable[[str], object],
        loop: Loop[Event],
    ) -> None:
        """Begin a job with so many workers on this host; ``notice`` prints a line for people.

        Raises:
            RendezvousError: the given port is in use.

        """
        self._notice = notice
        self._loop = loop
        self._port = WorkersPort(job.fact("master_port"))
        hello, now = _hello(job, host, workers), loop.clock()
        self._job = policy.Job(_terms(job), hello, self._port.number, now)
        self._coordinator = Coordinator(self._job, self._port.next, notice)
        loop.time(self)
        # At once: the world waits for nobody.
        loop.add(self.events(now))

    @property
    def due(self) -> float:
        return self._job.due

    def events(self, now: float) -> Iterable[Event]:
        """Return what the coordinator orders because time has passed; first of all the world."""
        self._coordinator.happens(TimePassed(now))
        return self._mail(now)

    def send(self, message: AgentMessage) -> Iterable[Event]:
        """Return the coordinator's answers."""
        now = self._loop.clock()
        self._coordinator.happens(MessageReceived(OWN, message, now))
        return self._mail(now)

    def coordinator(self) -> tuple[int, str]:
        """Return the node rank and the host of the coordinator."""
        return 0, self._job.own_hello.host

    def abandon(self, _cause: object) -> None:
        """Do nothing: nobody has joined."""

    def leave(self) -> None:
        """Release the port."""
        self._loop.untime(self)
        self._port.release()

    def _mail(self, now: float) -> list[Event]:
        events = list[Event]()
        for message in self._coordinator.take_mail():
            match message:
                case Notice(text):
                    self._notice(text)
                case WorldFormed(world):
                    events.append(WorldJoined(world, now))
                case _ if isinstance(message, LookOrder):
                    events.append(LookOrdered(message, now))
                case _ if isinstance(message, Order):
                    events.append(CoordinatorSent(message, now))
        return events


def _terms(job: Job) -> Terms:
    host = Fact(job.meeting.master_addr or LOOPBACK, job.origin("master_addr"))
    # There is no port where nodes join.
    return replace(terms_of(job), host=host, keeps_joining_port=True)


def _hello(job: Job, host: str, workers: int) -> Hello:
    return Hello(
        identity="",
        run_id=job.joining.run_id,
        user_id=os.getuid(),
        host=host,
        pid=os.getpid(),
        rank=0,
        workers=workers,
        must={},
        should={},
        role=job.role,
        kept_attempts=job.kept_attempts,
    )
