"""The next attempt of a job: whether there is one, which nodes take part in it, and how it begins."""

from msgspec.structs import replace

from clusterrun.coordination import job_notices
from clusterrun.coordination.coordinator_actions import (
    Actions,
    PreparePort,
    PrintOnNodeZero,
    Send,
)
from clusterrun.coordination.coordinator_events import HelloReceived, MemberGone
from clusterrun.coordination.job_end import end_job
from clusterrun.coordination.job_state import JobPhase, JobState, ReasonToRestart
from clusterrun.coordination.members import OWN
from clusterrun.coordination.next_attempt import (
    bad_nodes,
    growing,
    loss_notices,
    restart_policy,
)
from clusterrun.coordination.next_attempt.bad_nodes import next_ranks
from clusterrun.coordination.next_attempt.places import may_go_on
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import (
    KeepWaiting,
    Notice,
    SuspensionPossible,
)
from clusterrun.domain.outcome import (
    ExternalCause,
    NodeLost,
    NodesJoined,
    Reason,
    WorkerFailed,
)
from clusterrun.job.options import OnHang

HEARTBEATS_TO_SETTLE = 1.2
"""Members that are cut off together are found silent within one interval of heartbeats."""


def is_possible(state: JobState, why: ReasonToRestart) -> bool:
    """Return whether an attempt that ended so may be followed by another, as the options say."""
    if isinstance(why, NodeLost | NodesJoined):
        return state.terms.reforming.lives_on
    acts = isinstance(why, WorkerFailed) or state.terms.on_hang is OnHang.RESTART
    return acts and state.restarts < state.terms.restarts.limit


def prepare(state: JobState, why: ReasonToRestart, at: float) -> Actions:
    """Begin the next attempt as soon as all its places are taken, or end the job."""
    bad_nodes.note_failure(state, why)
    if no_restart := _why_no_restart(state, why):
        return end_job(state, _reason_of_end(state, why), no_restart)
    state.phase = JobPhase.RESTARTING
    state.previous = why
    state.next_notice = NEVER
    pause, patience = _count_restart(state, why), state.terms.reforming.rejoin_timeout
    state.pause_ends = at + pause if pause else NEVER
    _settle(state, at)
    state.rejoin_ends = at + pause + patience if patience else NEVER
    notice = Notice(loss_notices.restarts_later(pause, state.quick_restarts))
    return (*((Send((OWN,), notice),) if pause else ()), *_go_on(state))


def _count_restart(state: JobState, why: ReasonToRestart) -> float:
    """Count the restart, if it is one; return the seconds to wait before it."""
    if isinstance(why, NodeLost | NodesJoined):
        return 0.0
    state.restarts += 1
    is_quick = isinstance(why, WorkerFailed) and restart_policy.is_early(why.cause)
    state.quick_restarts = state.quick_restarts + 1 if is_quick else 0
    return restart_policy.pause_before(state.quick_restarts)


def gather(state: JobState, at: float) -> Actions:
    """Begin the next attempt when all agents of a lost coordinator have come, or soon after enough."""
    if _missing(state) <= state.departed:
        state.pause_ends = NEVER
        return _look_again(state, at)
    if not _why_no_places(state):
        # Others may be about to come.
        settled = at + (1 + HEARTBEATS_TO_SETTLE) * state.terms.rhythm.interval
        state.pause_ends = max(min(state.pause_ends, settled), state.leases_end)
    return ()


def newcomer_joins(state: JobState, newcomer: HelloReceived) -> Actions:
    """Let a node join while the job runs: it waits for a place."""
    number, hello = newcomer.connection, newcomer.hello
    state.members.add(number, hello, newcomer.address, takes_rank=False)
    state.waiting.append(number)
    wait = Send((number,), KeepWaiting(state.own_hello.host))
    knowledge = (Send((number,), SuspensionPossible()),) if state.can_suspend else ()
    notice = PrintOnNodeZero(loss_notices.waits_for_a_place(hello))
    growing.newcomer_waits(state, newcomer.at)
    return (wait, *knowledge, notice, *_go_on(state))


def waiting_member_gone(
    state: JobState, connection: int, why: str, at: float, *, has_ended: bool
) -> Actions:
    """Take note that a member without a place is lost; ``has_ended``: it is known to have ended."""
    hello = state.members.remove(connection)
    state.waiting.remove(connection)
    state.placed.discard(connection)
    if has_ended:
        state.departed.add(connection)
    else:
        state.settles_at = at + HEARTBEATS_TO_SETTLE * state.terms.rhythm.interval
    notice = PrintOnNodeZero(loss_notices.waits_no_more(hello, why))
    return (notice, *_look_again(state, at))


def member_gone(state: JobState, gone: MemberGone) -> Actions:
    """Take note that the connection to a member with a place is closed between two attempts."""
    connection = gone.connection
    if gone.has_ended:
        state.departed.add(connection)
    if connection not in state.lost:
        node = lost_node(state, connection, gone.at, is_silent=gone.unreachable)
        state.lost_after_report[connection] = node
    return _look_again(state, gone.at)


