"""Answers the looks of this node's user, and those of other nodes' users, in the agent's loop.

A look asks the relay and the coordinator, and waits for neither: what has not answered in time is
named. However many users look, the work is bounded: equal looks share one answer.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import assert_never

from msgspec import Struct, field

from clusterrun.domain.event_source import NEVER
from clusterrun.domain.events import Event, LinesSeen, LookEvent, LookOrdered
from clusterrun.domain.looks import JobLook, LastLine, Look, MissingNode, NodeAnswer
from clusterrun.domain.messages import (
    AgentMessage,
    Looked,
    LookEnded,
    LookOrder,
    NodeLooked,
    RequestLook,
    TakeLook,
)
from clusterrun.domain.ranks import LocalRank

SECONDS_FOR_RELAY = 0.4
"""After that, ranks are shown without their last lines."""

SECONDS_FOR_COORDINATOR = 1.5
"""More than it gives the other nodes."""

SECONDS_BETWEEN_LOOKS = 0.1
"""Looks that come sooner wait."""

MOST_LOOKS = 4
"""Different ones at a time."""


Reply = Callable[[bytes], None]
"""Takes an encoded ``JobLook``."""


class LookPorts(Struct, frozen=True):
    """What the desk needs of the agent."""

    send: Callable[[AgentMessage], Iterable[Event]]
    """Sends a message to the coordinator; returns what follows at once."""
    ask_relay: Callable[[int], None]
    """A ``LinesSeen`` with the number answers."""
    answer: Callable[[Look, Mapping[LocalRank, LastLine], float], NodeAnswer]
    """Returns this node's answer, by the last lines of its workers and the agent's clock."""
    coordinator: Callable[[], tuple[int, str]]
    """Returns the node rank and the host of the coordinator."""


class _Task(Struct, frozen=True):
    """An answer of this node that waits for its relay."""

    number: int
    look: Look
    is_own: bool
    """The user is this node's."""
    until: float


class _OpenLook(Struct):
    """A look of this node's user."""

    look: Look
    replies: list[Reply]
    until: float = NEVER
    own: list[NodeAnswer] = field(default_factory=list)
    others: list[NodeAnswer] = field(default_factory=list)
    end: LookEnded | None = None
    """None while other nodes may answer."""


class LookDesk:
    """A source of events: its descriptor never becomes readable, only its time comes."""

    wants_write = False
    lost = False

    def __init__(self, ports: LookPorts) -> None:
        self._ports = ports
        self._descriptor = os.eventfd(0)
        self._queued: list[_OpenLook] = []
        self._open: dict[int, _OpenLook] = {}
        self._tasks: list[_Task] = []
        self._relay_is_asked = False
        self._last = 0
        self._next_at = 0.0

    @property
    def due(self) -> float:
        waits = self._queued and len(self._open) < MOST_LOOKS
        tasks = [task.until for task in self._tasks]
        looks = [each.until for each in self._open.values()]
        return min([self._next_at if waits else NEVER, *tasks, *looks])

    def fileno(self) -> int:
        return self._descriptor

    def flush(self) -> None:
        """Do nothing: nothing waits to be sent."""

    def close(self) -> None:
        os.close(self._descriptor)

    def look(self, look: Look, reply: Reply, now: float) -> Iterator[Event]:
        """Answer a user of this node: ``reply`` is called once, now or later."""
        for each in (*self._queued, *self._open.values()):
            if each.look == look:
                each.replies.append(reply)
                return
        self._queued.append(_OpenLook(look, [reply]))
        yield from self._begin_queued(now)

    def take(self, event: LookEvent) -> Iterator[Event]:
        """Take what the coordinator or the relay has sent."""
        match event:
            case LookOrdered(order, at):
                self._ordered(order, at)
            case LinesSeen(_, lines, at):
                self._relay_is_asked = False
                yield from self._answer_all(self._tasks, lines, at)
            case _:
                assert_never(event)
        yield from self._begin_queued(event.at)

    def events(self, now: float) -> Iterator[Event]:
        """Go on without what has not answered in time."""
        late = [task for task in self._tasks if now >= task.until]
        yield from self._answer_all(late, {}, now)
        for number, each in list(self._open.items()):
            if now >= each.until:
                rank, host = self._ports.coordinator()
                why = "does not answer: nodes that are not shown can't be asked"
                each.end = LookEnded(number, (MissingNode(rank, host, why),))
                self._finish(number)
        yield from self._begin_queued(now)

    def _begin_queued(self, now: float) -> Iterator[Event]:
        while self._queued and now >= self._next_at and len(self._open) < MOST_LOOKS:
            opened = self._queued.pop(0)
            self._last += 1
            self._next_at = now + SECONDS_BETWEEN_LOOKS
            opened.until = now + SECONDS_FOR_COORDINATOR
            self._open[self._last] = opened
            self._begin_task(self._last, opened.look, now, is_own=True)
            yield from self._ports.send(RequestLook(self._last, opened.look))

    def _ordered(self, order: LookOrder, now: float) -> None:
        match order:
            case TakeLook(number, look):
                self._begin_task(number, look, now, is_own=False)
            case NodeLooked(number, answer):
                if number in self._open:
                    self._open[number].others.append(answer)
            case LookEnded(number):
                if number in self._open:
                    self._open[number].end = order
                    self._finish(number)
            case _:
                assert_never(order)

    def _begin_task(self, number: int, look: Look, now: float, *, is_own: bool) -> None:
        self._tasks.append(_Task(number, look, is_own, now + SECONDS_FOR_RELAY))
        # A relay that hangs is asked once: no messages to it pile up.
        if not self._relay_is_asked:
            self._relay_is_asked = True
            self._ports.ask_relay(number)

    def _answer_all(
        self, tasks: list[_Task], lines: Mapping[LocalRank, LastLine], now: float
    ) -> Iterator[Event]:
        self._tasks = [task for task in self._tasks if task not in tasks]
        for task in tasks:
            answer = self._ports.answer(task.look, lines, now)
            if not task.is_own:
                yield from self._ports.send(Looked(task.number, answer))
            elif task.number in self._open:
                self._open[task.number].own.append(answer)
                self._finish(task.number)

    def _finish(self, number: int) -> None:
        """Reply once this node and all others have answered, or are named."""
        from clusterrun.control.messages import encode

        done = self._open[number]
        if done.end is None or not done.own:
            return
        del self._open[number]
        nodes = tuple(sorted([*done.own, *done.others], key=lambda each: each.node_rank))
        # Once, however many have asked.
        seen = encode(JobLook(nodes, done.end.missing, done.end.waiting))
        for reply in done.replies:
            reply(seen)
