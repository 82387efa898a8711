"""The one place where a process of ours waits: for descriptors, and for times."""

import select
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from enum import IntEnum
from itertools import islice
from typing import Generic, Protocol, TypeVar

NEVER = float("inf")
"""The time of what does not happen, in seconds."""

MAX_UNAUTHENTICATED_PER_TURN = 16
"""That are served: a flood of them keeps nothing else waiting for longer than that takes."""

EventT = TypeVar("EventT")
EventT_co = TypeVar("EventT_co", covariant=True)


Ready = Callable[[float], Iterable[EventT]]
"""Does what can be done at a time, without blocking, and no more than a turn's share; returns what has
happened. It may be called when there is nothing to do, and once more after its descriptor was
forgotten."""


class Timer(Protocol[EventT_co]):
    """What acts at a time."""

    @property
    def due(self) -> float:
        """When to call ``events``."""

    def events(self, now: float) -> Iterable[EventT_co]:
        """As ``Ready``."""


class Priority(IntEnum):
    """In which order a turn serves what is ready."""

    SIGNALS = 0
    """Served in each turn, ready or not: a signal that arrives while others wake us came before."""
    KNOWN = 1
    """Helper processes, members of the job, the user's commands."""
    LISTENERS = 2
    """Before strangers, so that the last one admitted does not hide one too many; but only where few
    of these wait."""
    UNAUTHENTICATED = 3
    """Who has connected and not proved yet to belong here: last, and few in a turn."""


class Loop(Generic[EventT]):
    """Turns ready descriptors and passed times into events, one at a time, in order."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns monotonic seconds."""
        self.clock = clock
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[Priority, Ready[EventT], int]] = {}
        self._always: set[int] = set()
        self._waiting: list[Ready[EventT]] = []
        """Strangers that were ready and not served in the last turn, first come, first served."""
        self._timed: dict[Timer[EventT], None] = {}
        self._moments: dict[Hashable, tuple[float, Callable[[float], EventT]]] = {}
        self._events: deque[EventT] = deque()

    # What to wait for.

    def watch(
        self,
        descriptor: int,
        ready: Ready[EventT],
        priority: Priority = Priority.KNOWN,
        *,
        reads: bool = True,
        writes: bool = False,
    ) -> None:
        """Call ``ready`` when a descriptor can be read, or written; its end counts as both."""
        mask = (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if writes else 0)
        known = self._watched.get(descriptor)
        if known is None:
            self._epoll.register(descriptor, mask)
        elif known[2] != mask:
            self._epoll.modify(descriptor, mask)
        self._watched[descriptor] = priority, ready, mask
        if priority is Priority.SIGNALS:
            self._always.add(descriptor)

    def forget(self, descriptor: int) -> None:
        """Watch a descriptor no longer: to be called before it is closed."""
        self._always.discard(descriptor)
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def time(self, timed: Timer[EventT]) -> None:
        """Have something act whenever it is due."""
        self._timed[timed] = None

    def remove_timer(self, timed: Timer[EventT]) -> None:
        self._timed.pop(timed, None)

    def at(self, key: Hashable, moment: float, event: Callable[[float], EventT]) -> None:
        """Have an event at a moment; this replaces what was to happen with the same key.

        ``event`` makes it, and takes the time. It happens after all that has happened already.
        """
        self._moments[key] = moment, event

    # Events.

    def next_event(self) -> EventT:
        """Return the next event; wait for it if there is none."""
        while not self._events:
            # Only now: what has been done since the last look may have set another moment.
            if not self._take_moments(self.clock()):
                self.turn(min((moment for moment, _ in self._moments.values()), default=NEVER))
        return self._events.popleft()

    def add(self, events: Iterable[EventT]) -> None:
        """Queue events after all others."""
        self._events.extend(events)

    def add_first(self, events: Iterable[EventT]) -> None:
        """Queue events before all others."""
        self._events.extendleft(reversed(list(events)))

    def keep(self, wanted: Callable[[EventT], bool]) -> None:
        """Drop those of the queued events that are not wanted."""
        self._events = deque(filter(wanted, self._events))

    def turn(self, until: float = NEVER) -> None:
        """Wait until something is ready or due, at most ``until`` then, and serve it."""
        soonest = min([until, *(each.due for each in self._timed)])
        seconds = None if soonest == NEVER else max(0.0, soonest - self.clock())
        # All of them: a member that is not read in this turn may count as silent.
        ready = [each for each, _ in self._epoll.poll(seconds, len(self._watched) + 1)]
        now = self.clock()
        for serve in self._in_order(ready):
            self._events.extend(serve(now))
        # All that had come was read by now: who was silent is.
        for timed in [each for each in self._timed if now >= each.due]:
            self._events.extend(timed.events(now))

    def close(self) -> None:
        self._epoll.close()

    def _in_order(self, ready: Iterable[int]) -> Iterable[Ready[EventT]]:
        """Return once each what is to be called in this turn."""
        by_priority: dict[Priority, dict[Ready[EventT], None]] = {
            priority: {} for priority in Priority
        }
        for descriptor in (*self._always, *ready):
            if descriptor in self._watched:
                priority, serve, _ = self._watched[descriptor]
                by_priority[priority][serve] = None
        strangers = by_priority.pop(Priority.UNAUTHENTICATED)
        if len(strangers) > MAX_UNAUTHENTICATED_PER_TURN:
            # First those that are here: however many call, few wait, and each in its turn.
            del by_priority[Priority.LISTENERS]
            waited = {serve: None for serve in self._waiting if serve in strangers}
            strangers = {**waited, **strangers}
        served = [*islice(strangers, MAX_UNAUTHENTICATED_PER_TURN)]
        self._waiting = [*islice(strangers, MAX_UNAUTHENTICATED_PER_TURN, None)]
        return [*(serve for found in by_priority.values() for serve in found), *served]

    def _take_moments(self, now: float) -> bool:
        passed = [key for key, (moment, _) in self._moments.items() if now >= moment]
        for key in passed:
            _, event = self._moments.pop(key)
            self._events.append(event(now))
        return bool(passed)
