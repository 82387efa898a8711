"""Agents that are left over from an earlier start of the job.

An agent that never reached node 0 does not learn that node 0 has ended, and calls until its time is
over. It would be one node too many in the job that its user starts instead.
"""

from clusterrun.coordination.coordinator_events import HelloReceived
from clusterrun.coordination.job_state import JobState

SECONDS_BETWEEN_STARTS = 5.0
"""Agents that began to call within this time may belong to one start."""


def leftover(state: JobState, newcomer: HelloReceived) -> int | None:
    """Return the connection of the leftover among ``newcomer`` and the members with its place.

    A leftover runs on the same host, by name and address, and began to call well before this node 0
    began and well before the other agent. None if there is none: then the two contradict each other.
    """
    # An agent that is not early may have begun together with node 0.
    started = min(started_at(newcomer), state.began)
    for rival in state.members.rivals(newcomer.hello, newcomer.address):
        ahead = started - state.early.get(rival, state.began)
        if abs(ahead) > SECONDS_BETWEEN_STARTS:
            return rival if ahead > 0 else newcomer.connection
    return None


def is_early(state: JobState, started: float) -> bool:
    """Return whether an agent began to call well before this node 0 began."""
    return started < state.began - SECONDS_BETWEEN_STARTS


def started_at(newcomer: HelloReceived) -> float:
    """Return when a newcomer began to call, by the coordinator's clock."""
    return newcomer.at - newcomer.hello.waited
