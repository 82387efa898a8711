"""What the agent does about a suspension: requests, and the ranks that are held and save. Pure.

The coordinator agrees on the step (``clusterrun.coordination.agreement``). A rank that fails
meanwhile ends the attempt as always, which lets the others go.
"""

import signal
from typing import assert_never

from msgspec.structs import replace

from clusterrun.agent.actions import (
    Action,
    HoldRanks,
    LetRanksLeave,
    ReleaseRanks,
    SendToCoordinator,
)
from clusterrun.agent.attempt_state import AttemptState, Phase, Suspending
from clusterrun.agent.stop_sequence import Decision
from clusterrun.domain import messages
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.events import (
    RankAsked,
    RankEvent,
    RankSaved,
    RanksHeld,
    SignalReceived,
    SuspensionWanted,
)
from clusterrun.domain.messages import (
    Held,
    RankAsks,
    RankLeft,
    RequestSuspension,
    SaveAt,
    Saves,
    SuspensionPossible,
)
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.signal_names import signal_name
from clusterrun.domain.suspension import MOST_RANKS, SaveProgress


def suspension_wanted(state: AttemptState, wanted: SuspensionWanted) -> Decision:
    """Pass a request on; the coordinator keeps it while the job restarts."""
    if state.without_coordinator:
        return state, ()
    return state, (SendToCoordinator(RequestSuspension(wanted.by)),)


def asks_for_suspension(state: AttemptState, event: SignalReceived) -> bool:
    """Return whether a signal is a request, and not one to end or to forward."""
    if event.number == state.rules.suspend_signal:
        return True
    is_first = state.suspending.signalled_at == NEVER
    may_suspend = state.suspending.possible and state.phase is Phase.RUNNING
    return event.number == signal.SIGTERM and may_suspend and is_first


def suspension_signalled(state: AttemptState, event: SignalReceived) -> Decision:
    """Pass on the request of a signal."""
    if event.number == signal.SIGTERM:
        state = with_suspending(state, signalled_at=event.at)
    return suspension_wanted(state, SuspensionWanted(signal_name(event.number), event.at))


def rank_event(state: AttemptState, event: RankEvent) -> Decision:
    """Report what ranks have done on their pages."""
    known, attempt = state.suspending, state.attempt
    if state.phase is not Phase.RUNNING:
        return state, ()
    match event:
        case RankAsked(local_rank):
            is_first = not known.asked
            state = with_suspending(state, asked=known.asked | {local_rank})
            report = (SendToCoordinator(RankAsks(attempt)),) if is_first else ()
            return state, (*report, *_progress(state))
        case RanksHeld(mark):
            return state, (SendToCoordinator(Held(attempt, mark)),)
        case RankSaved(local_rank, mark):
            saved_at = max(known.saved_at, mark)
            state = with_suspending(state, saved=known.saved | {local_rank}, saved_at=saved_at)
            return state, _progress(state)
        case _:
            assert_never(event)


def suspension_order(
    state: AttemptState, order: SuspensionPossible | messages.HoldRanks | SaveAt
) -> Decision:
    """Hold the ranks, or let them go on."""
    if isinstance(order, SuspensionPossible):
        return with_suspending(state, possible=True), ()
    if order.attempt != state.attempt:
        return state, ()
    match order:
        case messages.HoldRanks() if state.ended:
            return state, (_left(state, next(iter(state.ended))),)
        case messages.HoldRanks() if state.phase is Phase.RUNNING:
            return with_suspending(state, is_on=True), (HoldRanks(),)
        case SaveAt(_, mark) if state.phase is Phase.RUNNING:
            state = with_suspending(state, mark=mark)
            return state, (ReleaseRanks(mark), *_progress(state))
        case messages.HoldRanks() | SaveAt():
            return state, ()
        case _:
            assert_never(order)


def rank_ended(state: AttemptState, local_rank: LocalRank) -> tuple[Action, ...]:
    """Report a rank that has ended with 0 while the others are held or save."""
    return (_left(state, local_rank),) if state.suspending.is_on else ()


def on_leaving(state: AttemptState) -> tuple[Action, ...]:
    """Let held and waiting ranks go: the attempt ends."""
    return (LetRanksLeave(),) if state.suspending.is_on else ()


def with_suspending(state: AttemptState, **changes: object) -> AttemptState:
    """Return ``state`` with these fields of its ``suspending`` changed."""
    return replace(state, suspending=replace(state.suspending, **changes))


def in_next_attempt(known: Suspending) -> Suspending:
    """Return what a new attempt knows of the one before."""
    return Suspending(possible=known.possible)


def _left(state: AttemptState, local_rank: LocalRank) -> SendToCoordinator:
    return SendToCoordinator(RankLeft(state.attempt, state.first_rank + local_rank))


def _progress(state: AttemptState) -> tuple[Action, ...]:
    """Report which ranks have saved, once the step is agreed on."""
    known = state.suspending
    if not known.mark:
        return ()
    unsaved, silent = known.asked - known.saved, state.alive - known.asked
    progress = SaveProgress(
        known.saved_at, _global_ranks(state, unsaved), _global_ranks(state, silent)
    )
    return (SendToCoordinator(Saves(state.attempt, progress)),)


def _global_ranks(state: AttemptState, local_ranks: frozenset[LocalRank]) -> tuple[int, ...]:
    return tuple(state.first_rank + rank for rank in sorted(local_ranks)[:MOST_RANKS])
