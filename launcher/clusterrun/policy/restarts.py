"""Whether another attempt follows one that has ended, and after what delay."""

from msgspec.structs import replace

from clusterrun.cpuset import number_ranges
from clusterrun.job.options import Failures
from clusterrun.policy.outcome import (
    NodeLost,
    NotStarted,
    ReasonToRestart,
    WorkerFailed,
    WorkerResult,
    exit_code_of,
)

EARLY_FAILURE_SECONDS = 10.0
"""A worker that fails within this time of its start, twice in the same way, is not restarted again."""

MAX_IMMEDIATE_RESTARTS = 2
"""Consecutive attempts that may fail that early and be followed by the next one without a delay."""

MIN_DELAY = 0.5
MAX_DELAY = 30.0
"""Seconds before later attempts; each delay is twice the previous one. What a worker needs may become
available again, so a worker that fails at once must not use up all restarts in a second."""


class Restarts:
    """Counts restarts, and knows why the last attempt ended."""

    def __init__(self, options: Failures) -> None:
        self.count = 0
        """Attempts that followed a worker's failure or a hang."""
        self.early_failures = 0
        """The last consecutive attempts whose worker failed soon after its start."""
        self._last: ReasonToRestart | None = None
        """Why the last attempt ended; None while the first one runs."""
        self._options = options

    @property
    def one_is_left(self) -> bool:
        return self.count < self._options.max_restarts

    def ended(self, why: ReasonToRestart) -> None:
        """Record why an attempt has ended."""
        self._last = why

    @property
    def ended_by(self) -> ReasonToRestart:
        """Why the last attempt ended; there must have been one."""
        if self._last is None:
            raise AssertionError("an attempt has ended")
        return self._last

    def node_failed_check(self) -> None:
        """Record that the node of the failed worker has failed its check."""
        if not isinstance(self._last, WorkerFailed):
            raise AssertionError("a worker has failed")  # noqa: TRY004 - of ours, not of a caller
        self._last = replace(self._last, fails_check=True)

    def why_not(self, why: ReasonToRestart) -> str:
        """Return why no attempt may follow one that ends for this reason, for messages; "" if one may.

        Call it before ``ended``.
        """
        if not isinstance(why, WorkerFailed):
            return ""
        cause, options = why.cause, self._options
        if isinstance(cause.exit_status, NotStarted):
            return "a worker that can't be started now can't be started the next time either"
        code = exit_code_of(cause.exit_status)
        if code in options.no_restart_exit_codes:
            codes = ",".join(number_ranges(options.no_restart_exit_codes))
            return f"exit code {code} is one of --no-restart-exit-codes {codes}"
        if not options.no_fail_fast and self._repeats(cause):
            return (
                f"{cause.worker} failed twice with the same last line within"
                f" {EARLY_FAILURE_SECONDS:g} s of its start (--no-fail-fast restarts anyway)"
            )
        return ""

    def begin(self) -> float:
        """Count the restart; return the seconds to wait before it. A lost node is not counted."""
        if isinstance(self._last, NodeLost):
            return 0.0
        self.count += 1
        is_early = isinstance(self._last, WorkerFailed) and _is_early(self._last.cause)
        self.early_failures = self.early_failures + 1 if is_early else 0
        doublings = self.early_failures - MAX_IMMEDIATE_RESTARTS - 1
        return 0.0 if doublings < 0 else min(MIN_DELAY * 2.0 ** min(doublings, 10), MAX_DELAY)

    def _repeats(self, cause: WorkerResult) -> bool:
        """Return whether a worker has failed soon after its start in the last two attempts, in the same way."""
        if not isinstance(self._last, WorkerFailed):
            return False
        other = self._last.cause
        is_early = _is_early(cause) and _is_early(other)
        # A worker that printed nothing may have failed for any reason.
        same_line = _last_line(cause) == _last_line(other) != ""
        return (
            is_early
            and same_line
            and (cause.rank, cause.exit_status) == (other.rank, other.exit_status)
        )


def _is_early(cause: WorkerResult) -> bool:
    return cause.ran_for <= EARLY_FAILURE_SECONDS


def _last_line(result: WorkerResult) -> str:
    return result.tail.rstrip().rpartition("\n")[2].strip()
