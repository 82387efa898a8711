"""Whether an attempt that failed is followed by another. Pure."""

from msgspec import Struct

from clusterrun.domain.cpuset import runs
from clusterrun.domain.job import JobSpec
from clusterrun.domain.outcome import Fate, NotStarted, exit_code_of

SECONDS_OF_AN_EARLY_END = 10.0
"""A worker that fails so soon after its start, twice in the same way, does so a third time."""


class RestartRules(Struct, frozen=True):
    """What the job's description says about restarting."""

    limit: int = 0
    """How many restarts there may be in all."""
    final_codes: tuple[int, ...] = ()
    """Exit codes that no restart follows."""
    fail_fast: bool = True
    """The same failure twice at once ends the job."""


def rules_of(job: JobSpec) -> RestartRules:
    """Return the rules of a job."""
    return RestartRules(
        limit=job.max_restarts.value,
        final_codes=job.no_restart_exit_codes.value,
        fail_fast=not job.no_fail_fast.value,
    )


def objection(rules: RestartRules, cause: Fate, previous: Fate | None) -> str:
    """Return what speaks against another attempt, for people; "" if nothing does.

    Args:
        rules: the job's.
        cause: what ended this attempt.
        previous: what ended the one before; None if this was the first.

    """
    if isinstance(cause.ending, NotStarted):
        return "what can't be started now can't be started the next time either"
    code = exit_code_of(cause.ending)
    if code in rules.final_codes:
        return f"exit code {code} is one of --no-restart-exit-codes {','.join(runs(rules.final_codes))}"
    if rules.fail_fast and previous is not None and _same_early_end(cause, previous):
        return (
            f"rank {cause.rank} failed twice with the same last line within"
            f" {SECONDS_OF_AN_EARLY_END:g} s of its start (--no-fail-fast restarts all the same)"
        )
    return ""


def _same_early_end(one: Fate, other: Fate) -> bool:
    early = max(one.ran_for, other.ran_for) <= SECONDS_OF_AN_EARLY_END
    # Who says nothing may have failed for any reason.
    same_words = _last_line(one) == _last_line(other) != ""
    return early and same_words and (one.rank, one.ending) == (other.rank, other.ending)


def _last_line(fate: Fate) -> str:
    return fate.tail.rstrip().rpartition("\n")[2].strip()
