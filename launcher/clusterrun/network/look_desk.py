"""Answers the looks of this node's user, and those of other nodes' users, in the agent's loop.

A look asks the relay and the coordinator, and waits for neither: what has not answered in time is
named. However many users look, the work is bounded: equal looks share one answer.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import assert_never

import msgspec
from msgspec import Struct, field

from clusterrun.loop import NEVER
from clusterrun.policy.events import (
    Event,
    LookEvent,
    LookOrdered,
    RelaySaw,
    StacksCollected,
    StacksToPrint,
)
from clusterrun.policy.looks import (
    JobLook,
    Look,
    LookAtStacks,
    MissingNode,
    NodeAnswer,
    Seen,
    WorkerStacks,
)
from clusterrun.policy.messages import ON_NODE_ZERO, AgentMessage, Ask, End, LookOrder, Part

SECONDS_FOR_RELAY = 0.4
"""After that, this node answers without what its relay knows."""

SECONDS_FOR_STACKS = 1.0
"""More than the relay gives the workers."""

MOST_UNANSWERED = 16
"""Questions to a relay that hangs; after some time it is asked again."""

SECONDS_TO_ASK_AGAIN = 60.0

SECONDS_FOR_COORDINATOR = 0.3
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
    ask_relay: Callable[[int, Look], bool]
    """A ``RelaySaw`` with the number answers; False: the look needs nothing of the relay."""
    answer: Callable[[Look, Seen | None, float], NodeAnswer | None]
    """Returns this node's answer, by what the relay has seen and the agent's clock; None: none."""
    node_zero: Callable[[], str]
    """Returns node 0's host."""


Then = Callable[[Seen | None, float], Iterable[Event]]
"""Takes what the relay has seen, None if it does not answer in time, and the agent's clock."""


class _Task(Struct, frozen=True):
    """What waits for this node's relay."""

    then: Then
    until: float


class _OpenLook(Struct):
    """A look of this node's user."""

    look: Look
    replies: list[Reply]
    until: float = NEVER
    waits_for_own: bool = True
    answers: list[NodeAnswer] = field(default_factory=list)
    end: End | None = None
    """None while other nodes may answer."""


