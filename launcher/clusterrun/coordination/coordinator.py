"""The coordinator's whole policy, without input or output: which action follows which event."""

from functools import partial
from typing import assert_never

from msgspec.structs import replace

from clusterrun.coordination import (
    coordinator_events,
    ending,
    gathering,
    job_notices,
    look_rounds,
    stack_rounds,
    suspending,
)
from clusterrun.coordination.admission import Contradiction
from clusterrun.coordination.coordinator_actions import Actions, Disconnect, Send
from clusterrun.coordination.coordinator_events import CoordinatorEvent
from clusterrun.coordination.job_notices import SECONDS_BETWEEN_NOTICES, SECONDS_TO_FIRST_NOTICE
from clusterrun.coordination.job_state import Attempt, JobPhase, JobState
from clusterrun.coordination.lease import CoordinatorLease
from clusterrun.coordination.look_rounds import LookedAt
from clusterrun.coordination.members import OWN, Members
from clusterrun.coordination.next_attempt import beginning, growing, restarting
from clusterrun.coordination.succession import successors
from clusterrun.coordination.terms import Terms
from clusterrun.coordination.worlds import names_own_workers_only
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import (
    AttemptMessage,
    EndedExternally,
    Hello,
    LeftCoordinator,
    Looked,
    Notice,
    Paused,
    RequestLook,
    RequestSuspension,
    StacksMessage,
    SuccessionKnown,
    SuspensionMessage,
    Verdict,
)

FEW_NODES = 8
"""In jobs of at most this many nodes, each node prints what the job waits for; in larger ones only node 0."""


def opened(
    terms: Terms, hello: Hello, master_port: int, at: float, *, has_token: bool = False
) -> JobState:
    """Return the coordinator's state at its start: only its own agent has joined."""
    state = JobState(
        terms=terms,
        has_token=has_token,
        master_port=master_port,
        began=at,
        members=Members({OWN: hello}, {0: OWN}),
        attempt=Attempt(0),
        lease=CoordinatorLease(terms.rhythm.timeout),
        next_notice=at + SECONDS_TO_FIRST_NOTICE,
        informed=1,
    )
    gathering.note_count(state, at)
    return state


def due(state: JobState) -> float:
    """Return when ``TimePassed`` is to happen."""
    return min(look_rounds.due(state.looks), _due_for_all(state))


def _due_for_all(state: JobState) -> float:
    if state.phase is JobPhase.RUNNING:
        times = (stack_rounds.due(state), suspending.due(state), state.grows_at)
        return min(state.next_notice, *times)
    if state.phase is JobPhase.RESTARTING:
        return restarting.due(state)
    if state.phase is not JobPhase.GATHERING:
        return state.next_notice
    return min(state.next_notice, gathering.given_up_at(state), gathering.settled_at(state))


def decide(state: JobState, event: CoordinatorEvent) -> Actions:
    """Bring ``state`` up to date with ``event``; return what is to be done about it, in order."""
    match event:
        case coordinator_events.CallerConnected():
            state.callers += 1
            return ()
        case coordinator_events.CallerGone(refused, at):
            state.callers -= 1
            notes = gathering.note_refusal(state, refused)
            return (*notes, *gathering.begin_if_complete(state, at))
        case coordinator_events.HelloReceived():
            state.callers -= 1
            return gathering.hello_received(state, event)
        case coordinator_events.MessageReceived():
            return _message_received(state, event)
        case coordinator_events.MemberGone():
            notes = gathering.note_refusal(state, event.refused)
            return (*notes, *_member_gone(state, event))
        case coordinator_events.MemberSilent():
            return _member_silent(state, event)
        case coordinator_events.TimePassed(at):
            return (*_looks_passed(state, at), *_time_passed(state, at))
        case coordinator_events.PortReady():
            return _port_ready(state, event)
        case coordinator_events.Abandoned(why, _, hint):
            return gathering.give_up(state, Contradiction(why, hint))
        case _:
            assert_never(event)


