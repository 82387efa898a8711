"""Rounds that collect the stacks of all ranks: a user asks for one, or no rank moves any more."""

from typing import assert_never

from clusterrun.coordination.actions import Action, Send
from clusterrun.coordination.members import OWN
from clusterrun.coordination.messages import (
    AllStacks,
    Idle,
    RequestStacks,
    SendStacks,
    Stacks,
    StacksMessage,
)
from clusterrun.coordination.state import NEVER, StackRound, State
from clusterrun.domain.stacks import MOST_GROUPS

SECONDS_TO_ANSWER = 4.0
"""For all nodes; each gives its workers 2 s."""

MOST_KEPT = 200
"""Different stacks while answers come in; far fewer are shown."""

MOST_MISSING = 20
"""Nodes without an answer that are named."""


def message_received(
    state: State, connection: int, message: StacksMessage, at: float
) -> tuple[Action, ...]:
    """Take note of a member's message about stacks; it never ends the job."""
    match message:
        case RequestStacks():
            host = "" if connection == OWN else state.members.hellos[connection].host
            return _begin(state, at, 0.0, host)
        case Idle(_, seconds):
            return _idle(state, connection, seconds, at)
        case Stacks():
            return _answered(state, connection, message)
        case _:
            assert_never(message)


def due(state: State) -> float:
    """Return how long answers are awaited."""
    current = state.attempt.stack_round
    return NEVER if current is None else current.deadline


def finish(state: State) -> tuple[Action, ...]:
    """Show the answers, and which nodes gave none."""
    current, state.attempt.stack_round = state.attempt.stack_round, None
    if current is None:
        return ()
    nodes = sorted((state.ranks[each], each) for each in current.awaited)
    missing = [
        f"node {rank} ({state.members.hellos[each].host})" for rank, each in nodes[:MOST_MISSING]
    ]
    if len(nodes) > MOST_MISSING:
        missing.append(f"{len(nodes) - MOST_MISSING} more nodes")
    groups = current.groups.most_common(MOST_GROUPS)
    return (Send((OWN,), AllStacks(groups, tuple(missing))),)


def _begin(state: State, at: float, idle_for: float, host: str) -> tuple[Action, ...]:
    if state.attempt.stack_round is not None:
        return ()
    state.stack_rounds += 1
    members, number = state.present(), state.stack_rounds
    state.attempt.stack_round = StackRound(number, at + SECONDS_TO_ANSWER, set(members))
    return (Send(members, SendStacks(state.attempt.number, number, idle_for, host)),)


def _idle(state: State, connection: int, seconds: float, at: float) -> tuple[Action, ...]:
    idle = state.attempt.idle
    if seconds <= 0 or state.is_absent(connection):
        idle.discard(connection)
        return ()
    idle.add(connection)
    present = len(state.ranks) - len(state.lost) - len(state.left)
    return _begin(state, at, seconds, "") if len(idle) == present else ()


def _answered(state: State, connection: int, stacks: Stacks) -> tuple[Action, ...]:
    current = state.attempt.stack_round
    if current is None or current.number != stacks.number or connection not in current.awaited:
        return ()
    current.awaited.discard(connection)
    current.groups.add(stacks.groups, MOST_KEPT)
    return () if current.awaited else finish(state)
