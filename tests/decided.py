"""A node's policy as a function, for tests that go on from one attempt in several ways."""

from msgspec.structs import replace

from tests.door import Attempt, Event, actions


def decide(attempt: Attempt, event: Event) -> tuple[Attempt, tuple[actions.Action, ...]]:
    """Return what becomes of a copy of an attempt, and what is to be done, in order."""
    after = replace(
        attempt,
        suspending=replace(attempt.suspending),
        running=dict(attempt.running),
        ended=dict(attempt.ended),
        outputs=dict(attempt.outputs),
        late_exits={rank: replace(late) for rank, late in attempt.late_exits.items()},
        signals=dict(attempt.signals),
        decided=[],
    )
    return after, tuple(after.happens(event))
