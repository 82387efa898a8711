"""What the agent does when it, or the fork server, gets a signal. Pure."""

import signal

from msgspec.structs import replace

from clusterrun.agent.actions import (
    ExpectNoStacks,
    ForwardSignal,
    HideInterrupts,
    Pause,
    PrintNotice,
    ReleaseRanks,
    Resume,
)
from clusterrun.agent.attempt_state import AttemptState, Phase
from clusterrun.agent.external_causes import end_externally, report
from clusterrun.agent.node_notices import (
    killing_instead,
    killing_now,
    no_restart,
    not_handled,
    stopping,
    stopping_by,
    stopping_others,
)
from clusterrun.agent.stack_requests import request_stacks
from clusterrun.agent.stop_sequence import Decision, finish, kill
from clusterrun.agent.suspending import (
    asks_for_suspension,
    suspension_signalled,
    with_suspending,
)
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.events import SignalNotHandled, SignalReceived, StopWanted
from clusterrun.domain.outcome import Interrupted
from clusterrun.domain.signal_names import ENDING_SIGNALS

SECONDS_OF_ECHO = 1.0
"""Within this time after an ending signal, another one counts as the same.

Schedulers send one SIGTERM by two ways; wrappers pass on the SIGINT that the terminal sends to all.
"""


def signal_received(state: AttemptState, event: SignalReceived) -> Decision:
    """End, pause or continue the job, print stacks, or forward the signal to the workers."""
    if event.number in ENDING_SIGNALS:
        if asks_for_suspension(state, event):
            return suspension_signalled(state, event)
        return _ending_signal(state, event)
    number, others = event.number, dict(state.signals)
    earlier = others.pop(number, None)
    if earlier is not None and _is_the_same(earlier, event):
        return replace(state, signals=others), ()
    state = replace(state, signals={**others, number: event})
    if asks_for_suspension(state, event):
        return suspension_signalled(state, event)
    match number:
        case signal.SIGTSTP:
            return state, (Pause(),)
        case signal.SIGCONT:
            return state, (Resume(),)
        case signal.SIGQUIT:
            return request_stacks(state)
        case _:
            return state, (ForwardSignal(number),)


def signal_not_handled(state: AttemptState, event: SignalNotHandled) -> Decision:
    """Print which workers have no handler for a signal."""
    if event.number == signal.SIGQUIT:
        return state, (ExpectNoStacks(event.local_ranks),)
    if not event.local_ranks:
        return state, ()
    return state, (PrintNotice(not_handled(event.number, event.local_ranks)),)


def stop_wanted(state: AttemptState, wanted: StopWanted) -> Decision:
    """End the job for a command of the user's: also one that SIGTERM would suspend."""
    cause = Interrupted(signal.SIGTERM)
    match state.phase:
        case _ if wanted.at_once:
            return _kill_at_once(state, wanted)
        case Phase.RUNNING:
            notice = stopping_by(wanted.by, len(state.alive), state.rules.grace)
            return end_externally(state, cause, wanted.at, signal.SIGTERM, notice)
        case Phase.WAITING if state.external_cause is None:
            return _stop_other_nodes(state, SignalReceived(signal.SIGTERM, wanted.at))
        case _:
            return _report(state, SignalReceived(signal.SIGTERM, wanted.at))


def _kill_at_once(state: AttemptState, wanted: StopWanted) -> Decision:
    cause = state.external_cause or Interrupted(signal.SIGTERM)
    state = replace(state, external_cause=cause, external_cause_at=wanted.at)
    to_all = report(state, cause, at_once=True)
    if state.phase not in {Phase.RUNNING, Phase.STOPPING} or not state.alive:
        return state, (to_all,)
    notice = PrintNotice(killing_now(wanted.by, len(state.alive)))
    state, actions = kill(state)
    return state, (to_all, notice, *actions)


