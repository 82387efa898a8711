"""Where events come from: a descriptor to wait on, and a time."""

from collections.abc import Iterable
from typing import Protocol

from clusterrun.policy.events import Event

NEVER = float("inf")
"""The time of what does not happen, in seconds."""


class EventSource(Protocol):
    """A descriptor that becomes readable when there are events: signals, a helper process, node 0."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        ...

    def events(self, now: float) -> Iterable[Event]:
        """Return what has happened, dated ``now``, without blocking."""
        ...


class DueSource(EventSource, Protocol):
    """Events that may also be due at a time."""

    @property
    def due(self) -> float:
        """When to call ``events`` even if the descriptor is not readable; infinity: never."""
        ...
