"""The end of the job: all members get the same verdict."""

from clusterrun.coordination.coordinator_actions import Actions, Disconnect, Send
from clusterrun.coordination.job_state import JobPhase, JobState
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import Verdict
from clusterrun.domain.outcome import Reason


def end_job(state: JobState, why: Reason, no_restart: str) -> Actions:
    """Send the verdict to all members, also to those that wait for a place."""
    state.phase = JobPhase.OVER
    state.next_notice = NEVER
    receivers = (*reachable(state), *state.waiting)
    verdict = Send(receivers, Verdict(why, no_restart))
    # The other members disconnect once they have the verdict.
    return (verdict, Disconnect(tuple(state.silent))) if state.silent else (verdict,)


def reachable(state: JobState) -> tuple[int, ...]:
    """Return the members with ranks that may receive a message: a silent one may continue."""
    return tuple(each for each in state.ranks if not state.is_absent(each) or each in state.silent)
