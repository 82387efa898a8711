"""Rounds of collecting the stacks of all ranks: somebody asks, or nothing moves anywhere. Pure."""

from typing import assert_never

from msgspec.structs import replace

from clusterrun.coordination.messages import (
    AboutStacks,
    AskStacks,
    GiveStacks,
    Stacks,
    StacksOfAll,
    Still,
)
from clusterrun.coordination.rank_ownership import is_about_its_own
from clusterrun.coordination.state import (
    NEVER,
    OWN,
    Decision,
    HangUp,
    Phase,
    Send,
    StackRound,
    State,
)
from clusterrun.domain.stacks import grouped

SECONDS_TO_ANSWER = 4.0
"""For all nodes: each gives its workers 2 s."""

MOST_KEPT = 200
"""Different stacks while they come in; far fewer are shown."""

MOST_MISSING = 20
"""Nodes that are named as missing."""


def overheard(state: State, connection: int, message: AboutStacks, at: float) -> Decision:
    """Return what a member's message makes of ``state``: nothing that matters to the job's end."""
    if connection not in state.ranks:
        return state, (HangUp((connection,)),)
    if state.phase is not Phase.RUNNING or message.attempt < state.attempt:
        return state, ()
    if message.attempt > state.attempt:
        return state, (HangUp((connection,)),)
    match message:
        case AskStacks():
            host = "" if connection == OWN else state.members[connection].host
            return _ask(state, at, 0.0, host)
        case Still(_, seconds):
            return _still(state, connection, seconds, at)
        case Stacks() if not is_about_its_own(state, connection, message):
            return state, (HangUp((connection,)),)
        case Stacks():
            return _answered(state, connection, message)
        case _:
            assert_never(message)


def due(state: State) -> float:
    """Return until when answers are waited for."""
    return NEVER if state.stacks.round is None else state.stacks.round.deadline


def timed_out(state: State) -> Decision:
    """Show what has come in, and who did not answer."""
    current = state.stacks.round
    if current is None:
        return state, ()
    missing = [
        f"node {state.ranks[each]} ({state.members[each].host})"
        for each in _present(state)
        if each not in current.answered
    ]
    if len(missing) > MOST_MISSING:
        missing[MOST_MISSING:] = [f"{len(missing) - MOST_MISSING} more nodes"]
    gathered = StacksOfAll(grouped(current.groups), tuple(missing))
    state = replace(state, stacks=replace(state.stacks, round=None))
    return state, (Send((OWN,), gathered),)


def _ask(state: State, at: float, still_for: float, host: str) -> Decision:
    if state.stacks.round is not None:
        return state, ()
    number = state.stacks.rounds + 1
    current = StackRound(number, at + SECONDS_TO_ANSWER)
    state = replace(state, stacks=replace(state.stacks, rounds=number, round=current))
    return state, (Send(_present(state), GiveStacks(state.attempt, number, still_for, host)),)


def _still(state: State, connection: int, seconds: float, at: float) -> Decision:
    if seconds <= 0:
        still = state.stacks.still - {connection}
        return replace(state, stacks=replace(state.stacks, still=still)), ()
    still = state.stacks.still | {connection}
    state = replace(state, stacks=replace(state.stacks, still=still))
    return _ask(state, at, seconds, "") if still.issuperset(_present(state)) else (state, ())


def _answered(state: State, connection: int, stacks: Stacks) -> Decision:
    current = state.stacks.round
    if current is None or current.number != stacks.number or connection in current.answered:
        return state, ()
    current = replace(
        current,
        answered=current.answered | {connection},
        groups=grouped((*current.groups, *stacks.groups), MOST_KEPT),
    )
    state = replace(state, stacks=replace(state.stacks, round=current))
    return timed_out(state) if current.answered.issuperset(_present(state)) else (state, ())


def _present(state: State) -> tuple[int, ...]:
    absent = {*state.lost, *state.left}
    return tuple(each for each in state.ranks if each not in absent)
