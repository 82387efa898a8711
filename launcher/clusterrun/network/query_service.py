"""Answers the queries of this node's commands, and those of other nodes, in the agent's loop.

However many ask, the work is bounded: equal queries share one answer. A coordinator that does not
answer in time is named, and this node's own answer is given.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import assert_never

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from clusterrun.loop import NEVER
from clusterrun.policy.events import Event, QueryReceived
from clusterrun.policy.messages import AgentMessage, PrintStacks
from clusterrun.policy.queries import Answer, Answers, EndOfAnswers, MissingNode, Query

SECONDS_FOR_COORDINATOR = 0.3
"""More than it gives the other nodes."""

SECONDS_BETWEEN_QUERIES = 0.1
"""Queries of commands that come sooner wait."""

MAX_OPEN_QUERIES = 4
"""Different queries of commands at a time."""

MAX_ANSWER_BYTES = 256 << 20
"""Bytes that are kept for one query; more are ignored."""

ANSWER_OVERHEAD = 512
"""Bytes of an answer beside its body, at most."""

NOT_REACHED = "does not answer: nodes that are not shown can't be asked"

Reply = Callable[[bytes], None]
"""Takes encoded ``Answers``."""

Then = Callable[[Answer], Iterable[Event]]
"""Takes this node's answer; returns what follows."""


class AgentCallbacks(Struct, frozen=True):
    """What the service needs of the agent."""

    send: Callable[[AgentMessage], Iterable[Event]]
    """Sends a message to the coordinator; returns what follows at once."""
    answer: Callable[[Query, Then, float], Iterable[Event]]
    """Finds out this node's answer; ``Then`` gets it, now or later."""
    concerns: Callable[[Query], bool]
    """Whether this node has an answer."""
    node_zero: Callable[[], str]
    """Returns node 0's host."""


class _OpenQuery(Struct):
    """A query of this node's commands."""

    query: Query
    replies: list[Reply]
    until: float = NEVER
    waits_for_own: bool = True
    answers: list[Answer] = field(default_factory=list)
    size: int = 0
    """Bytes of these."""
    end: EndOfAnswers | None = None
    """None while other nodes may answer."""

    def take(self, answer: Answer) -> None:
        """Keep another node's answer."""
        self.size += ANSWER_OVERHEAD + len(answer.body) + len(answer.problem)
        if self.size <= MAX_ANSWER_BYTES:
            self.answers.append(answer)


class QueryService:
    """Acts when it is asked, and at its times."""

    def __init__(self, ports: AgentCallbacks) -> None:
        self._ports = ports
        self._queued: list[_OpenQuery] = []
        self._open: dict[int, _OpenQuery] = {}
        self._last = 0
        self._next_at = 0.0

    @property
    def due(self) -> float:
        waits = self._queued and len(self._open) < MAX_OPEN_QUERIES
        return min([self._next_at if waits else NEVER, *(it.until for it in self._open.values())])

    def ask(self, query: Query, reply: Reply, now: float) -> Iterator[Event]:
        """Answer a command of this node: ``reply`` is called once, now or later."""
        for each in (*self._queued, *self._open.values()):
            if each.query == query:
                each.replies.append(reply)
                return
        self._queued.append(_OpenQuery(query, [reply]))
        yield from self._begin_queued(now)

    def take(self, event: QueryReceived) -> Iterator[Event]:
        """Take what the coordinator has sent."""
        match event.message:
            case Query() as query:
                yield from self._ports.answer(query, self._ports.send, event.at)
            case Answer(number) as answer:
                if number in self._open:
                    self._open[number].take(answer)
            case EndOfAnswers(number) as end:
                if number in self._open:
                    self._open[number].end = end
                    self._finish(number)
            case PrintStacks():
                raise AssertionError("the agent prints them")
            case _:
                assert_never(event.message)
        yield from self._begin_queued(event.at)

    def events(self, now: float) -> Iterator[Event]:
        """Go on without what has not answered in time."""
        for number, each in list(self._open.items()):
            if now >= each.until:
                silent = MissingNode(0, self._ports.node_zero(), NOT_REACHED)
                each.end = each.end or EndOfAnswers(number, (silent,))
                each.waits_for_own = False
                self._finish(number)
        yield from self._begin_queued(now)

    def _begin_queued(self, now: float) -> Iterator[Event]:
        while self._queued and now >= self._next_at and len(self._open) < MAX_OPEN_QUERIES:
            opened = self._queued.pop(0)
            self._last += 1
            self._next_at = now + SECONDS_BETWEEN_QUERIES
            query = replace(opened.query, number=self._last)
            opened.until = now + query.seconds + SECONDS_FOR_COORDINATOR
            opened.waits_for_own = self._ports.concerns(query)
            self._open[self._last] = opened
            if opened.waits_for_own:
                if query.rank is not None:
                    # Nobody else is asked: the coordinator may not answer.
                    opened.end = EndOfAnswers(self._last)
                yield from self._ports.answer(query, partial(self._take_own, self._last), now)
            if opened.end is None:
                yield from self._ports.send(query)

    def _take_own(self, number: int, answer: Answer) -> tuple[()]:
        if number in self._open:
            self._open[number].waits_for_own = False
            self._open[number].answers.append(answer)
            self._finish(number)
        return ()

    def _finish(self, number: int) -> None:
        """Reply once this node and all others have answered, or are named."""
        done = self._open[number]
        if done.end is None or done.waits_for_own:
            return
        del self._open[number]
        answers = tuple(sorted(done.answers, key=lambda each: each.node_rank))
        # Once, however many have asked.
        encoded = msgspec.msgpack.encode(Answers(answers, done.end))
        for reply in done.replies:
            reply(encoded)
