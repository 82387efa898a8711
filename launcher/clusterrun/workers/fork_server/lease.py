"""How long workers may run without a sign that the rest of the job knows this node.

The other nodes of a job may go on without a node whose agent is frozen: nothing else ends its workers
before they do.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS_BETWEEN_LOOKS = 0.5

_MOST_OF_ONE_LOOK = 2 * SECONDS_BETWEEN_LOOKS
"""Of the time in which this process was stopped, no more counts: the whole node may have been."""


class Lease:
    """Runs out unless the agent renews it; there is none before the agent first does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: float | None = None
        self._looked = 0.0

    def renew(self, seconds: float) -> None:
        """Let workers run for ``seconds`` more; 0: for as long as they do."""
        self._left = seconds or None
        self._looked = self._clock()

    def milliseconds_left(self) -> float | None:
        """Return how long to wait before ``is_over`` is to be called; None: there is no lease."""
        return None if self._left is None else 1000 * min(self._left, SECONDS_BETWEEN_LOOKS)

    def is_over(self) -> bool:
        """Return, once, that the lease has run out."""
        if self._left is None:
            return False
        now = self._clock()
        self._left -= min(now - self._looked, _MOST_OF_ONE_LOOK)
        self._looked = now
        if self._left > 0:
            return False
        self._left = None
        return True
