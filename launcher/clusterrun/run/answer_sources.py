"""What an answer to a query may wait for, for a time: the relay, and a child process."""

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct

from clusterrun.loop import NEVER, Loop
from clusterrun.policy.events import Event, RelayAnswered, Seen
from clusterrun.policy.queries import MAX_BODY, Topic
from clusterrun.processes import SECONDS_TO_DIE, TimeLimitedChild

MAX_UNANSWERED = 16
"""Questions to a relay that hangs; after some time it is asked again."""

SECONDS_TO_ASK_AGAIN = 60.0

OnSeen = Callable[[Seen | None, float], Iterable[Event]]
"""Takes what the relay has seen, None if it does not answer in time, and the agent's clock."""

OnBody = Callable[[bytes, str], Iterable[Event]]
"""Takes a body, or b"" and why there is none."""


class _RelayQuestion(Struct, frozen=True):
    then: OnSeen
    until: float


class RelayQueries:
    """Questions to the relay, which answers by an event; it may hang."""

    def __init__(self) -> None:
        self._last = 0
        self._open: dict[int, _RelayQuestion] = {}
        """By number."""
        self._unanswered: dict[int, float] = {}
        """When the relay was asked."""

    def ask(
        self, ask: Callable[[int], object], then: OnSeen, seconds: float, now: float
    ) -> Iterable[Event]:
        """Ask the relay by a number, unless it hangs; ``then`` gets the answer."""
        self._unanswered = {
            each: at for each, at in self._unanswered.items() if now < at + SECONDS_TO_ASK_AGAIN
        }
        if len(self._unanswered) >= MAX_UNANSWERED:
            return then(None, now)
        self._last += 1
        self._open[self._last] = _RelayQuestion(then, now + seconds)
        self._unanswered[self._last] = now
        ask(self._last)
        return ()

    def take(self, event: RelayAnswered) -> Iterator[Event]:
        """Take an answer of the relay's."""
        self._unanswered.pop(event.number, None)
        if question := self._open.pop(event.number, None):
            yield from question.then(event.seen, event.at)

    @property
    def due(self) -> float:
        return min((each.until for each in self._open.values()), default=NEVER)

    def events(self, now: float) -> Iterator[Event]:
        """Go on without what has not come in time."""
        for number, question in list(self._open.items()):
            if now >= question.until:
                del self._open[number]
                yield from question.then(None, now)


class _OpenChild(Struct, frozen=True):
    child: TimeLimitedChild
    then: OnBody
    seconds: float
    until: float


class AnswerProcesses:
    """Child processes that find out answers which may take long; one for each topic."""

    def __init__(self, loop: Loop[Event]) -> None:
        self._loop = loop
        self._open: dict[Topic, _OpenChild] = {}

    def ask(
        self, topic: Topic, find: Callable[[], object], then: OnBody, seconds: float
    ) -> Iterable[Event]:
        """Have ``find`` called in a child process; ``then`` gets the body, see ``encoded``."""
        now = self._loop.clock()
        if topic in self._open:
            return then(b"", f"is busy: others ask for its {topic.value}")
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
        return min((each.until for each in self._open.values()), default=NEVER)

    def events(self, now: float) -> Iterator[Event]:
        """Read what has come, and kill those whose time is over."""
        for topic, each in list(self._open.items()):
            answer = each.child.answer(now)
            if answer is None:
                continue
            self._end(topic)
            try:
                body, problem = msgspec.msgpack.decode(answer, type=tuple[bytes, str])
            except msgspec.MsgspecError:
                late = f"has no result after {each.seconds:g} s"
                why = (
                    late
                    if each.child.is_late
                    else ("has no result: the process that collects it has failed")
                )
                body, problem = b"", why
            yield from each.then(body, problem)

    def close(self) -> None:
        """End all: waits a second at most."""
        most = SECONDS_TO_DIE / max(1, len(self._open))
        for topic in list(self._open):
            self._end(topic, most)

    def _end(self, topic: Topic, seconds: float = 0.0) -> None:
        """Kill a child, with what it has started.

        It may outlive that, in the kernel: its end is not waited for while the job runs.
        """
        child = self._open.pop(topic).child
        self._loop.forget(child.fileno())
        child.end(seconds)


def encoded(body: object) -> tuple[bytes, str]:
    """Return a body as bytes and ""; or b"" and why there is none: ``body`` itself, if it is a text."""
    if isinstance(body, str):
        return b"", body
    made = msgspec.msgpack.encode(body)
    return (made, "") if len(made) <= MAX_BODY else (b"", "has too long an answer")
