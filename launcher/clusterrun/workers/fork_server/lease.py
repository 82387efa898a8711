"""Until when workers may run, and how long an agent may be frozen.

The other nodes of a job may go on without a node that they do not hear from. Its workers must have ended
by then, also where its agent is frozen and cannot end them.
"""

from __future__ import annotations

from .kernel import boot_clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS_BETWEEN_CHECKS = 0.5
"""The time that ``poll`` waits stands still while the machine is suspended; a lease goes on."""


class WorkersLease:
    """Ends at a time of ``boot_clock``, however late this process reads that.

    There is none before the agent first sends one.
    """

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        self._clock = clock
        self._until: float | None = None

    def renew(self, until: float | None) -> None:
        """Let workers run until then; None: as long as they do."""
        self._until = until

    def milliseconds_left(self) -> float | None:
        """Return how long to wait before ``is_over`` is to be called; None: only a renewal changes it."""
        if self._until is None:
            return None
        left = self._until - self._clock()
        return 1000 * min(left, SECONDS_BETWEEN_CHECKS) if left > 0 else None

    def is_over(self) -> bool:
        """Return whether no worker may run until the lease is renewed."""
        return self._until is not None and self._clock() >= self._until
