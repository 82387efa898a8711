"""The agent's event loop: the only place where it waits."""

import selectors
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from clusterrun.agent.ports import Clock, TimedEventSource
from clusterrun.policy.event_source import NEVER, EventSource
from clusterrun.policy.events import (
    CoordinatorLost,
    CoordinatorSent,
    CoordinatorSought,
    DeadlinePassed,
    Event,
    HelperLost,
    LookEvent,
    OutputClosed,
    SignalReceived,
    StopWanted,
    SuspensionWanted,
)
from clusterrun.policy.messages import HoldRanks, Stop, SuspensionPossible

CONCERNS_ANY_ATTEMPT = (
    SignalReceived,
    SuspensionWanted,
    StopWanted,
    OutputClosed,
    HelperLost,
    CoordinatorLost,
    CoordinatorSought,
    LookEvent,
)
"""Events that come once, and concern the attempt that begins as well as the one before."""


class EventLoop:
    """Turns ready sources and passed deadlines into events, one at a time, in order."""

    def __init__(
        self,
        inbox: EventSource,
        sources: Callable[[], Sequence[TimedEventSource]],
        clock: Clock,
        after_waiting: Callable[[], None],
    ) -> None:
        """Take what to wait for.

        Args:
            inbox: signals; read before all other sources.
            sources: returns the other sources.
            clock: the time.
            after_waiting: called at each wake.

        """
        self._inbox = inbox
        self._sources = sources
        self._clock = clock
        self._after_waiting = after_waiting
        self._selector = selectors.DefaultSelector()
        self._deadline = NEVER
        self._events: deque[Event] = deque()

    def next_event(self) -> Event:
        """Return the next event; wait for it if there is none."""
        while not self._events:
            now = self._clock.monotonic()
            # Only now: what has been decided since the last look may have set another deadline.
            if now >= self._deadline:
                self._deadline = NEVER
                return DeadlinePassed(now)
            self._wait()
        return self._events.popleft()

    def add(self, events: Iterable[Event]) -> None:
        """Queue events that no source has."""
        self._events.extend(events)

    def add_first(self, events: Iterable[Event]) -> None:
        """Queue events before all others."""
        self._events.extendleft(reversed(list(events)))

    def set_deadline(self, seconds: float) -> None:
        """Have a ``DeadlinePassed`` in ``seconds``; this replaces the last deadline."""
        self._deadline = self._clock.monotonic() + seconds

    def begin_attempt(self, attempt: int) -> None:
        """Drop the deadline, and events that concern only the attempt before."""
        self._deadline = NEVER
        self._events = deque(event for event in self._events if _concerns(event, attempt))

    def _wait(self) -> None:
        sources = self._register()
        due = min([self._deadline, *(source.due for source in sources)])
        seconds = None if due == NEVER else max(0.0, due - self._clock.monotonic())
        ready = {key.fd: mask for key, mask in self._selector.select(seconds)}
        now = self._clock.monotonic()
        # Ready or not: where a whole job is signalled, select may return with a worker's end, and
        # the byte of our own signal, which came before, be written on its way back.
        self.add(self._inbox.events(now))
        for source in sources:
            mask = ready.get(source.fileno(), 0)
            if mask & selectors.EVENT_WRITE:
                source.flush()
            if mask & selectors.EVENT_READ or now >= source.due:
                self.add(source.events(now))
        self._after_waiting()

    def _register(self) -> list[TimedEventSource]:
        """Watch every source that is not lost."""
        sources = [source for source in self._sources() if not source.lost]
        wanted = {source.fileno(): _mask(source) for source in sources}
        wanted[self._inbox.fileno()] = selectors.EVENT_READ
        known = dict(self._selector.get_map())
        for descriptor in known.keys() - wanted.keys():
            self._selector.unregister(descriptor)
        for descriptor, mask in wanted.items():
            if descriptor not in known:
                self._selector.register(descriptor, mask)
            elif known[descriptor].events != mask:
                self._selector.modify(descriptor, mask)
        return sources


def _concerns(event: Event, attempt: int) -> bool:
    match event:
        case CoordinatorSent(Stop(of_attempt) | HoldRanks(of_attempt)):
            return of_attempt == attempt
        case CoordinatorSent(SuspensionPossible()):
            return True
        case _:
            return isinstance(event, CONCERNS_ANY_ATTEMPT)


def _mask(source: TimedEventSource) -> int:
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if source.wants_write else 0)
