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

    def renew(self, seconds: float | None) -> None:
        """Let workers run for ``seconds`` from now on; None: for as long as they do."""
        self._left = None if seconds is None else max(0.0, seconds)
        self._looked = self._clock()

    def milliseconds_left(self) -> float | None:
        """Return how long to wait before ``is_over`` is to be called; None: there is no lease."""
        return 1000 * min(self._left, SECONDS_BETWEEN_LOOKS) if self._left else None

    def is_over(self) -> bool:
        """Return whether the lease has run out: no worker may run until it is renewed."""
        if self._left is None:
            return False
        now = self._clock()
        self._left = max(0.0, self._left - min(now - self._looked, _MOST_OF_ONE_LOOK))
        self._looked = now
        return self._left == 0