class LookDesk:
    """Acts when it is asked, and at its times."""

    def __init__(self, ports: LookPorts) -> None:
        self._ports = ports
        self._queued: list[_OpenLook] = []
        self._open: dict[int, _OpenLook] = {}
        self._tasks: dict[int, _Task] = {}
        """By the number of the question to the relay."""
        self._unanswered: dict[int, float] = {}
        """When the relay was asked."""
        self._last_question = 0
        self._last = 0
        self._next_at = 0.0

    @property
    def due(self) -> float:
        waits = self._queued and len(self._open) < MOST_LOOKS
        tasks = [task.until for task in self._tasks.values()]
        looks = [each.until for each in self._open.values()]
        return min([self._next_at if waits else NEVER, *tasks, *looks])

    def look(self, look: Look, reply: Reply, now: float) -> Iterator[Event]:
        """Answer a user of this node: ``reply`` is called once, now or later."""
        for each in (*self._queued, *self._open.values()):
            if each.look == look:
                each.replies.append(reply)
                return
        self._queued.append(_OpenLook(look, [reply]))
        yield from self._begin_queued(now)

    def collect_stacks(self, now: float) -> Iterator[Event]:
        """Have this node's workers print their stacks, for its own policy."""
        yield from self._begin_task(LookAtStacks(patient=True), now, _to_policy)

    def take(self, event: LookEvent) -> Iterator[Event]:
        """Take what the coordinator or the relay has sent."""
        match event:
            case LookOrdered(order, at):
                yield from self._ordered(order, at)
            case RelaySaw(number, seen, at):
                self._unanswered.pop(number, None)
                yield from self._answer(number, seen, at)
            case _:
                assert_never(event)
        yield from self._begin_queued(event.at)

    def events(self, now: float) -> Iterator[Event]:
        """Go on without what has not answered in time."""
        for number in [each for each, task in self._tasks.items() if now >= task.until]:
            yield from self._answer(number, None, now)
        for number, each in list(self._open.items()):
            if now >= each.until:
                why = "does not answer: nodes that are not shown can't be asked"
                each.end = End(number, (MissingNode(0, self._ports.node_zero(), why),))
                self._finish(number)
        yield from self._begin_queued(now)

    def _begin_queued(self, now: float) -> Iterator[Event]:
        while self._queued and now >= self._next_at and len(self._open) < MOST_LOOKS:
            opened = self._queued.pop(0)
            self._last += 1
            self._next_at = now + SECONDS_BETWEEN_LOOKS
            look = opened.look
            opened.until = now + look.seconds + SECONDS_FOR_COORDINATOR
            self._open[self._last] = opened
            yield from self._begin_task(look, now, partial(self._take_own, self._last, look))
            yield from self._ports.send(Ask(self._last, look))

    def _ordered(self, order: LookOrder, now: float) -> Iterator[Event]:
        match order:
            case Ask(number, look):
                yield from self._begin_task(look, now, partial(self._send_part, number, look))
            case End(number) if number == ON_NODE_ZERO:
                yield StacksToPrint(order, now)
            case Part(number, answer):
                if number in self._open:
                    self._open[number].answers.append(answer)
            case End(number):
                if number in self._open:
                    self._open[number].end = order
                    self._finish(number)
            case _:
                assert_never(order)

    def _begin_task(self, look: Look, now: float, then: Then) -> Iterator[Event]:
        """Ask the relay, unless it hangs or has nothing to say."""
        self._unanswered = {
            each: at for each, at in self._unanswered.items() if now < at + SECONDS_TO_ASK_AGAIN
        }
        self._last_question += 1
        self._tasks[self._last_question] = _Task(then, now + _seconds_for_relay(look))
        hangs = len(self._unanswered) >= MOST_UNANSWERED
        if not hangs and self._ports.ask_relay(self._last_question, look):
            self._unanswered[self._last_question] = now
        else:
            yield from self._answer(self._last_question, None, now)

    def _answer(self, question: int, seen: Seen | None, now: float) -> Iterator[Event]:
        """Go on with what the relay has seen, if it has answered in time."""
        if task := self._tasks.pop(question, None):
            yield from task.then(seen, now)

    def _send_part(self, number: int, look: Look, seen: Seen | None, now: float) -> Iterable[Event]:
        answer = self._ports.answer(look, seen, now)
        return () if answer is None else self._ports.send(Part(number, answer))

    def _take_own(self, number: int, look: Look, seen: Seen | None, now: float) -> tuple[()]:
        answer = self._ports.answer(look, seen, now)
        if number in self._open:
            self._open[number].waits_for_own = False
            self._open[number].answers += [] if answer is None else [answer]
            self._finish(number)
        return ()

    def _finish(self, number: int) -> None:
        """Reply once this node and all others have answered, or are named."""
        done = self._open[number]
        if done.end is None or done.waits_for_own:
            return
        del self._open[number]
        nodes = tuple(sorted(done.answers, key=lambda each: each.node_rank))
        # Once, however many have asked.
        seen = msgspec.msgpack.encode(
            JobLook(nodes, done.end.missing, done.end.waiting, done.end.suspension)
        )
        for reply in done.replies:
            reply(seen)


def _seconds_for_relay(look: Look) -> float:
    if isinstance(look, LookAtStacks):
        # After all its seconds, an answer counts no more: this node is named as one without.
        return look.seconds if look.patient else SECONDS_FOR_STACKS
    return SECONDS_FOR_RELAY


def _to_policy(seen: Seen | None, now: float) -> tuple[Event, ...]:
    return (StacksCollected(seen.groups, now),) if isinstance(seen, WorkerStacks) else ()
