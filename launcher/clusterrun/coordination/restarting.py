"""The next attempt of a job on all its nodes: whether there is one, and how it begins. Pure."""

from msgspec.structs import replace

from clusterrun.coordination.messages import Again
from clusterrun.coordination.restart_policy import objection
from clusterrun.coordination.state import (
    NEVER,
    Decision,
    Phase,
    Send,
    StackRounds,
    State,
)
from clusterrun.coordination.worlds import worlds
from clusterrun.domain.outcome import Reason, WorkerFailed


def might_follow(state: State, reason: Reason) -> bool:
    """Tell whether an attempt that ended so may have a successor, if nothing speaks against it."""
    return isinstance(reason, WorkerFailed) and state.attempt < state.terms.restarts.limit


def obstacle(state: State, failed: WorkerFailed) -> str:
    """Return what speaks against the next attempt, for people; "" if nothing does."""
    for node in (*state.lost.values(), *state.left.values()):
        return f"node {node.node_rank} ({node.host}) {node.how}"
    previous = None if state.previous is None else state.previous.cause
    return objection(state.terms.restarts, failed.cause, previous)


def begin(state: State, port: int) -> Decision:
    """Tell all nodes of the next attempt, whose workers meet at ``port``."""
    failed = state.previous
    if failed is None:
        raise AssertionError("an attempt follows one that has failed")
    state = replace(
        state,
        phase=Phase.RUNNING,
        attempt=state.attempt + 1,
        cause_of_stop=None,
        external_causes=(),
        announced={},
        reports={},
        stacks=StackRounds(rounds=state.stacks.rounds),
        next_notice=NEVER,
    )
    places = worlds(state.terms, state.members, state.ranks, state.attempt, port)
    return state, tuple(Send((each,), Again(world, failed)) for each, world in places.items())
