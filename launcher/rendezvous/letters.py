"""What a member says of its workers' fates: all that a report needs, and no more than may travel."""

from collections.abc import Sequence

from msgspec.structs import replace

from launcher.domain.outcome import Fate, HelperFailed, Interrupted, OutputGone, Reason
from launcher.rendezvous.wire import MAXIMUM_FRAME, AgedFate, Disturbance, Done, Failing

_SPACE = MAXIMUM_FRAME // 8
"""Characters for all tails and error files of one message; each may take four bytes."""

_MOST_OF_ONE = 16 << 10
"""Characters of one tail or error file: what a tail has at most, anyway."""


def failing(attempt: int, fate: Fate, age: float) -> Failing:
    """Return the message that a worker failed ``age`` seconds ago."""
    return Failing(attempt, _shortened(fate, _MOST_OF_ONE), max(0.0, age))


def done(attempt: int, fates: Sequence[Fate], now: float, disturbance: Reason | None) -> Done:
    """Return the message that all workers ended; ``now`` is the time by the clock of the fates."""
    failures = sum(not fate.ending.succeeded for fate in fates)
    most = min(_MOST_OF_ONE, _SPACE // max(1, 2 * failures))
    return Done(
        attempt,
        tuple(AgedFate(_shortened(fate, most), max(0.0, now - fate.clock)) for fate in fates),
        _from_outside(disturbance),
    )


def _shortened(fate: Fate, most: int) -> Fate:
    # A path is bytes, and need not be UTF-8.
    fate = replace(fate, log=fate.log.encode(errors="replace").decode())
    if fate.ending.succeeded:
        # Nobody asks for its last words.
        return replace(fate, tail="", error="")
    # Half a JSON text is none.
    return replace(
        fate, tail=fate.tail[-most:], error=fate.error if len(fate.error) <= most else ""
    )


def _from_outside(disturbance: Reason | None) -> Disturbance | None:
    return disturbance if isinstance(disturbance, Interrupted | OutputGone | HelperFailed) else None
