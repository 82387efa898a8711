"""Turns of a loop whose clock a test sets."""

from clusterrun.loop import Loop
from clusterrun.policy import events


def events_of_turn(loop: Loop[events.Event], seconds: float = 0.0) -> list[events.Event]:
    """Let a loop take one turn, which may take so long; return what has happened."""
    loop.turn(loop.clock() + seconds)
    last = events.ForkServerPrepared(loop.clock())
    loop.add([last])
    return list(iter(loop.next_event, last))
