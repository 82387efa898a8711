"""How long workers may run without the agent.

The other nodes of a job may continue without a node that is silent. By then its workers must have ended,
even if its agent is frozen and cannot kill them.
"""

from __future__ import annotations

from .kernel import boot_clock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS_BETWEEN_CHECKS = 0.5
"""``poll`` does not count the time for which the machine is suspended, but a lease does."""


class WorkersLease:
    """Expires at a time of ``boot_clock``. There is none before the agent first sends one."""

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        self._clock = clock
        self._until: float | None = None

    def renew(self, until: float | None) -> None:
        """Let workers run until then; None: without limit."""
        self._until = until

    def milliseconds_left(self) -> float | None:
        """Return after how long to check ``has_expired`` again; None: only ``renew`` changes it."""
        if self._until is None:
            return None
        left = self._until - self._clock()
        return 1000 * min(left, SECONDS_BETWEEN_CHECKS) if left > 0 else None

    def has_expired(self) -> bool:
        """Tell whether no worker may run until the lease is renewed."""
        return self._until is not None and self._clock() >= self._until
