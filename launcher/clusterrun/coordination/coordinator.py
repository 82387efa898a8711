"""The coordinator's whole policy: who is let in, when the world is complete, how it ends. Pure."""

from typing import assert_never

from msgspec.structs import replace

from clusterrun.coordination import ending, gathering, notices, restarting, stack_rounds
from clusterrun.coordination.admission import Quarrel
from clusterrun.coordination.messages import Suspension, Waiting
from clusterrun.coordination.rank_ownership import is_about_its_own
from clusterrun.coordination.state import (
    NEVER,
    OWN,
    Abandoned,
    Called,
    Decision,
    Gone,
    HangUp,
    Happening,
    Heard,
    HungUp,
    Introduced,
    Overheard,
    Phase,
    PortReady,
    Reply,
    Send,
    Silent,
    State,
    Terms,
    Ticked,
)
from clusterrun.coordination.wait_limits import SECONDS_BETWEEN_NOTICES, SECONDS_TO_FIRST_NOTICE

FEW_NODES = 8
"""So many may each print for whom they wait; in larger jobs only node 0 does."""


def opened(terms: Terms, at: float) -> State:
    """Return the coordinator's state at its start: its own agent is there."""
    state = State(
        terms=terms,
        began=at,
        members={OWN: terms.hello},
        claims={0: OWN},
        next_notice=at + SECONDS_TO_FIRST_NOTICE,
        told=1,
    )
    return gathering.counted(state, at)


def due(state: State) -> float:
    """Return when ``Ticked`` is to happen."""
    if state.phase is Phase.RUNNING:
        return min(state.next_notice, stack_rounds.due(state))
    if state.phase is not Phase.GATHERING:
        return state.next_notice
    return min(state.next_notice, gathering.given_up_at(state), gathering.settled_at(state))


def decide(state: State, happening: Happening) -> Decision:
    """Return what ``happening`` makes of ``state``, and what is to be done about it."""
    match happening:
        case Called():
            return replace(state, callers=state.callers + 1), ()
        case HungUp(refused, at):
            state, notes = gathering.note_refusal(state, refused)
            state, replies = gathering.complete(replace(state, callers=state.callers - 1), at)
            return state, (*notes, *replies)
        case Introduced():
            state = replace(state, callers=state.callers - 1)
            return gathering.introduced(state, happening)
        case Heard(connection) if connection not in state.ranks:
            # It is no member of a running job, and says what only such a one would.
            return state, (HangUp((connection,)),)
        case Heard(_, message) if state.phase is not Phase.RUNNING or (
            message.attempt < state.attempt
        ):
            # Of an attempt that is over: whatever it was, all have stopped for it already.
            return state, ()
        case Heard(connection, message) if message.attempt > state.attempt:
            return state, (HangUp((connection,)),)
        case Heard(connection, message) if not is_about_its_own(state, connection, message):
            return state, (HangUp((connection,)),)
        case Heard():
            return ending.heard(state, happening)
        case Overheard():
            return _overheard(state, happening)
        case Gone():
            state, notes = gathering.note_refusal(state, happening.refused)
            state, replies = _gone(state, happening)
            return state, (*notes, *replies)
        case Silent():
            return _silent(state, happening)
        case Ticked(at):
            return _ticked(state, at)
        case PortReady(port):
            return restarting.begin(state, port) if state.phase is Phase.RESTARTING else (state, ())
        case Abandoned(why, _, hint):
            return gathering.give_up(state, Quarrel(why, hint), ())
        case _:
            assert_never(happening)


def _gone(state: State, gone: Gone) -> Decision:
    match state.phase:
        case Phase.GATHERING if gone.connection in state.members:
            return gathering.left(state, gone.connection, "has left again", gone.at)
        case Phase.RUNNING if gone.connection in state.ranks:
            return ending.gone(state, gone)
        case _:
            return state, ()


def _silent(state: State, silent: Silent) -> Decision:
    match state.phase:
        case Phase.GATHERING if silent.connection in state.members:
            state, notes = gathering.left(
                state, silent.connection, state.terms.rhythm.silence, silent.at
            )
            return state, (*notes, HangUp((silent.connection,)))
        case Phase.RUNNING if silent.connection in state.ranks:
            return ending.silent(state, silent)
        case _:
            return state, (HangUp((silent.connection,)),)


def _overheard(state: State, overheard: Overheard) -> Decision:
    match overheard.message:
        case Suspension(suspended):
            return _suspended(state, overheard.connection, suspended=suspended)
        case about_stacks:
            return stack_rounds.overheard(state, overheard.connection, about_stacks, overheard.at)


def _suspended(state: State, connection: int, *, suspended: bool) -> Decision:
    """Tell people for whom the job waits, and the members not to wait for a sign of node 0."""
    if connection not in state.ranks:
        return state, (HangUp((connection,)),)
    if state.phase is not Phase.RUNNING or suspended == (connection in state.suspended):
        return state, ()
    changed = state.suspended ^ {connection}
    state = replace(state, suspended=changed)
    others = tuple(each for each in state.ranks if each != connection)
    notice = _tell(state, others, notices.suspended(state, connection))
    if connection != OWN or not others:
        return state, notice
    return state, (Send(others, Suspension(suspended)), *notice)


def _ticked(state: State, at: float) -> Decision:
    match state.phase:
        case Phase.GATHERING if at >= gathering.settled_at(state):
            return gathering.complete(state, at)
        case Phase.GATHERING if at >= gathering.given_up_at(state):
            quarrel = Quarrel(notices.never_came(state), notices.hint_to_never_came(state))
            return gathering.give_up(state, quarrel, ())
        case Phase.GATHERING if at >= state.next_notice:
            state = replace(state, next_notice=at + SECONDS_BETWEEN_NOTICES)
            return state, _tell(state, tuple(state.members), _waiting(state, at))
        case Phase.RUNNING if at >= stack_rounds.due(state):
            return stack_rounds.timed_out(state)
        case Phase.RUNNING if at >= state.next_notice:
            state = replace(state, next_notice=at + ending.SECONDS_BETWEEN_NOTICES)
            return state, _tell(state, tuple(state.reports), notices.still_running(state))
        case _:
            return state, ()


def _waiting(state: State, at: float) -> str:
    if state.enough_at == NEVER:
        return notices.waiting(state, at)
    return notices.last_call(state, gathering.settled_at(state) - at)


def _tell(state: State, audience: tuple[int, ...], text: str) -> tuple[Reply, ...]:
    if state.terms.nodes > FEW_NODES:
        audience = tuple(each for each in audience if each == OWN)
    return (Send(audience, Waiting(text)),) if audience else ()
