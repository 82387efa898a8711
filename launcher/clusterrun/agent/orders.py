"""What the agent does when the coordinator sends a message, or is lost. Pure."""

import signal
from typing import assert_never

from msgspec.structs import replace

from clusterrun.agent.actions import CollectStacks, PrintNotice, Restart, SendToCoordinator
from clusterrun.agent.attempt_state import AttemptState, Phase
from clusterrun.agent.node_notices import (
    LOST_BY_OTHERS,
    killing_at_once,
    killing_here,
    stopping_here,
)
from clusterrun.agent.signals import suspension_cancelled
from clusterrun.agent.stack_requests import print_all
from clusterrun.agent.stop_sequence import Decision, finish, kill, stop
from clusterrun.agent.suspending import suspension_order
from clusterrun.domain.events import CoordinatorLost, CoordinatorSought
from clusterrun.domain.messages import (
    AllStacks,
    CancelSuspension,
    Done,
    HoldRanks,
    NextAttempt,
    Order,
    SaveAt,
    SendStacks,
    Stop,
    SuspensionPossible,
    Verdict,
)
from clusterrun.domain.outcome import NodeLost, NotSuspended, Suspended


def order_received(state: AttemptState, order: Order) -> Decision:
    """Do what the coordinator orders; a restart may be declined."""
    match order:
        case Stop(attempt, why, external_cause, at_once):
            if attempt != state.attempt:
                return state, ()
            state = replace(state, external_cause_elsewhere=external_cause)
            return _kill_at_once(state, why) if at_once else _stop_here(state, why)
        case Verdict():
            return _verdict_received(state, order)
        case NextAttempt():
            return _restart(state, order)
        case SendStacks(_, number):
            return state, (CollectStacks(number),)
        case AllStacks():
            return print_all(state, order)
        case CancelSuspension(attempt):
            return suspension_cancelled(state) if attempt == state.attempt else (state, ())
        case SuspensionPossible() | HoldRanks() | SaveAt():
            return suspension_order(state, order)
        case _:
            assert_never(order)


def coordinator_lost(state: AttemptState, event: CoordinatorLost) -> Decision:
    """Stop the workers: a part of the job must not train on alone.

    If an external cause is known, it is why node 0 is lost: mpirun kills node 0 one second after
    its SIGTERM.
    """
    known = state.external_cause or state.external_cause_elsewhere
    state = replace(
        state,
        without_coordinator=True,
        external_cause=known,
        external_cause_at=event.at,
        node_zero_lost=None if known else NodeLost(event.node_rank, event.host, event.how),
        no_restart=event.no_successor,
    )
    return _end_without_answer(state, _described(event))


def coordinator_sought(state: AttemptState, event: CoordinatorSought) -> Decision:
    """Kill the workers, and report as always: the answer comes from a successor, if there is one."""
    if state.phase is Phase.WAITING:
        return state, ()
    return _kill_here(state, _described(event))


def _described(event: CoordinatorLost | CoordinatorSought) -> str:
    return f"node {event.node_rank} ({event.host}) {event.how}"


def _verdict_received(state: AttemptState, verdict: Verdict) -> Decision:
    """Report what all nodes report. Before this node has reported, it means that they lost this one."""
    is_lost = state.phase is not Phase.WAITING
    state = replace(
        state,
        verdict=verdict.reason,
        no_restart=verdict.no_restart,
        without_coordinator=state.without_coordinator or is_lost,
    )
    return _end_without_answer(state, LOST_BY_OTHERS)


def _restart(state: AttemptState, order: NextAttempt) -> Decision:
    """Begin the next attempt with all nodes, or report at once why this node can't."""
    if state.phase is not Phase.WAITING:
        return state, ()
    obstacle = state.external_cause or state.lost_helper
    if obstacle is None:
        state = replace(state, phase=Phase.OVER, verdict=order.reason, progress=order.progress)
        return state, (Restart(),)
    # It starts no worker of the attempt that the coordinator has begun.
    state = replace(state, attempt=order.world.attempt, external_cause=obstacle)
    return state, (SendToCoordinator(Done(state.attempt, (), obstacle)),)


def _end_without_answer(state: AttemptState, why: str) -> Decision:
    """End this node; the coordinator answers its report no more."""
    if state.phase is Phase.WAITING:
        return finish(state)
    if not state.rules.kills_if_cut_off:
        return _stop_here(state, why)
    return _kill_here(state, why)


def _kill_at_once(state: AttemptState, why: str) -> Decision:
    if state.phase not in {Phase.RUNNING, Phase.STOPPING} or not state.alive:
        return state, ()
    notice = PrintNotice(killing_at_once(why, len(state.alive)))
    state, actions = kill(state)
    return state, (notice, *actions)


def _kill_here(state: AttemptState, why: str) -> Decision:
    if state.phase not in {Phase.RUNNING, Phase.STOPPING} or not state.alive:
        return _stop_here(state, why)
    notice = PrintNotice(killing_here(why, len(state.alive)))
    state, actions = kill(state)
    return state, (notice, *actions)


def _stop_here(state: AttemptState, why: str) -> Decision:
    if state.phase is not Phase.RUNNING:
        return state, ()
    at_suspension = isinstance(state.external_cause_elsewhere, Suspended | NotSuspended)
    # Ranks that have saved exit by themselves.
    spared = state.suspending.saved if at_suspension else frozenset()
    rest = state.alive - spared
    notice = (PrintNotice(stopping_here(why, len(rest))),) if rest else ()
    state, actions = stop(state, signal.SIGTERM, spared=spared)
    return state, (*notice, *actions)
