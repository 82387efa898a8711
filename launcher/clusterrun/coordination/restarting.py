"""The next attempt of a job on all its nodes: whether there is one, and how it begins."""

from clusterrun.coordination import notices, restart_policy
from clusterrun.coordination.actions import Action, Send
from clusterrun.coordination.messages import NextAttempt
from clusterrun.coordination.state import NEVER, Attempt, Phase, State
from clusterrun.coordination.worlds import worlds
from clusterrun.domain.outcome import WorkerFailed


def is_possible(state: State) -> bool:
    """Return whether the limit of restarts allows another attempt."""
    return state.attempt.number < state.terms.restarts.limit


def why_no_restart(state: State, failed: WorkerFailed) -> str:
    """Return why there is no next attempt, for messages; "" if there is one."""
    for node in (*state.lost.values(), *state.left.values()):
        return notices.lost(node)
    previous = None if state.previous is None else state.previous.cause
    return restart_policy.why_no_restart(state.terms.restarts, failed.cause, previous)


def begin(state: State, port: int) -> tuple[Action, ...]:
    """Begin the next attempt on all nodes; its workers meet at ``port``."""
    failed = state.previous
    if failed is None:
        raise AssertionError("an attempt follows one that has failed")
    state.phase = Phase.RUNNING
    state.attempt = Attempt(state.attempt.number + 1)
    state.next_notice = NEVER
    places = worlds(state.terms, state.members.hellos, state.ranks, state.attempt.number, port)
    return tuple(Send((each,), NextAttempt(world, failed)) for each, world in places.items())
