"""External causes and what other nodes report: signals, a closed output, a lost helper. Pure."""

import signal
from typing import assert_never

from msgspec.structs import replace

from clusterrun.agent.actions import (
    Action,
    CollectOutput,
    ExpectNoStacks,
    ForwardSignal,
    HideInterrupts,
    PrintNotice,
    Restart,
    Resume,
    SendToCoordinator,
    Suspend,
)
from clusterrun.agent.notices import (
    LOST_BY_OTHERS,
    OUTPUT_CLOSED,
    not_handled,
    stopping,
    stopping_here,
    stopping_others,
)
from clusterrun.agent.stack_requests import stacks_wanted
from clusterrun.agent.state import Phase, State, with_ended
from clusterrun.agent.stop_sequence import Decision, clean_up, finish, kill, stop
from clusterrun.coordination.messages import Done, EndedExternally
from clusterrun.domain.events import (
    CoordinatorLost,
    HelperLost,
    OutputClosed,
    RestartOrdered,
    SignalNotHandled,
    SignalReceived,
    StopOrdered,
    VerdictReached,
)
from clusterrun.domain.outcome import (
    ExternalCause,
    HelperFailed,
    Interrupted,
    Killed,
    NodeLost,
    OutputGone,
)
from clusterrun.domain.signal_names import ENDING_SIGNALS

SECONDS_OF_ECHO = 1.0
"""Within this time after an ending signal, another one counts as the same.

Schedulers send one SIGTERM by two ways; wrappers pass on the SIGINT that the terminal sends to all.
"""

ExternalEvent = (
    SignalReceived
    | SignalNotHandled
    | OutputClosed
    | HelperLost
    | StopOrdered
    | VerdictReached
    | RestartOrdered
    | CoordinatorLost
)


def external_event(state: State, event: ExternalEvent) -> Decision:
    """Return the state after ``event``, and the actions to perform."""
    match event:
        case SignalReceived():
            return _signalled(state, event)
        case SignalNotHandled(signal.SIGQUIT, local_ranks):
            return state, (ExpectNoStacks(local_ranks),)
        case SignalNotHandled(number, local_ranks):
            return state, (PrintNotice(not_handled(number, local_ranks)),) if local_ranks else ()
        case OutputClosed(at):
            return _ended_externally(state, OutputGone(), at, signal.SIGTERM, OUTPUT_CLOSED)
        case HelperLost():
            return _helper_lost(state, event)
        case StopOrdered(_, attempt):
            return _stop_ordered(state, event) if attempt == state.attempt else (state, ())
        case VerdictReached():
            return _verdict_reached(state, event)
        case RestartOrdered():
            return _restart_ordered(state, event)
        case CoordinatorLost():
            return _node_zero_lost(state, event)
        case _:
            assert_never(event)


def _signalled(state: State, event: SignalReceived) -> Decision:
    number = event.number
    if number in ENDING_SIGNALS:
        return _ending_signal(state, event)
    earlier = state.signals.get(number)
    if earlier is not None and _is_the_same(earlier, event):
        others = {other: sent for other, sent in state.signals.items() if other != number}
        return replace(state, signals=others), ()
    state = replace(state, signals={**state.signals, number: event})
    match number:
        case signal.SIGTSTP:
            return state, (Suspend(),)
        case signal.SIGCONT:
            return state, (Resume(),)
        case signal.SIGQUIT:
            return stacks_wanted(state)
        case _:
            return state, (ForwardSignal(number),)


def _is_the_same(one: SignalReceived, other: SignalReceived) -> bool:
    """Return whether one signal to all processes of the job reached agent and fork server."""
    by_two_ways = one.to_fork_server != other.to_fork_server
    return by_two_ways and abs(other.at - one.at) <= SECONDS_OF_ECHO


def _ending_signal(state: State, event: SignalReceived) -> Decision:
    number, at = event.number, event.at
    reason = Interrupted(number)
    if state.phase is Phase.RUNNING:
        return _interrupted(state, event)
    if state.phase is Phase.WAITING:
        return _ending_signal_while_waiting(state, number, at)
    kills = state.phase is Phase.STOPPING and _is_second_request(state, number, at)
    report: tuple[Action, ...] = ()
    all_succeeded = not state.alive and not state.failed
    if all_succeeded and state.nodes == 1:
        # Nothing is left that the signal could end.
        return state, ()
    if state.external_cause is None:
        # The coordinator decides what it means after a failure.
        notice = (PrintNotice(stopping_others(number)),) if all_succeeded else ()
        report = (_report(state, reason), *notice)
        state = replace(state, external_cause=reason, external_cause_at=at)
    state, actions = kill(state) if kills else (state, ())
    return state, (*report, *actions)


def _ending_signal_while_waiting(state: State, number: int, at: float) -> Decision:
    """End the job on the other nodes; a second signal ends this agent without waiting for them."""
    if isinstance(state.external_cause, Interrupted):
        return finish(state) if _is_second_request(state, number, at) else (state, ())
    reason = Interrupted(number)
    state = replace(state, external_cause=reason, external_cause_at=at)
    return state, (_report(state, reason), PrintNotice(stopping_others(number)))