def _message_received(state: JobState, event: coordinator_events.MessageReceived) -> Actions:
    connection, message = event.connection, event.message
    if connection not in state.ranks and connection in state.waiting:
        return _waiting_member_sent(state, event)
    if connection not in state.ranks:
        # Only members of a running job send such messages.
        return (Disconnect((connection,)),)
    if isinstance(message, RequestSuspension):
        known = state.request
        orders = suspending.requested(state, connection, message, event.at)
        return (*orders, *(successors.inform(state) if known is None else ()))
    if isinstance(message, RequestLook | Looked):
        return _look_message(state, connection, message, event.at)
    if isinstance(message, LeftCoordinator):
        return _member_silent(state, coordinator_events.MemberSilent(connection, event.at))
    if isinstance(message, SuccessionKnown):
        return restarting.succession_known(state, connection, message.attempt)
    if state.phase is JobPhase.RESTARTING and isinstance(message, EndedExternally):
        return restarting.ended_externally(state, message.external_cause)
    if state.phase not in {JobPhase.RUNNING, JobPhase.RESTARTING}:
        return ()
    if isinstance(message, Paused):
        return _paused(state, connection, paused=message.paused)
    if state.phase is JobPhase.RESTARTING or message.attempt < state.attempt.number:
        # That attempt is over on all nodes already.
        return ()
    return _attempt_message(state, connection, message, event.at)


def _attempt_message(
    state: JobState, connection: int, message: AttemptMessage, at: float
) -> Actions:
    if message.attempt > state.attempt.number:
        return (Disconnect((connection,)),)
    if not names_own_workers_only(message, state.ranks_of(connection)):
        return (Disconnect((connection,)),)
    if isinstance(message, StacksMessage):
        return stack_rounds.message_received(state, connection, message, at)
    if isinstance(message, SuspensionMessage):
        return suspending.message_received(state, connection, message, at)
    return ending.message_received(state, connection, message, at)


def _look_message(
    state: JobState, connection: int, message: RequestLook | Looked, at: float
) -> Actions:
    nodes = partial(_looked_at, state)
    if isinstance(message, Looked):
        return look_rounds.answered(state.looks, connection, message, nodes)
    return look_rounds.requested(state.looks, connection, message, nodes, at)


def _looked_at(state: JobState) -> LookedAt:
    return replace(state.looked_at(), suspension=suspending.awaited(state))


def _looks_passed(state: JobState, at: float) -> Actions:
    if at < look_rounds.due(state.looks):
        return ()
    return look_rounds.time_passed(state.looks, partial(_looked_at, state), at)


def _waiting_member_sent(state: JobState, event: coordinator_events.MessageReceived) -> Actions:
    """Take a request of a member without a place; it has no workers to report on."""
    connection, message = event.connection, event.message
    if isinstance(message, RequestSuspension):
        return suspending.requested(state, connection, message, event.at)
    if isinstance(message, LeftCoordinator):
        return _member_silent(state, coordinator_events.MemberSilent(connection, event.at))
    if isinstance(message, SuccessionKnown):
        return restarting.succession_known(state, connection, message.attempt)
    if not isinstance(message, EndedExternally):
        return ()
    # Its user has ended it, as it may end a node that has joined and never had a place.
    notes = restarting.waiting_member_gone(state, connection, "has left", event.at, has_ended=True)
    verdict = Send((connection,), Verdict(message.external_cause, ""))
    return (verdict, Disconnect((connection,)), *notes)


def _port_ready(state: JobState, ready: coordinator_events.PortReady) -> Actions:
    if state.phase is not JobPhase.RESTARTING:
        return ()
    # A request that came before holds for the attempt that begins.
    return (*beginning.begin(state, ready.port), *suspending.begin(state, ready.at))