def suspension_cancelled(state: AttemptState) -> Decision:
    """Let the ranks go on; if SIGTERM asked for the suspension here, it ends the job after all."""
    known = state.suspending
    release = (ReleaseRanks(0),) if known.is_on else ()
    state = with_suspending(state, is_on=False, mark=0)
    if known.signalled_at == NEVER:
        return state, release
    state = with_suspending(state, signalled_at=NEVER)
    state, actions = _ending_signal(state, SignalReceived(signal.SIGTERM, known.signalled_at))
    return state, (*release, *actions)


def _is_the_same(one: SignalReceived, other: SignalReceived) -> bool:
    """Return whether one signal to all processes of the job reached agent and fork server."""
    by_two_ways = one.to_fork_server != other.to_fork_server
    return by_two_ways and abs(other.at - one.at) <= SECONDS_OF_ECHO


def _ending_signal(state: AttemptState, event: SignalReceived) -> Decision:
    match state.phase:
        case Phase.RUNNING if _has_asked(state, event):
            return _kill_workers(state, event) if _is_second_request(state, event) else (state, ())
        case Phase.RUNNING:
            return _stop_workers(state, event)
        case Phase.STOPPING if _is_second_request(state, event):
            state, reports = _report(state, event)
            state, actions = kill(state)
            return state, (*reports, *actions)
        case Phase.WAITING if isinstance(state.external_cause, Interrupted):
            # A second signal ends this agent without waiting for the other nodes.
            return finish(state) if _is_second_request(state, event) else (state, ())
        case Phase.WAITING:
            return _stop_other_nodes(state, event)
        case _:
            return _report(state, event)


def _is_second_request(state: AttemptState, event: SignalReceived) -> bool:
    """Return whether a signal is a second request to end, not the first one arriving twice."""
    if isinstance(state.external_cause, Interrupted):
        return event.at - state.external_cause_at > SECONDS_OF_ECHO
    if _has_asked(state, event):
        return event.at - state.suspending.signalled_at > SECONDS_OF_ECHO
    # A scheduler's SIGTERM does not shorten the grace period after a failure. Ctrl-C does.
    return event.number == signal.SIGINT


def _has_asked(state: AttemptState, event: SignalReceived) -> bool:
    """Return whether the same signal has asked for the suspension before."""
    return event.number == signal.SIGTERM and state.suspending.signalled_at != NEVER


def _kill_workers(state: AttemptState, event: SignalReceived) -> Decision:
    """End the job at once, instead of suspending it."""
    cause = Interrupted(event.number)
    state = replace(state, external_cause=cause, external_cause_at=event.at)
    notice = PrintNotice(killing_instead(event.number, len(state.alive)))
    state, actions = kill(state)
    return state, (report(state, cause), notice, *actions)


def _stop_workers(state: AttemptState, event: SignalReceived) -> Decision:
    number, workers = event.number, len(state.alive)
    hide = (HideInterrupts(),) if number == signal.SIGINT else ()
    to_workers = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
    notice = stopping(number, workers, state.rules.grace, to_fork_server=event.to_fork_server)
    state, actions = end_externally(state, Interrupted(number), event.at, to_workers, notice)
    return state, (*hide, *actions)


def _report(state: AttemptState, event: SignalReceived) -> Decision:
    """Report a signal that came while the workers ended: the coordinator decides what it means."""
    if state.external_cause is not None:
        return state, ()
    if state.alive or state.failed:
        cause = Interrupted(event.number)
        state = replace(state, external_cause=cause, external_cause_at=event.at)
        return state, (report(state, cause),)
    # All workers of this node have succeeded: there is something to end only on other nodes.
    return (state, ()) if state.nodes == 1 else _stop_other_nodes(state, event)


def _stop_other_nodes(state: AttemptState, event: SignalReceived) -> Decision:
    cause = Interrupted(event.number)
    state = replace(state, external_cause=cause, external_cause_at=event.at)
    # A job on one node waits only for its next attempt.
    notice = no_restart(event.number) if state.nodes == 1 else stopping_others(event.number)
    return state, (report(state, cause), PrintNotice(notice))
