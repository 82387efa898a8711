"""The loop asks a source for events when that is readable, and when it is due."""

import time

from tests.agent.attempts import FakeInbox, FakeSource
from tests.agent.clock import FakeClock
from tests.agent.door import (
    EventLoop,
    OutputClosed,
)


class DueSource(FakeSource):
    """A source that is never readable, and is due soon."""

    def __init__(self, clock: FakeClock) -> None:
        """Be due in a moment."""
        super().__init__(clock)
        self.due = time.monotonic() + 0.05

    def events(self, now: float) -> list[OutputClosed]:
        """Return one event, once it is due."""
        return [OutputClosed(now)] if now >= self.due else []


def test_a_source_is_asked_when_it_is_due() -> None:
    """A member sends heartbeats although nothing arrives."""
    clock = FakeClock()
    inbox, source = FakeInbox(clock), DueSource(clock)
    loop = EventLoop(inbox, lambda: [source], time, lambda: None)

    assert loop.next_event().at >= source.due
    source.close()
    inbox.source.close()
