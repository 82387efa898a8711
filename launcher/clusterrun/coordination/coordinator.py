"""The coordinator's whole policy, without input or output: which action follows which event."""

from typing import assert_never

from clusterrun.coordination import ending, gathering, notices, restarting, stack_rounds
from clusterrun.coordination.actions import Action, Disconnect, Send
from clusterrun.coordination.admission import Contradiction
from clusterrun.coordination.events import (
    Abandoned,
    CallerConnected,
    CallerGone,
    Event,
    HelloReceived,
    MemberGone,
    MemberSilent,
    MessageReceived,
    PortReady,
    TimePassed,
)
from clusterrun.coordination.members import OWN, Members
from clusterrun.coordination.messages import Notice, StacksMessage, Suspension
from clusterrun.coordination.notices import SECONDS_BETWEEN_NOTICES, SECONDS_TO_FIRST_NOTICE
from clusterrun.coordination.state import NEVER, Attempt, Phase, State, Terms
from clusterrun.coordination.worlds import names_own_workers_only

FEW_NODES = 8
"""In jobs of at most this many nodes, each node prints what the job waits for; in larger ones only node 0."""


def opened(terms: Terms, at: float) -> State:
    """Return the coordinator's state at its start: only its own agent has joined."""
    state = State(
        terms=terms,
        began=at,
        members=Members({OWN: terms.hello}, {0: OWN}),
        attempt=Attempt(0),
        next_notice=at + SECONDS_TO_FIRST_NOTICE,
        informed=1,
    )
    gathering.note_count(state, at)
    return state


def due(state: State) -> float:
    """Return when ``TimePassed`` is to happen."""
    if state.phase is Phase.RUNNING:
        return min(state.next_notice, stack_rounds.due(state))
    if state.phase is not Phase.GATHERING:
        return state.next_notice
    return min(state.next_notice, gathering.given_up_at(state), gathering.settled_at(state))


def decide(state: State, event: Event) -> tuple[Action, ...]:
    """Bring ``state`` up to date with ``event``; return what is to be done about it, in order."""
    match event:
        case CallerConnected():
            state.callers += 1
            return ()
        case CallerGone(refused, at):
            state.callers -= 1
            notes = gathering.note_refusal(state, refused)
            return (*notes, *gathering.begin_if_complete(state, at))
        case HelloReceived():
            state.callers -= 1
            return gathering.hello_received(state, event)
        case MessageReceived():
            return _message_received(state, event)
        case MemberGone():
            notes = gathering.note_refusal(state, event.refused)
            return (*notes, *_member_gone(state, event))
        case MemberSilent():
            return _member_silent(state, event)
        case TimePassed(at):
            return _time_passed(state, at)
        case PortReady(port):
            return restarting.begin(state, port) if state.phase is Phase.RESTARTING else ()
        case Abandoned(why, _, hint):
            return gathering.give_up(state, Contradiction(why, hint))
        case _:
            assert_never(event)


def _message_received(state: State, event: MessageReceived) -> tuple[Action, ...]:
    connection, message = event.connection, event.message
    if connection not in state.ranks:
        # Only members of a running job send such messages.
        return (Disconnect((connection,)),)
    if state.phase is not Phase.RUNNING:
        return ()
    if isinstance(message, Suspension):
        return _suspended(state, connection, suspended=message.suspended)
    if message.attempt < state.attempt.number:
        # That attempt is over on all nodes already.
        return ()
    if message.attempt > state.attempt.number:
        return (Disconnect((connection,)),)
    first, workers = state.first_ranks[connection], state.members.hellos[connection].workers
    if not names_own_workers_only(message, range(first, first + workers)):
        return (Disconnect((connection,)),)
    if isinstance(message, StacksMessage):
        return stack_rounds.message_received(state, connection, message, event.at)
    return ending.message_received(state, connection, message, event.at)


def _member_gone(state: State, gone: MemberGone) -> tuple[Action, ...]:
    connection = gone.connection
    match state.phase:
        case Phase.GATHERING if state.members.has_joined(connection):
            return (gathering.remove(state, connection, "has disconnected", gone.at),)
        case Phase.RUNNING if connection in state.ranks:
            return ending.member_gone(state, connection, gone.at, unreachable=gone.unreachable)
        case _:
            return ()


def _member_silent(state: State, silent: MemberSilent) -> tuple[Action, ...]:
    connection = silent.connection
    match state.phase:
        case Phase.GATHERING if state.members.has_joined(connection):
            notice = gathering.remove(state, connection, state.terms.rhythm.silence, silent.at)
            return (notice, Disconnect((connection,)))
        case Phase.RUNNING if connection in state.ranks:
            return ending.member_silent(state, connection, silent.at)
        case _:
            return (Disconnect((connection,)),)


def _suspended(state: State, connection: int, *, suspended: bool) -> tuple[Action, ...]:
    """Print which node the job waits for; members must not wait for a suspended node 0."""
    if suspended == (connection in state.suspended):
        return ()
    if suspended:
        state.suspended.add(connection)
    else:
        state.suspended.discard(connection)
    text = notices.suspended(state, connection)
    if connection != OWN and _is_large(state):
        # Without a look at each member: a scheduler may suspend all nodes at once.
        return (Send((OWN,), Notice(text)),)
    others = tuple(each for each in state.ranks if each != connection)
    order = (Send(others, Suspension(suspended)),) if connection == OWN and others else ()
    return (*order, *_notify(state, others, text))


def _time_passed(state: State, at: float) -> tuple[Action, ...]:
    match state.phase:
        case Phase.GATHERING if at >= gathering.settled_at(state):
            return gathering.begin_if_complete(state, at)
        case Phase.GATHERING if at >= gathering.given_up_at(state):
            why = Contradiction(notices.nodes_missing(state), notices.hint_to_nodes_missing(state))
            return gathering.give_up(state, why)
        case Phase.GATHERING if at >= state.next_notice:
            state.next_notice = at + SECONDS_BETWEEN_NOTICES
            return _notify(state, tuple(state.members.hellos), _waiting(state, at))
        case Phase.RUNNING if at >= stack_rounds.due(state):
            return stack_rounds.finish(state)
        case Phase.RUNNING if at >= state.next_notice:
            state.next_notice = at + ending.SECONDS_BETWEEN_STOP_NOTICES
            return _notify(state, tuple(state.attempt.reports), notices.still_running(state))
        case _:
            return ()


def _waiting(state: State, at: float) -> str:
    if state.enough_at == NEVER:
        return notices.waiting(state, at)
    return notices.last_call(state, gathering.settled_at(state) - at)


def _notify(state: State, connections: tuple[int, ...], text: str) -> tuple[Action, ...]:
    if _is_large(state):
        connections = tuple(each for each in connections if each == OWN)
    return (Send(connections, Notice(text)),) if connections else ()


def _is_large(state: State) -> bool:
    return state.terms.nodes > FEW_NODES
