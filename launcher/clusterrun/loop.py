"""The event loop: waits for file descriptors and timers, and turns them into events.

Nothing else in an agent blocks.
"""

import select
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from enum import IntEnum
from itertools import islice
from typing import Generic, Protocol, TypeVar

NEVER = float("inf")
"""A time, in seconds, that is never reached."""

MAX_POLL_SECONDS = 3600.0
"""The kernel takes the timeout of a poll in milliseconds, as a C int."""

MAX_UNAUTHENTICATED_PER_TURN = 16
"""Limits how long a flood of unauthenticated connections can delay everything else."""

EventT = TypeVar("EventT")
EventT_co = TypeVar("EventT_co", covariant=True)


Ready = Callable[[float], Iterable[EventT]]
"""Called with the time when a descriptor is ready; does a turn's share of work and returns the events.

It must not block. It may be called when there is nothing to do, and once more after its descriptor
was forgotten."""


class Timer(Protocol[EventT_co]):
    """Something to call at a time that it sets itself."""

    @property
    def due(self) -> float:
        """When to call ``events``."""

    def events(self, now: float) -> Iterable[EventT_co]:
        """Act, without blocking, and return the events."""


class Priority(IntEnum):
    """The order in which a turn serves ready descriptors."""

    SIGNALS = 0
    """Served in every turn, ready or not: a signal that arrives during a wait precedes what ended it."""
    AUTHENTICATED = 1
    """Helper processes, members of the job, the user's commands."""
    LISTENERS = 2
    """Before unauthenticated connections, so one node too many is accepted, and refused, before the last
    admitted one completes the job; skipped while more of these wait than one turn serves."""
    UNAUTHENTICATED = 3
    """Connections that have not authenticated yet: last, and at most 16 per turn."""


class Loop(Generic[EventT]):
    """Turns ready descriptors and expired timers into events, one at a time, in order."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` returns monotonic seconds."""
        self.clock = clock
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[Priority, Ready[EventT], int]] = {}
        self._always: set[int] = set()
        self._postponed: list[Ready[EventT]] = []
        """Unauthenticated connections that were ready and not served in the last turn, in order."""
        self._timers: dict[Timer[EventT], None] = {}
        self._scheduled: dict[Hashable, tuple[float, Callable[[float], EventT]]] = {}
        self._events: deque[EventT] = deque()

    def watch(
        self,
        descriptor: int,
        ready: Ready[EventT],
        priority: Priority = Priority.AUTHENTICATED,
        *,
        reads: bool = True,
        writes: bool = False,
    ) -> None:
        """Call ``ready`` when a descriptor is readable, or writable; a hang-up counts as both."""
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
        """Stop watching a descriptor. Call this before the descriptor is closed."""
        self._always.discard(descriptor)
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def add_timer(self, timer: Timer[EventT]) -> None:
        """Call ``timer.events`` whenever it is due."""
        self._timers[timer] = None

    def remove_timer(self, timer: Timer[EventT]) -> None:
        self._timers.pop(timer, None)

    def at(self, key: Hashable, moment: float, event: Callable[[float], EventT]) -> None:
        """Schedule one event, replacing any that is scheduled under the same key.

        ``event`` gets the time and returns the event, which is queued after those queued before.
        """
        self._scheduled[key] = moment, event

    def next_event(self) -> EventT:
        """Return the next event; wait for it if there is none."""
        while not self._events:
            # Only now: what was done since the last check may have scheduled another moment.
            if not self._take_due(self.clock()):
                self.turn(min((moment for moment, _ in self._scheduled.values()), default=NEVER))
        return self._events.popleft()

    def add(self, events: Iterable[EventT]) -> None:
        """Queue events after all others."""
        self._events.extend(events)

    def add_first(self, events: Iterable[EventT]) -> None:
        """Queue events before all others."""
        self._events.extendleft(reversed(list(events)))

    def keep(self, wanted: Callable[[EventT], bool]) -> None:
        """Drop the queued events that are not wanted."""
        self._events = deque(filter(wanted, self._events))

    def turn(self, until: float = NEVER) -> None:
        """Wait until a descriptor is ready, a timer is due or ``until`` has passed; then serve them.

        It waits an hour at most, so callers check whether the time has come.
        """
        soonest = min([until, *(timer.due for timer in self._timers)])
        left = max(0.0, soonest - self.clock())
        seconds = None if soonest == NEVER else min(left, MAX_POLL_SECONDS)
        # All ready ones: a member that is not read in this turn may count as silent.
        ready = [each for each, _ in self._epoll.poll(seconds, len(self._watched) + 1)]
        now = self.clock()
        for serve in self._in_order(ready):
            self._events.extend(serve(now))
        # After reading, so that a timer sees every message that has arrived by now.
        for timer in [each for each in self._timers if now >= each.due]:
            self._events.extend(timer.events(now))

    def close(self) -> None:
        self._epoll.close()

    def _in_order(self, ready: Iterable[int]) -> Iterable[Ready[EventT]]:
        """Return what to call in this turn, each once."""
        by_priority: dict[Priority, dict[Ready[EventT], None]] = {
            priority: {} for priority in Priority
        }
        for descriptor in (*self._always, *ready):
            if descriptor in self._watched:
                priority, serve, _ = self._watched[descriptor]
                by_priority[priority][serve] = None
        waiting = by_priority.pop(Priority.UNAUTHENTICATED)
        if len(waiting) > MAX_UNAUTHENTICATED_PER_TURN:
            # No new connections until these are served; the postponed ones come first.
            del by_priority[Priority.LISTENERS]
            waiting = {**{serve: None for serve in self._postponed if serve in waiting}, **waiting}
        served = [*islice(waiting, MAX_UNAUTHENTICATED_PER_TURN)]
        self._postponed = [*islice(waiting, MAX_UNAUTHENTICATED_PER_TURN, None)]
        return [*(serve for found in by_priority.values() for serve in found), *served]

    def _take_due(self, now: float) -> bool:
        passed = [key for key, (moment, _) in self._scheduled.items() if now >= moment]
        for key in passed:
            _, event = self._scheduled.pop(key)
            self._events.append(event(now))
        return bool(passed)
