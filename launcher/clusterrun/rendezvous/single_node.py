"""A job on one node: a world of one member, whose messages to the coordinator stay in memory."""

import os
from collections.abc import Callable, Iterator
from typing import assert_never

from clusterrun.coordination.actions import (
    Action,
    Disconnect,
    PreparePort,
    PrintNotice,
    Send,
    StopListening,
)
from clusterrun.coordination.coordinator import decide, opened
from clusterrun.coordination.events import Event as CoordinatorEvent
from clusterrun.coordination.events import MessageReceived, PortReady, TimePassed
from clusterrun.coordination.heartbeat import heartbeat_rhythm
from clusterrun.coordination.members import OWN
from clusterrun.coordination.messages import (
    AgentMessage,
    FromCoordinator,
    Hello,
    NextAttempt,
    Notice,
    WorldFormed,
)
from clusterrun.coordination.restart_policy import rules_of
from clusterrun.coordination.state import Terms
from clusterrun.domain.events import Event
from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec
from clusterrun.domain.world import World
from clusterrun.rendezvous.assumed import LOOPBACK
from clusterrun.rendezvous.coordinator_events import event_of
from clusterrun.rendezvous.ports.held_port import HeldPort, hold_free_port, hold_port


class SingleNode:
    """The only member of its world, with the coordinator, which answers every message at once."""

    sources = ()
    """No answer comes later."""

    def __init__(
        self,
        job: JobSpec,
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
        self._given = job.master_port
        self._held: HeldPort | None = None
        self._notice = notice
        self._clock = clock
        now = clock()
        self._state = opened(_terms(job, host, workers, self._next_port()), now)
        self._world = next(
            action.message.world
            for action in decide(self._state, TimePassed(now))
            if isinstance(action, Send) and isinstance(action.message, WorldFormed)
        )

    @property
    def run_id(self) -> str:
        return self._world.run_id

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

    def send(self, message: AgentMessage) -> list[Event]:
        """Return the coordinator's answers."""
        now = self._clock()
        return list(self._happens(MessageReceived(OWN, message, now), now))

    def leave(self) -> None:
        """Release the port."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def _happens(self, event: CoordinatorEvent, now: float) -> Iterator[Event]:
        for action in decide(self._state, event):
            yield from self._perform(action, now)

    def _perform(self, action: Action, now: float) -> Iterator[Event]:
        match action:
            case Send(_, message):
                yield from self._receive(message, now)
            case PreparePort():
                yield from self._happens(PortReady(self._next_port()), now)
            case PrintNotice(text):
                self._notice(text)
            case StopListening() | Disconnect():
                raise AssertionError(f"{action}, and there is no connection")
            case _:
                assert_never(action)

    def _receive(self, message: FromCoordinator, now: float) -> Iterator[Event]:
        match message:
            case NextAttempt(world):
                self._world = world
            case Notice(text):
                self._notice(text)
        event = event_of(message, now, on_node_zero=True)
        if event is not None:
            yield event

    def _next_port(self) -> int:
        """Return where the next attempt's workers meet."""
        if self._given.value is not None:
            return self._given.value
        # While the last one is still held, so that this is another.
        port = hold_free_port()
        self.leave()
        self._held = port
        return port.number


def _terms(job: JobSpec, host: str, workers: int, master_port: int) -> Terms:
    hello = Hello(
        identity="",
        run_id=job.run_id.value,
        user_id=os.getuid(),
        host=host,
        pid=os.getpid(),
        rank=0,
        workers=workers,
        must={},
        should={},
        role=job.role.value,
    )
    return Terms(
        hello=hello,
        nodes=1,
        run_id=job.run_id.value,
        place="",
        master_addr=job.master_addr.value or LOOPBACK,
        master_port=master_port,
        timeout=job.rdzv_timeout.value,
        hosts=(),
        strict=False,
        rhythm=heartbeat_rhythm(1, job.heartbeat_timeout.value),
        restarts=rules_of(job),
        keeps_joining_port=True,
    )