def member_silent(state: JobState, connection: int, at: float) -> Actions:
    """Take note that a member with a place is silent for too long between two attempts."""
    if connection not in state.lost:
        state.silent.add(connection)
        state.lost_after_report[connection] = lost_node(state, connection, at, is_silent=True)
    return _look_again(state, at)


def lost_node(state: JobState, connection: int, at: float, *, is_silent: bool) -> NodeLost:
    """Return how a member with a place is lost, for messages; expect no stacks of it any more."""
    node = NodeLost(state.ranks[connection], state.members.hellos[connection].host)
    state.mark_absent(connection)
    if not is_silent:
        return node
    state.settles_at = at + HEARTBEATS_TO_SETTLE * state.terms.rhythm.interval
    return replace(node, how=state.terms.patience.silence)


def _settle(state: JobState, at: float) -> None:
    """Begin no attempt before all members that were cut off together have been found silent.

    Node 0 itself may be cut off: then it finds one after the other, and has no majority. Nor before
    the leases of those that are lost are over, unless all these are known to have ended.
    """
    all_have_ended = _missing(state) <= state.departed
    settled = max(state.settles_at, 0.0 if all_have_ended else state.leases_end)
    if at < settled:
        before = 0.0 if state.pause_ends == NEVER else state.pause_ends
        state.pause_ends = max(before, settled)


def ended_externally(state: JobState, cause: ExternalCause) -> Actions:
    """End the job between two attempts."""
    return end_job(state, cause, "")


def time_passed(state: JobState, at: float) -> Actions:
    """Begin the next attempt after a pause, or end a job whose places were empty for too long."""
    if at >= state.pause_ends:
        state.pause_ends = NEVER
        return _look_again(state, at)
    if state.previous is None or at < state.rejoin_ends:
        return ()
    why = _reason_of_end(state, state.previous)
    return end_job(state, why, loss_notices.no_node_for(state))


def due(state: JobState) -> float:
    """Return when ``time_passed`` is to be called, between two attempts."""
    return min(state.pause_ends, state.rejoin_ends)


def _why_no_restart(state: JobState, why: ReasonToRestart) -> str:
    """Return why there is no next attempt, for messages; "" if there is one."""
    return _why_no_places(state) or _why_not_again(state, why)


def _why_not_again(state: JobState, why: ReasonToRestart) -> str:
    if not isinstance(why, WorkerFailed):
        return ""
    previous = state.previous.cause if isinstance(state.previous, WorkerFailed) else None
    if state.terms.reforming.exclude_after and bad_nodes.fault_of(why.cause):
        # Another node may take the place of the one that failed twice.
        previous = None
    return restart_policy.why_no_restart(state.terms.restarts, why.cause, previous)


def _why_no_places(state: JobState) -> str:
    """Return why the lost nodes end the job; "" if they do not."""
    rules = state.terms.reforming
    if state.lost and not rules.lives_on:
        return job_notices.lost(next(iter(state.lost.values())))
    if rules.most_losses is not None and state.losses + len(state.lost) > rules.most_losses:
        return loss_notices.too_many_losses(rules.most_losses)
    missing = _missing(state)
    for roster in (state.roster, state.roster_before - state.departed):
        absent = missing & roster
        if not may_go_on(roster, absent, state.departed):
            return loss_notices.no_majority(len(roster) - len(absent), len(roster))
    if rules.rejoin_timeout == 0 and next_ranks(state) is None:
        return loss_notices.no_node_for(state)
    return ""


def _reason_of_end(state: JobState, why: ReasonToRestart) -> Reason:
    """Return why the job ends; ``why`` was the reason for another attempt."""
    return next(iter(state.lost.values()), why) if isinstance(why, NodesJoined) else why


def _missing(state: JobState) -> frozenset[int]:
    return frozenset(
        each
        for each in state.roster | state.roster_before
        if each not in state.members.hellos or each in state.lost
    )


def succession_known(state: JobState, connection: int, attempt: int) -> Actions:
    """Take note that a member knows who may succeed the coordinator in an attempt."""
    if attempt == state.attempt.number:
        state.unaware.discard(connection)
    return _go_on(state)


def _go_on(state: JobState) -> Actions:
    """Begin the next attempt if all its places are taken, and there is no pause.

    All present members must know of the last one: then none of them can follow a successor with
    those of an attempt before the last, whose majority is not counted any more.
    """
    if state.phase is not JobPhase.RESTARTING or state.pause_ends != NEVER:
        return ()
    hellos, lost = state.members.hellos, state.lost
    if any(each in hellos and each not in lost for each in state.unaware):
        return ()
    if next_ranks(state) is None:
        return ()
    return (PreparePort(),)


def _look_again(state: JobState, at: float) -> Actions:
    """Begin the next attempt, or end the job, now that another member is lost."""
    if state.phase is not JobPhase.RESTARTING or state.previous is None:
        return ()
    if state.takes_over and state.pause_ends != NEVER:
        # Others may still come.
        return ()
    if no_restart := _why_no_places(state):
        return end_job(state, _reason_of_end(state, state.previous), no_restart)
    _settle(state, at)
    return _go_on(state)
