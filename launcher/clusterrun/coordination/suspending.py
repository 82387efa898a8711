"""The suspension of a job on all its nodes: carries out what ``agreement`` decides."""

from collections.abc import Iterator
from typing import assert_never

from msgspec.structs import replace

from clusterrun.coordination import agreement, ending, job_notices
from clusterrun.coordination.agreement import Decided, Decision, NotWanted, Saving
from clusterrun.coordination.coordinator_actions import Action, Actions, Send
from clusterrun.coordination.job_state import JobPhase, JobState, Request
from clusterrun.coordination.members import OWN
from clusterrun.domain.bounds import as_line
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import (
    CancelSuspension,
    Held,
    HoldRanks,
    Notice,
    RankAsks,
    RankLeft,
    RequestSuspension,
    SaveAt,
    Saves,
    SuspensionMessage,
    SuspensionPossible,
)
from clusterrun.domain.outcome import NotSuspended, Suspended
from clusterrun.domain.suspension import BY_COMMAND


def requested(state: JobState, connection: int, message: RequestSuspension, at: float) -> Actions:
    """Keep the first request until the job is suspended or over; begin if workers run.

    A second one is the same, unless a person types it again who has read which ranks are late.
    """
    known, is_typed = state.request, message.by == BY_COMMAND
    if known is not None and known.is_typed and is_typed and _is_open(state):
        return _carry_out(state, agreement.asked_again(state.attempt.agreement), at)
    if known is None:
        host = state.members.hellos[connection].host
        by = message.by if len(state.ranks) == 1 else f"{message.by} on {host}"
        state.request = Request(as_line(by), at, is_typed)
    elif is_typed:
        state.request = replace(known, is_typed=True)
    return begin(state, at)


def awaited(state: JobState) -> str:
    """Return which ranks have not saved, in words; "" if nothing is agreed on."""
    known = state.attempt.agreement
    if state.request is None or not isinstance(known, Saving):
        return ""
    return job_notices.suspension_waits(state.request.by, known.unsaved, known.silent)


def begin(state: JobState, at: float) -> Actions:
    """Begin to agree on a step, if a suspension is wanted and workers run."""
    if state.request is None or state.phase is not JobPhase.RUNNING or not _is_open(state):
        return ()
    decided = agreement.wanted(
        state.attempt.agreement, state.present(), at, state.terms.suspending.grace
    )
    if state.attempt.reports and isinstance(state.attempt.agreement, NotWanted):
        # All workers of a node have ended with 0: so does the job.
        decided = agreement.rank_left(decided[0])
    return _carry_out(state, decided, at)


def message_received(
    state: JobState, connection: int, message: SuspensionMessage, at: float
) -> Actions:
    """Take note of a member's message about its ranks."""
    known, grace = state.attempt.agreement, state.terms.suspending.grace
    if not _is_open(state):
        return ()
    match message:
        case RankAsks():
            return _possible(state)
        case Held(_, mark):
            return _carry_out(state, agreement.held(known, connection, mark, at, grace), at)
        case Saves(_, progress):
            return _carry_out(state, agreement.progressed(known, connection, progress, at), at)
        case RankLeft(_, rank):
            return _carry_out(state, agreement.rank_left(known), at, rank)
        case _:
            assert_never(message)


def due(state: JobState) -> float:
    """Return when the agreement has taken too long."""
    return agreement.due(state.attempt.agreement) if _is_open(state) else NEVER


def time_passed(state: JobState, at: float) -> Actions:
    """End an agreement that has taken too long."""
    return _carry_out(state, agreement.time_passed(state.attempt.agreement, at), at)


def _is_open(state: JobState) -> bool:
    """Return whether nothing else ends the attempt: then that is why the job ends, or restarts."""
    return state.attempt.reason_to_stop is None


def _possible(state: JobState) -> Actions:
    if state.can_suspend:
        return ()
    state.can_suspend = True
    return (Send((*state.present(), *state.waiting), SuspensionPossible()),)


def _carry_out(state: JobState, decided: Decided, at: float, rank: int | None = None) -> Actions:
    state.attempt.agreement, decisions = decided
    if state.request is None:
        # A late message: without a request, nothing is decided.
        return ()
    actions = (_actions(state, state.request, each, at, rank) for each in decisions)
    return tuple(action for some in actions for action in some)


def _actions(
    state: JobState, request: Request, decision: Decision, at: float, rank: int | None
) -> Iterator[Action]:
    attempt, rules = state.attempt.number, state.terms.suspending
    match decision:
        case agreement.Hold():
            yield Send(state.present(), HoldRanks(attempt))
        case agreement.Agree(mark):
            text = job_notices.suspension_agreed(request.by, mark - 1, rules.grace)
            yield Send((OWN,), Notice(text))
            yield Send(state.present(), SaveAt(attempt, mark))
        case agreement.Cancel():
            state.request = None
            why = job_notices.suspension_cancelled(request.by, rank)
            yield Send((OWN,), Notice(why))
            yield Send(state.present(), CancelSuspension(attempt))
        case agreement.Succeed(mark, silent):
            took = at - request.at
            end = Suspended(request.by, mark - 1, took, rules.exit_code, silent)
            yield from ending.stop_all(state, end)
        case agreement.GiveUp(mark, unsaved, silent, given_up):
            late = NotSuspended(request.by, mark - 1, rules.grace, unsaved, silent, given_up)
            yield from ending.stop_all(state, late)
        case agreement.NameAwaited():
            yield Send((OWN,), Notice(awaited(state)))
        case _:
            assert_never(decision)
