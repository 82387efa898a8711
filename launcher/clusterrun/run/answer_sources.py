"""Asynchronous sources of a query's answer: the relay, and child processes. Both have time limits."""

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct

from clusterrun.loop import NEVER, Loop
from clusterrun.policy.events import Event, RelayAnswer, RelayAnswered
from clusterrun.policy.queries import MAX_BODY, Topic
from clusterrun.processes import SECONDS_TO_DIE, TimeLimitedChild

MAX_UNANSWERED = 16
"""Queries to a relay that hangs; more fail at once."""

SECONDS_TO_FORGET = 60.0
"""After that an unanswered query no longer counts."""

OnSeen = Callable[[RelayAnswer | None, float], Iterable[Event]]
"""Takes the relay's answer, None if it does not come in time, and the time of the agent's loop."""

OnBody = Callable[[bytes, str], Iterable[Event]]
"""Takes a body, or b"" and why there is none."""


class _OpenRelayQuery(Struct, frozen=True):
    then: OnSeen
    deadline: float


class RelayQueries:
    """Queries to the relay, which answers with an event; it may hang."""

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, _OpenRelayQuery] = {}
        """By number."""
        self._unanswered: dict[int, float] = {}
        """When each was asked."""

    def ask(
        self, ask: Callable[[int], object], then: OnSeen, seconds: float, now: float
    ) -> Iterable[Event]:
        """Call ``ask`` with a number, unless the relay hangs; ``then`` gets the answer."""
        self._unanswered = {
            each: at for each, at in self._unanswered.items() if now < at + SECONDS_TO_FORGET
        }
        if len(self._unanswered) >= MAX_UNANSWERED:
            return then(None, now)
        self._last += 1
        self._open[self._last] = _OpenRelayQuery(then, now + seconds)
        self._unanswered[self._last] = now
        ask(self._last)
        return ()

    def take(self, event: RelayAnswered) -> Iterator[Event]:
        """Handle an answer of the relay."""
        self._unanswered.pop(event.number, None)
        if query := self._open.pop(event.number, None):
            yield from query.then(event.seen, event.at)

    @property
    def due(self) -> float:
        return min((each.deadline for each in self._open.values()), default=NEVER)

    def events(self, now: float) -> Iterator[Event]:
        """Finish the queries whose deadline has passed without an answer."""
        for number, query in list(self._open.items()):
            if now >= query.deadline:
                del self._open[number]
                yield from query.then(None, now)


class _OpenChild(Struct, frozen=True):
    child: TimeLimitedChild
    then: OnBody
    seconds: float
    deadline: float


class AnswerProcesses:
    """Child processes that collect answers which may take long: at most one for each topic."""

    def __init__(self, loop: Loop[Event]) -> None:
        self._loop = loop
        self._open: dict[Topic, _OpenChild] = {}

    def ask(
        self, topic: Topic, find: Callable[[], object], then: OnBody, seconds: float
    ) -> Iterable[Event]:
        """Call ``find`` in a child process; ``then`` gets its result as ``encoded`` returns it."""
        now = self._loop.clock()
        if topic in self._open:
            return then(b"", f"is busy: other commands are already asking for its {topic.value}")
        try:
            child = TimeLimitedChild(
                lambda: msgspec.msgpack.encode(encoded(find())), seconds, now=now
            )
        except OSError as error:
            return then(b"", f"can't start a process: {error.strerror}")
        self._open[topic] = _OpenChild(child, then, seconds, now + seconds)
        self._loop.watch(child.fileno(), self.events)
        return ()

    @property
    def due(self) -> float:
        return min((each.deadline for each in self._open.values()), default=NEVER)

    def events(self, now: float) -> Iterator[Event]:
        """Handle the results that have come, and kill the processes whose deadline has passed."""
        for topic, each in list(self._open.items()):
            answer = each.child.answer(now)
            if answer is None:
                continue
            self._end(topic)
            try:
                body, problem = msgspec.msgpack.decode(answer, type=tuple[bytes, str])
            except msgspec.MsgspecError:
                body, problem = b"", "has no result: the process that collects it has failed"
                if each.child.is_late:
                    problem = f"has no result after {each.seconds:g} s"
            yield from each.then(body, problem)

    def close(self) -> None:
        """Kill all processes, and wait a second at most for their end."""
        most = SECONDS_TO_DIE / max(1, len(self._open))
        for topic in list(self._open):
            self._end(topic, most)

    def _end(self, topic: Topic, seconds: float = 0.0) -> None:
        """Kill a process and all that it has started, and wait for ``seconds``.

        While the job runs there is no wait, because the process may hang in the kernel.
        """
        child = self._open.pop(topic).child
        self._loop.forget(child.fileno())
        child.end(seconds)


def encoded(body: object) -> tuple[bytes, str]:
    """Return an encoded body and ""; or b"" and why there is none, if ``body`` is a str or too long."""
    if isinstance(body, str):
        return b"", body
    data = msgspec.msgpack.encode(body)
    return (data, "") if len(data) <= MAX_BODY else (b"", "has too long an answer")
