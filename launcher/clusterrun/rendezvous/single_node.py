"""A job on one node: a world of one member, whose messages to the coordinator stay in memory."""

import os
import select
from collections.abc import Callable, Iterator
from typing import assert_never

from msgspec.structs import replace

from clusterrun.domain.facts import Fact
from clusterrun.domain.world import World
from clusterrun.job.job import Job
from clusterrun.policy import job as policy
from clusterrun.policy import job_events
from clusterrun.policy.events import CoordinatorSent, Event, LookOrdered
from clusterrun.policy.job_events import (
    Action,
    CoordinatorEvent,
    MessageReceived,
    PortReady,
    TimePassed,
)
from clusterrun.policy.members import OWN
from clusterrun.policy.messages import (
    AgentMessage,
    FromCoordinator,
    Hello,
    LookOrder,
    NextAttempt,
    Notice,
    Order,
    WorldFormed,
)
from clusterrun.policy.terms import Terms, terms_of
from clusterrun.rendezvous.assumed import LOOPBACK
from clusterrun.rendezvous.ports.held_port import HeldPort, hold_free_port, hold_port


class SingleNode:
    """The only member of its world, with the coordinator, which answers every message at once."""

    wants_write = False
    lost = False

    def __init__(
        self,
        job: Job,
        host: str,
        workers: int,
        notice: Callable[[str], object],
        clock: Callable[[], float],
    ) -> None:
        """Form the world.

        Args:
            job: its master port is kept in all attempts; without one, each attempt has a free one.
            host: the name of this node.
            workers: how many this node has.
            notice: prints a line for people.
            clock: monotonic seconds.

        """
        self._given = job.fact("master_port")
        self._held: HeldPort | None = None
        self._notice = notice
        self._clock = clock
        # Never readable: only time makes the coordinator act by itself.
        self._epoll = select.epoll()
        now = clock()
        hello = _hello(job, host, workers)
        self._job = policy.Job(_terms(job), hello, self._next_port(), now)
        self._world = next(
            action.message.world
            for action in self._job.happens(TimePassed(now))
            if isinstance(action, job_events.Send) and isinstance(action.message, WorldFormed)
        )

    @property
    def first_world(self) -> World:
        """The world as it was formed; later attempts have the same nodes."""
        return self._world

    def world(self, attempt: int) -> World:
        """Return the world of the n-th attempt, which the coordinator has begun.

        Raises:
            RendezvousError: the given port is in use.

        """
        if attempt != self._world.attempt:
            raise AssertionError(f"attempt {attempt}, and the job is at {self._world.attempt}")
        if self._given.value is not None:
            # In a later attempt, a process that the last one left may listen there.
            self.leave()
            self._held = hold_port(Fact(self._given.value, self._given.origin))
        return self._world

    def coordinator(self) -> tuple[int, str]:
        """Return the node rank and the host of the coordinator."""
        return 0, self._job.own_hello.host

    def send(self, message: AgentMessage) -> list[Event]:
        """Return the coordinator's answers."""
        now = self._clock()
        return list(self._happens(MessageReceived(OWN, message, now), now))

    @property
    def sources(self) -> "tuple[SingleNode]":
        return (self,)

    @property
    def due(self) -> float:
        return self._job.due

    def fileno(self) -> int:
        return self._epoll.fileno()

    def flush(self) -> None:
        """Do nothing: nothing is sent."""

    def events(self, now: float) -> Iterator[Event]:
        """Return what the coordinator orders because time has passed."""
        if now >= self.due:
            yield from self._happens(TimePassed(now), now)

    def leave(self) -> None:
        """Release the port."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def _happens(self, event: CoordinatorEvent, now: float) -> Iterator[Event]:
        for action in self._job.happens(event):
            yield from self._perform(action, now)

    def _perform(self, action: Action, now: float) -> Iterator[Event]:
        match action:
            case job_events.Send(_, message):
                yield from self._receive(message, now)
            case job_events.PreparePort():
                yield from self._happens(PortReady(self._next_port(), now), now)
            case job_events.PrintOnNodeZero(text):
                self._notice(text)
            case job_events.StopListening() | job_events.Disconnect():
                raise AssertionError(f"{action}, and there is no connection")
            case _:
                assert_never(action)

    def _receive(self, message: FromCoordinator, now: float) -> Iterator[Event]:
        match message:
            case NextAttempt(world):
                self._world = world
            case Notice(text):
                self._notice(text)
        if isinstance(message, LookOrder):
            yield LookOrdered(message, now)
        elif isinstance(message, Order):
            yield CoordinatorSent(message, now)

    def _next_port(self) -> int:
        """Return where the next attempt's workers meet."""
        if self._given.value is not None:
            return int(self._given.value)
        # While the last one is still held, so that this is another.
        port = hold_free_port()
        self.leave()
        self._held = port
        return port.number


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
