"""Answers the queries of this node's commands and of other nodes, in the agent's loop.

The work is bounded however many commands ask, because equal queries share one answer. If the
coordinator does not answer in time, the answer is this node's own and says that others are missing.
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
"""Added to a query's seconds: more than the coordinator gives the other nodes."""

SECONDS_BETWEEN_QUERIES = 0.1
"""Commands' queries that come sooner wait."""

MAX_OPEN_QUERIES = 4
"""Different queries at a time."""

MAX_ANSWER_BYTES = 256 << 20
"""Of all answers to one query; more answers are dropped."""

ANSWER_OVERHEAD = 512
"""Maximum bytes of an answer apart from its body."""

NOT_REACHED = "does not answer, so nodes that are not shown could not be queried"

Reply = Callable[[bytes], None]
"""Takes encoded ``Answers``."""

OnAnswer = Callable[[Answer], Iterable[Event]]
"""Takes this node's answer; returns what follows."""


class AgentCallbacks(Struct, frozen=True):
    """What the service calls."""

    send: Callable[[AgentMessage], Iterable[Event]]
    """Sends a message to the coordinator; returns what follows at once."""
    answer: Callable[[Query, OnAnswer, float], Iterable[Event]]
    """Collects this node's answer, and passes it on now or later."""
    concerns: Callable[[Query], bool]
    """Returns whether a query is about this node."""
    node_zero: Callable[[], str]
    """Returns node 0's host."""


class _OpenQuery(Struct):
    """A query of one or more commands on this node."""

    query: Query
    replies: list[Reply]
    deadline: float = NEVER
    waits_for_own: bool = True
    answers: list[Answer] = field(default_factory=list)
    size: int = 0
    """Total bytes of the answers."""
    end: EndOfAnswers | None = None
    """None while other nodes may answer."""

    def add(self, answer: Answer) -> None:
        """Add another node's answer."""
        self.size += ANSWER_OVERHEAD + len(answer.body) + len(answer.problem)
        if self.size <= MAX_ANSWER_BYTES:
            self.answers.append(answer)


class QueryService:
    """The open queries of this node's commands."""

    def __init__(self, agent: AgentCallbacks) -> None:
        self._agent = agent
        self._queued: list[_OpenQuery] = []
        self._open: dict[int, _OpenQuery] = {}
        self._last = 0
        self._next_at = 0.0

    @property
    def due(self) -> float:
        waits = self._queued and len(self._open) < MAX_OPEN_QUERIES
        next_at = self._next_at if waits else NEVER
        return min([next_at, *(each.deadline for each in self._open.values())])

    def ask(self, query: Query, reply: Reply, now: float) -> Iterator[Event]:
        """Answer a command on this node: ``reply`` is called once, now or later."""
        for each in (*self._queued, *self._open.values()):
            if each.query == query:
                each.replies.append(reply)
                return
        self._queued.append(_OpenQuery(query, [reply]))
        yield from self._begin_queued(now)

    def take(self, event: QueryReceived) -> Iterator[Event]:
        """Handle a message of the coordinator."""
        match event.message:
            case Query() as query:
                yield from self._agent.answer(query, self._agent.send, event.at)
            case Answer(number) as answer:
                if number in self._open:
                    self._open[number].add(answer)
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
        """Finish the queries whose deadline has passed with the answers that have come."""
        for number, each in list(self._open.items()):
            if now >= each.deadline:
                silent = MissingNode(0, self._agent.node_zero(), NOT_REACHED)
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
            opened.deadline = now + query.seconds + SECONDS_FOR_COORDINATOR
            opened.waits_for_own = self._agent.concerns(query)
            self._open[self._last] = opened
            if opened.waits_for_own:
                if query.rank is not None:
                    # Only this node is asked: the coordinator may not answer.
                    opened.end = EndOfAnswers(self._last)
                yield from self._agent.answer(query, partial(self._add_own, self._last), now)
            if opened.end is None:
                yield from self._agent.send(query)

    def _add_own(self, number: int, answer: Answer) -> tuple[()]:
        if number in self._open:
            self._open[number].waits_for_own = False
            self._open[number].answers.append(answer)
            self._finish(number)
        return ()

    def _finish(self, number: int) -> None:
        """Reply once this node has answered and ``end`` is known."""
        done = self._open[number]
        if done.end is None or done.waits_for_own:
            return
        del self._open[number]
        answers = tuple(sorted(done.answers, key=lambda each: each.node_rank))
        # Encoded once, however many commands have asked.
        encoded = msgspec.msgpack.encode(Answers(answers, done.end))
        for reply in done.replies:
            reply(encoded)
