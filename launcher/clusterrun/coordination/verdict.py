"""Why an attempt ended, once every node has reported or is lost."""

from collections.abc import Iterator, Sequence

from clusterrun.coordination.choice_of_cause import choose_cause
from clusterrun.coordination.job_state import JobState
from clusterrun.domain.outcome import (
    ExternalCause,
    Fate,
    Hung,
    Interrupted,
    Killed,
    NodesJoined,
    Reason,
    Succeeded,
    WorkerFailed,
)

SECONDS_OF_TOLERANCE = 1.0
"""Events so close together may be noticed in any order: workers may notice a dead peer sooner than
the coordinator notices that its node is lost."""

DatedFate = tuple[float, int, Fate]
"""When a worker ended or failed, by the coordinator's clock; its rank; its fate."""


def reached_reason(state: JobState) -> Reason:
    """Return why the attempt ended.

    An external cause that came before anything failed is first: nodes that are lost while they end
    are lost because of it. Then a lost node, since the failures of its peers are consequences; the
    failed worker that caused the others; and an external cause that came later.
    """
    first = state.attempt.reason_to_stop
    if isinstance(first, ExternalCause):
        return first
    dated = dated_fates(state)
    cause = choose_cause([fate for _, _, fate in dated])
    if state.lost_before_report and not (cause and _failed_before_the_loss(state, cause, dated)):
        return next(iter(state.lost_before_report.values()))
    if isinstance(first, NodesJoined | Hung):
        # Ranks that fail when they are stopped have no other reason for it. If all have just exited
        # with 0, they do so once more: a worker that even SIGKILL did not end has no fate, either.
        return first
    if cause and not _agents_got_the_same_signal(state, cause, dated):
        return WorkerFailed(cause)
    if external_cause := next(reported_external_causes(state), None):
        return external_cause
    return WorkerFailed(first) if isinstance(first, Fate) else Succeeded()


def _failed_before_the_loss(state: JobState, cause: Fate, dated: Sequence[DatedFate]) -> bool:
    """Return whether a worker failed clearly before a node was lost, or was the reason for it.

    The latter is so if the stop began with this failure, and the one lost node is its own. If more
    nodes are lost, a failure reported by one of them may be a consequence of another's loss.
    """
    if len(state.lost_before_report) == 1:
        [lost] = state.lost_before_report
        first, _ = state.attempt.announced.get(lost, (None, 0.0))
        began_with_it = first is not None and first == state.attempt.reason_to_stop
        if first is not None and began_with_it and first.rank == cause.rank:
            return True
    failed_at = next(at for at, _, fate in dated if fate == cause)
    return failed_at < state.lost_at - SECONDS_OF_TOLERANCE


def _agents_got_the_same_signal(state: JobState, cause: Fate, dated: Sequence[DatedFate]) -> bool:
    """Return whether a signal that ended a worker was sent to an agent, too: it ends the job.

    One that comes later is a scheduler's answer to the failure.
    """
    failed_at = next(at for at, _, fate in dated if fate == cause)
    return any(
        cause.ending == Killed(each.number)
        and state.attempt.external_causes.get(each, failed_at) <= failed_at + SECONDS_OF_TOLERANCE
        for each in reported_external_causes(state)
        if isinstance(each, Interrupted)
    )


def reported_external_causes(state: JobState) -> Iterator[ExternalCause]:
    """Yield those that members reported at once, then those in their final reports."""
    attempt = state.attempt
    yield from attempt.external_causes
    yield from (each.external_cause for each in attempt.reports.values() if each.external_cause)


def dated_fates(state: JobState) -> list[DatedFate]:
    """Return all fates that are known, in the order of their ends or failures."""
    attempt = state.attempt
    dated = [
        (at, fate.rank, fate)
        for report in attempt.reports.values()
        for at, fate in zip(report.ends, report.fates, strict=True)
    ]
    announced = [
        attempt.announced[each] for each in state.lost_before_report if each in attempt.announced
    ]
    dated += [(at, fate.rank, fate) for fate, at in announced]
    # Those of one node are in the order of their ends, however close these are.
    return sorted(dated, key=lambda each: each[0])