def _member_gone(state: JobState, gone: coordinator_events.MemberGone) -> Actions:
    connection = gone.connection
    match state.phase:
        case JobPhase.GATHERING if state.members.has_joined(connection):
            return (gathering.remove(state, connection, "has disconnected", gone.at),)
        case JobPhase.RUNNING if connection in state.ranks:
            return ending.member_gone(state, gone)
        case JobPhase.RESTARTING if connection in state.ranks:
            return restarting.member_gone(state, gone)
        case JobPhase.RUNNING | JobPhase.RESTARTING if connection in state.waiting:
            return restarting.waiting_member_gone(
                state, connection, "has left", gone.at, has_ended=gone.has_ended
            )
        case _:
            return ()


def _member_silent(state: JobState, silent: coordinator_events.MemberSilent) -> Actions:
    connection = silent.connection
    match state.phase:
        case JobPhase.GATHERING if state.members.has_joined(connection):
            notice = gathering.remove(state, connection, state.terms.patience.silence, silent.at)
            return (notice, Disconnect((connection,)))
        case JobPhase.RUNNING if connection in state.ranks:
            return ending.member_silent(state, connection, silent.at)
        case JobPhase.RESTARTING if connection in state.ranks:
            return restarting.member_silent(state, connection, silent.at)
        case JobPhase.RUNNING | JobPhase.RESTARTING if connection in state.waiting:
            why = state.terms.patience.silence
            notes = restarting.waiting_member_gone(
                state, connection, why, silent.at, has_ended=False
            )
            return (*notes, Disconnect((connection,)))
        case _:
            return (Disconnect((connection,)),)


def _paused(state: JobState, connection: int, *, paused: bool) -> Actions:
    """Print which node the job waits for; members must not wait for a paused node 0."""
    if paused == (connection in state.paused):
        return ()
    if paused:
        state.paused.add(connection)
    else:
        state.paused.discard(connection)
    text = job_notices.paused(state, connection)
    if connection != OWN and _is_large(state):
        # Without a look at each member: a scheduler may stop all nodes at once.
        return (Send((OWN,), Notice(text)),)
    others = tuple(each for each in (*state.ranks, *state.waiting) if each != connection)
    order = (Send(others, Paused(paused)),) if connection == OWN and others else ()
    return (*order, *_notify(state, others, text))


def _time_passed(state: JobState, at: float) -> Actions:
    match state.phase:
        case JobPhase.GATHERING if at >= gathering.settled_at(state):
            return gathering.begin_if_complete(state, at)
        case JobPhase.GATHERING if at >= gathering.given_up_at(state):
            why = Contradiction(
                job_notices.nodes_missing(state), job_notices.hint_to_nodes_missing(state)
            )
            return gathering.give_up(state, why)
        case JobPhase.GATHERING if at >= state.next_notice:
            state.next_notice = at + SECONDS_BETWEEN_NOTICES
            return _notify(state, tuple(state.members.hellos), _waiting(state, at))
        case JobPhase.RESTARTING:
            return restarting.time_passed(state, at)
        case JobPhase.RUNNING if at >= stack_rounds.due(state):
            return stack_rounds.time_passed(state, at)
        case JobPhase.RUNNING if at >= suspending.due(state):
            return suspending.time_passed(state, at)
        case JobPhase.RUNNING if at >= state.grows_at:
            newcomers = growing.time_passed(state)
            return ending.stop_to_grow(state, newcomers) if newcomers else ()
        case JobPhase.RUNNING if at >= state.next_notice:
            state.next_notice = at + ending.SECONDS_BETWEEN_STOP_NOTICES
            return _notify(state, tuple(state.attempt.reports), job_notices.still_running(state))
        case _:
            return ()


def _waiting(state: JobState, at: float) -> str:
    last_call = state.terms.last_call
    if last_call is None or state.enough_at == NEVER:
        return job_notices.waiting(state, at)
    return job_notices.last_call(state, last_call.minimum, gathering.settled_at(state) - at)


def _notify(state: JobState, connections: tuple[int, ...], text: str) -> Actions:
    if _is_large(state):
        connections = tuple(each for each in connections if each == OWN)
    return (Send(connections, Notice(text)),) if connections else ()


def _is_large(state: JobState) -> bool:
    return state.terms.nodes > FEW_NODES
