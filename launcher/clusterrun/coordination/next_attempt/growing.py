"""An elastic world grows while it runs: all workers restart to let in nodes that wait."""

from clusterrun.coordination.job_notices import listed
from clusterrun.coordination.job_state import JobPhase, JobState
from clusterrun.coordination.next_attempt.bad_nodes import next_ranks
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.outcome import NodesJoined


def newcomer_waits(state: JobState, at: float) -> None:
    """Take note that a node waits; others may join until the time for all of them is over."""
    delay = state.terms.reforming.grows_after
    if delay is not None and state.phase is JobPhase.RUNNING:
        state.grows_at = min(state.grows_at, at + delay)


def time_passed(state: JobState) -> NodesJoined | None:
    """Return the nodes to let in; None if there are none, or if the attempt ends anyway."""
    state.grows_at = NEVER
    hellos, attempt = state.members.hellos, state.attempt
    ends = attempt.reason_to_stop is not None or attempt.reports or state.request is not None
    places = next_ranks(state)
    if ends or places is None or len(places) <= len(state.ranks):
        return None
    return NodesJoined(listed(hellos[each].host for each in places if each not in state.ranks))
