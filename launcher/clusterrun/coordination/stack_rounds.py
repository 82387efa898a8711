"""Rounds that collect the stacks of all ranks: a user asks for one, or no rank moves any more."""

from typing import assert_never

from clusterrun.coordination import job_notices
from clusterrun.coordination.coordinator_actions import Actions, Send
from clusterrun.coordination.job_state import JobState, StackRound
from clusterrun.coordination.members import OWN
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import (
    AllStacks,
    Idle,
    Notice,
    RequestStacks,
    SendStacks,
    Stacks,
    StacksMessage,
)
from clusterrun.domain.stacks import MOST_GROUPS

SECONDS_TO_ANSWER = 4.0
"""For all nodes; each gives its workers 2 s."""

MOST_KEPT = 200
"""Different stacks while answers come in; far fewer are shown."""

MOST_MISSING = 20
"""Nodes without an answer that are named."""


def message_received(
    state: JobState, connection: int, message: StacksMessage, at: float
) -> Actions:
    """Take note of a member's message about stacks; it never ends the job."""
    match message:
        case RequestStacks():
            # A user of node 0 sees that agent's notice.
            host = state.members.hellos[connection].host
            return _begin(
                state, at, "" if connection == OWN else job_notices.stacks_requested(host)
            )
        case Idle(_, seconds):
            return _idle(state, connection, seconds, at)
        case Stacks():
            return _answered(state, connection, message)
        case _:
            assert_never(message)


def due(state: JobState) -> float:
    """Return how long answers are awaited."""
    current = state.attempt.stack_round
    return NEVER if current is None else current.deadline


def finish(state: JobState) -> Actions:
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


def _begin(state: JobState, at: float, why: str) -> Actions:
    """Ask all members for their stacks, and print ``why`` on node 0."""
    if state.attempt.stack_round is not None:
        return ()
    state.stack_rounds += 1
    members, number = state.present(), state.stack_rounds
    state.attempt.stack_round = StackRound(number, at + SECONDS_TO_ANSWER, set(members))
    notice = (Send((OWN,), Notice(why)),) if why else ()
    return (*notice, Send(members, SendStacks(state.attempt.number, number)))


def _idle(state: JobState, connection: int, seconds: float, at: float) -> Actions:
    idle = state.attempt.idle
    if seconds <= 0 or state.is_absent(connection):
        idle.discard(connection)
        return ()
    idle.add(connection)
    present = len(state.ranks) - len(state.lost_before_report) - len(state.lost_after_report)
    return _begin(state, at, job_notices.nothing_moves(seconds)) if len(idle) == present else ()


def _answered(state: JobState, connection: int, stacks: Stacks) -> Actions:
    current = state.attempt.stack_round
    if current is None or current.number != stacks.number or connection not in current.awaited:
        return ()
    current.awaited.discard(connection)
    current.groups.add(stacks.groups, MOST_KEPT)
    return () if current.awaited else finish(state)
