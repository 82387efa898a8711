"""What ends the job from outside the workers of this node: reported at once, so that all nodes stop. Pure."""

import signal

from msgspec.structs import replace

from clusterrun.agent.actions import CollectOutput, PrintNotice, SendToCoordinator
from clusterrun.agent.attempt_state import AttemptState, Phase, with_ended
from clusterrun.agent.stop_sequence import Decision, clean_up, stop
from clusterrun.domain.events import HelperLost
from clusterrun.domain.messages import EndedExternally
from clusterrun.domain.outcome import ExternalCause, HelperFailed, Interrupted, Killed, OutputGone


def end_externally(
    state: AttemptState, cause: Interrupted | OutputGone, at: float, to_workers: int, notice: str
) -> Decision:
    """Send the signal ``to_workers``, and report ``cause``, if the workers still run."""
    if state.phase is not Phase.RUNNING:
        return state, ()
    state = replace(state, external_cause=cause, external_cause_at=at)
    state, actions = stop(state, to_workers, except_failing=False)
    return state, (report(state, cause), PrintNotice(notice), *actions)


def report(
    state: AttemptState, cause: ExternalCause, *, at_once: bool = False
) -> SendToCoordinator:
    """Report ``cause``: the coordinator stops all nodes."""
    return SendToCoordinator(EndedExternally(state.attempt, cause, at_once))


def helper_lost(state: AttemptState, event: HelperLost) -> Decision:
    """End the job: no other attempt can start without this helper process."""
    cause = HelperFailed(event.name, event.how, event.signal)
    state = replace(state, lost_helper=cause)
    if state.external_cause is None and (state.alive or state.failed):
        # After a failure, it keeps the next attempt from starting.
        state = replace(state, external_cause=cause, external_cause_at=event.at)
    reports = (report(state, cause),) if state.phase is Phase.RUNNING else ()
    state, actions = _relay_lost(state) if event.name == "relay" else _workers_lost(state, event.at)
    return state, (*reports, *actions)


def _relay_lost(state: AttemptState) -> Decision:
    return stop(state, signal.SIGTERM) if state.phase is Phase.RUNNING else (state, ())


def _workers_lost(state: AttemptState, at: float) -> Decision:
    """Clean up: the kernel has killed the workers together with the fork server."""
    if state.phase in {Phase.COLLECTING, Phase.WAITING}:
        return state, ()
    killed = sorted(state.alive)
    state = replace(state, phase=Phase.STOPPING if killed else state.phase)
    for local_rank in killed:
        state = with_ended(state, local_rank, Killed(signal.SIGKILL), at)
    state, actions = clean_up(state)
    return state, (*map(CollectOutput, killed), *actions)