def _interrupted(state: State, event: SignalReceived) -> Decision:
    number = event.number
    hide: tuple[Action, ...] = (HideInterrupts(),) if number == signal.SIGINT else ()
    to_workers = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
    notice = stopping(
        number, len(state.alive), state.rules.grace, to_fork_server=event.to_fork_server
    )
    state, actions = _ended_externally(state, Interrupted(number), event.at, to_workers, notice)
    return state, (*hide, *actions)


def _is_second_request(state: State, number: int, at: float) -> bool:
    """Return whether a signal is a second request to end, not the first one arriving twice."""
    if isinstance(state.external_cause, Interrupted):
        return at - state.external_cause_at > SECONDS_OF_ECHO
    # A scheduler's SIGTERM does not shorten the grace period after a failure. Ctrl-C does.
    return number == signal.SIGINT


def _ended_externally(
    state: State, reason: Interrupted | OutputGone, at: float, to_workers: int, notice: str
) -> Decision:
    """End the job for a reason from outside its workers, if it still runs."""
    if state.phase is not Phase.RUNNING:
        return state, ()
    state = replace(state, external_cause=reason, external_cause_at=at)
    state, actions = stop(state, to_workers, spare_failing=False)
    return state, (_report(state, reason), PrintNotice(notice), *actions)


def _report(state: State, cause: ExternalCause) -> SendToCoordinator:
    """Report at once what ends the job from outside its workers: the coordinator stops all nodes."""
    return SendToCoordinator(EndedExternally(state.attempt, cause))


def _helper_lost(state: State, event: HelperLost) -> Decision:
    reason = HelperFailed(event.name, event.how, event.signal)
    state = replace(state, lost_helper=reason)
    if state.external_cause is None and (state.alive or state.failed):
        # After a failure, it keeps the next attempt from starting.
        state = replace(state, external_cause=reason, external_cause_at=event.at)
    report = (_report(state, reason),) if state.phase is Phase.RUNNING else ()
    if event.name == "relay":
        if state.phase is not Phase.RUNNING:
            return state, ()
        state, actions = stop(state, signal.SIGTERM)
        return state, (*report, *actions)
    if state.phase in {Phase.COLLECTING, Phase.WAITING}:
        return state, ()
    # The kernel has killed the workers together with the fork server.
    collect = tuple(CollectOutput(local_rank) for local_rank in sorted(state.alive))
    state = replace(state, phase=Phase.STOPPING if state.alive else state.phase)
    for local_rank in sorted(state.alive):
        state = with_ended(state, local_rank, Killed(signal.SIGKILL), event.at)
    state, actions = clean_up(state)
    return state, (*report, *collect, *actions)


def _stop_ordered(state: State, order: StopOrdered) -> Decision:
    return _stop_here(replace(state, external_cause_elsewhere=order.external_cause), order.why)


def _verdict_reached(state: State, event: VerdictReached) -> Decision:
    """Report what all nodes report. Before this node has reported, it means that they lost this one."""
    is_lost = state.phase is not Phase.WAITING
    state = replace(
        state,
        verdict=event.reason,
        no_restart=event.no_restart,
        without_coordinator=state.without_coordinator or is_lost,
    )
    return _end_now(state, LOST_BY_OTHERS)


def _restart_ordered(state: State, event: RestartOrdered) -> Decision:
    """Begin the next attempt with all nodes, or report at once why this node can't."""
    if state.phase is not Phase.WAITING:
        return state, ()
    obstacle = state.external_cause or state.lost_helper
    if obstacle is None:
        return replace(state, phase=Phase.OVER, verdict=event.reason), (Restart(),)
    # It starts no worker of the attempt that the coordinator has begun.
    state = replace(state, attempt=state.attempt + 1, external_cause=obstacle)
    return state, (SendToCoordinator(Done(state.attempt, (), obstacle)),)


def _node_zero_lost(state: State, event: CoordinatorLost) -> Decision:
    """Stop the workers: a part of the job must not train on alone.

    If an external cause is known, it is why node 0 is lost: mpirun kills node 0 one second after
    its SIGTERM.
    """
    known = state.external_cause or state.external_cause_elsewhere
    lost = None if known else NodeLost(0, event.host, event.how)
    state = replace(state, without_coordinator=True, external_cause=known, node_zero_lost=lost)
    state = replace(state, external_cause_at=event.at)
    return _end_now(state, f"node 0 ({event.host}) {event.how}")


def _end_now(state: State, why: str) -> Decision:
    """End this node without an answer of the coordinator."""
    if state.phase is Phase.WAITING:
        return finish(state)
    return _stop_here(state, why)


def _stop_here(state: State, why: str) -> Decision:
    if state.phase is not Phase.RUNNING:
        return state, ()
    notice = PrintNotice(stopping_here(why, len(state.alive)))
    state, actions = stop(state, signal.SIGTERM)
    return state, (notice, *actions)
