"""Wants a suspension some seconds before the scheduler ends the job."""

import os
from collections.abc import Iterable

from clusterrun.policy.event_source import NEVER
from clusterrun.policy.events import Event, SuspensionWanted


class EndTimer:
    """A time as a source of events: its descriptor never becomes readable."""

    wants_write = False
    lost = False

    def __init__(self, due: float, by: str) -> None:
        """Take the time, in seconds of the agent's monotonic clock, and who wants the suspension."""
        self.due = due
        self._by = by
        self._descriptor = os.eventfd(0)

    def fileno(self) -> int:
        return self._descriptor

    def events(self, now: float) -> Iterable[Event]:
        if now < self.due:
            return []
        self.due = NEVER
        return [SuspensionWanted(self._by, now)]

    def flush(self) -> None:
        """Do nothing: nothing waits to be sent."""

    def close(self) -> None:
        os.close(self._descriptor)
