"""Whether a failed attempt is followed by another."""

from msgspec import Struct

from clusterrun.domain.cpuset import runs
from clusterrun.domain.outcome import Fate, NotStarted, exit_code_of
from clusterrun.job.job import Job

SECONDS_OF_AN_EARLY_END = 10.0
"""A worker that fails so soon after its start twice in the same way would fail a third time."""


QUICK_RESTARTS_AT_ONCE = 2
"""Attempts that end so early, one after the other, and are followed by the next one at once."""

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
"""Seconds before later ones: each pause is twice the last one. A worker that dies at once
must not use up all restarts in a second: what it needs may come back."""


class RestartRules(Struct, frozen=True):
    """The job's options about restarts."""

    limit: int = 0
    """The maximum number of restarts."""
    final_codes: tuple[int, ...] = ()
    """Exit codes after which the job ends."""
    ends_on_repeat: bool = True
    """The same early failure twice in a row ends the job."""


def rules_of(job: Job) -> RestartRules:
    return RestartRules(
        limit=job.failing.max_restarts,
        final_codes=job.failing.no_restart_exit_codes,
        ends_on_repeat=not job.failing.no_fail_fast,
    )


def why_no_restart(rules: RestartRules, cause: Fate, previous: Fate | None) -> str:
    """Return why there is no further attempt, for messages; "" if there is one.

    Args:
        rules: the job's options.
        cause: what ended this attempt.
        previous: what ended the attempt before; None if this was the first.

    """
    if isinstance(cause.ending, NotStarted):
        return "a worker that cannot be started now cannot be started the next time either"
    code = exit_code_of(cause.ending)
    if code in rules.final_codes:
        return f"exit code {code} is one of --no-restart-exit-codes {','.join(runs(rules.final_codes))}"
    if rules.ends_on_repeat and previous is not None and _same_early_end(cause, previous):
        return (
            f"rank {cause.rank} failed twice with the same last line within"
            f" {SECONDS_OF_AN_EARLY_END:g} s of its start (--no-fail-fast restarts all the same)"
        )
    return ""


def is_early(cause: Fate) -> bool:
    """Return whether a worker has failed soon after its start."""
    return cause.ran_for <= SECONDS_OF_AN_EARLY_END


def pause_before(quick_restarts: int) -> float:
    """Return the seconds before a restart: the last of ``quick_restarts`` in a row."""
    doublings = quick_restarts - QUICK_RESTARTS_AT_ONCE - 1
    return 0.0 if doublings < 0 else min(FIRST_PAUSE * 2.0 ** min(doublings, 10), LONGEST_PAUSE)


def _same_early_end(one: Fate, other: Fate) -> bool:
    early = is_early(one) and is_early(other)
    # A worker that printed nothing may have failed for any reason.
    same_line = _last_line(one) == _last_line(other) != ""
    return early and same_line and (one.rank, one.ending) == (other.rank, other.ending)


def _last_line(fate: Fate) -> str:
    return fate.tail.rstrip().rpartition("\n")[2].strip()
