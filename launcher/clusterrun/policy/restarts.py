"""Whether an attempt that has ended is followed by another, and after which pause."""

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
"""A worker that fails so soon after its start twice in the same way would fail a third time."""

MAX_IMMEDIATE_RESTARTS = 2
"""Attempts that end so early, one after the other, and are followed by the next one at once."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds before later ones: each pause is twice the last one. A worker that dies at once
must not use up all restarts in a second: what it needs may come back."""


class Restarts:
    """What ended the attempts until now, and how many of them a failure did."""

    def __init__(self, options: Failures) -> None:
        self.count = 0
        """Attempts that followed the failure of a worker, or a hang."""
        self.quick = 0
        """Of them, the last ones in a row whose worker had failed soon after its start."""
        self.last: ReasonToRestart | None = None
        """What ended the last attempt; None while the first one runs."""
        self._before: ReasonToRestart | None = None
        self._options = options

    @property
    def one_is_left(self) -> bool:
        return self.count < self._options.max_restarts

    def ended(self, why: ReasonToRestart) -> None:
        """Take note of what has ended an attempt."""
        self._before, self.last = self.last, why

    @property
    def ended_by(self) -> ReasonToRestart:
        """What ended the last attempt, once one has ended."""
        if self.last is None:
            raise AssertionError("an attempt has ended")
        return self.last

    def fails_check(self) -> None:
        """Take note that the node has failed its check whose worker had failed."""
        if not isinstance(self.last, WorkerFailed):
            raise AssertionError("a worker has failed")  # noqa: TRY004 - of ours, not of a caller
        self.last = replace(self.last, fails_check=True)

    def why_not(self) -> str:
        """Return why no attempt follows the last failure, for messages; "" if one may."""
        if not isinstance(self.last, WorkerFailed):
            return ""
        cause, options = self.last.cause, self._options
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
        """Count the restart, if it is one; return the seconds to wait before it."""
        if isinstance(self.last, NodeLost):
            return 0.0
        self.count += 1
        is_quick = isinstance(self.last, WorkerFailed) and _is_early(self.last.cause)
        self.quick = self.quick + 1 if is_quick else 0
        doublings = self.quick - MAX_IMMEDIATE_RESTARTS - 1
        return 0.0 if doublings < 0 else min(FIRST_PAUSE * 2.0 ** min(doublings, 10), LONGEST_PAUSE)

    def _repeats(self, cause: WorkerResult) -> bool:
        """Return whether a worker has failed soon after its start, twice in the same way."""
        if not isinstance(self._before, WorkerFailed):
            return False
        other = self._before.cause
        is_early = _is_early(cause) and _is_early(other)
        # A worker that printed nothing may have failed for any reason.
        same_line = _last_line(cause) == _last_line(other) != ""
        return (
            is_early
            and same_line
            and (cause.rank, cause.exit_status) == (other.rank, other.exit_status)
        )


def _is_early(cause: WorkerResult) -> bool:
    """Return whether a worker has failed soon after its start."""
    return cause.ran_for <= EARLY_FAILURE_SECONDS


def _last_line(result: WorkerResult) -> str:
    return result.tail.rstrip().rpartition("\n")[2].strip()
