"""Rounds that collect the stacks of all ranks: a user asks for one, or the job hangs.

It hangs when no rank of any node has printed or exited for ``--hang-timeout``. Then the stacks are
printed, and ``--on-hang`` may restart or end the job. A hang is reported once, and again after a rank
has moved. If a rank had no stack, its script had perhaps not begun: then after the same time, too.
"""

from typing import assert_never

from clusterrun.coordination import ending, job_notices
from clusterrun.coordination.agreement import Holding, Saving
from clusterrun.coordination.coordinator_actions import Actions, Send
from clusterrun.coordination.job_state import JobState, StackRound
from clusterrun.coordination.members import OWN
from clusterrun.coordination.next_attempt import restarting
from clusterrun.domain.bounds import as_line
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import (
    AllStacks,
    Idle,
    Notice,
    RequestStacks,
    SendStacks,
    Stacks,
    StacksMessage,
)
from clusterrun.domain.outcome import Hung
from clusterrun.domain.stacks import MOST_GROUPS, StackGroup, lacks_stack, waited_for, who_differs
from clusterrun.domain.suspension import MOST_RANKS
from clusterrun.job.options import OnHang

SECONDS_TO_ANSWER = 4.0
"""For all nodes; each gives its workers 2 s."""

MOST_KEPT = 200
"""Different stacks while answers come in; far fewer are shown."""

MOST_MISSING = 20
"""Nodes without an answer that are named."""


def message_received(
    state: JobState, connection: int, message: StacksMessage, at: float
) -> Actions:
    """Take note of a member's message about stacks."""
    match message:
        case RequestStacks():
            # A user of node 0 sees that agent's notice.
            host = state.members.hellos[connection].host
            return _begin(
                state, at, "" if connection == OWN else job_notices.stacks_requested(host)
            )
        case Idle(_, seconds):
            return _idle(state, connection, seconds, at)
        case Stacks():
            return _answered(state, connection, message, at)
        case _:
            assert_never(message)


def due(state: JobState) -> float:
    """Return when ``time_passed`` is to be called."""
    current = state.attempt.stack_round
    return state.attempt.hang_due if current is None else current.deadline


def time_passed(state: JobState, at: float) -> Actions:
    """Show the answers of the round that goes on; or begin one, as the job hangs."""
    attempt = state.attempt
    if attempt.stack_round is not None:
        return _finish(state, attempt.stack_round, at)
    attempt.hang_due = NEVER
    if not _hangs(state):
        return ()
    hang = Hung(at - attempt.idle_since, (), "")
    return _begin(state, at, job_notices.hangs(hang.seconds, _what_then(state, hang)), hang)


def _what_then(state: JobState, hang: Hung) -> str:
    if not _acts(state):
        return "nothing is ended"
    restarts = restarting.is_possible(state, hang)
    return f"then {'all workers are restarted' if restarts else 'the job is stopped'} (--on-hang)"


def _begin(state: JobState, at: float, why: str, hang: Hung | None = None) -> Actions:
    """Ask all members for their stacks, and print ``why`` on node 0."""
    if state.attempt.stack_round is not None:
        return ()
    state.stack_rounds += 1
    members, number = state.present(), state.stack_rounds
    deadline = at + SECONDS_TO_ANSWER
    state.attempt.stack_round = StackRound(number, hang, deadline, set(members))
    notice = (Send((OWN,), Notice(why)),) if why else ()
    return (*notice, Send(members, SendStacks(state.attempt.number, number)))


def _idle(state: JobState, connection: int, seconds: float, at: float) -> Actions:
    attempt = state.attempt
    if seconds <= 0 or state.is_absent(connection):
        attempt.idle.discard(connection)
        attempt.hang_due = NEVER
        return ()
    attempt.idle.add(connection)
    if not _hangs(state):
        return ()
    attempt.hang_timeout, attempt.idle_since, attempt.hang_due = seconds, at - seconds, at
    # Not in the midst of another round.
    return time_passed(state, at) if attempt.stack_round is None else ()


def _hangs(state: JobState) -> bool:
    """Return whether no rank of any node moves, and none is being stopped."""
    if state.attempt.reason_to_stop is not None:
        return False
    absent = len(state.lost_before_report) + len(state.lost_after_report)
    return len(state.attempt.idle) == len(state.ranks) - absent


def _answered(state: JobState, connection: int, stacks: Stacks, at: float) -> Actions:
    current = state.attempt.stack_round
    if current is None or current.number != stacks.number or connection not in current.awaited:
        return ()
    current.awaited.discard(connection)
    current.groups.add(stacks.groups, MOST_KEPT)
    return () if current.awaited else _finish(state, current, at)


def _finish(state: JobState, current: StackRound, at: float) -> Actions:
    """Show the answers, and which nodes gave none; act if the job hangs."""
    state.attempt.stack_round = None
    nodes = sorted((state.ranks[each], each) for each in current.awaited)
    missing = [
        f"node {rank} ({state.members.hellos[each].host})" for rank, each in nodes[:MOST_MISSING]
    ]
    if len(nodes) > MOST_MISSING:
        missing.append(f"{len(nodes) - MOST_MISSING} more nodes")
    shown = Send((OWN,), AllStacks(current.groups.most_common(MOST_GROUPS), tuple(missing)))
    if current.hang is None or not _hangs(state):
        return (shown,)
    known = _known(state, current)
    where, ranks = as_line(who_differs(known)), waited_for(known)[:MOST_RANKS]
    told = (Send((OWN,), Notice(job_notices.waited_for(ranks))), shown) if ranks else (shown,)
    if _acts(state):
        return (*told, *ending.stop_hung(state, Hung(current.hang.seconds, ranks, where)))
    if any(map(lacks_stack, known)) or state.terms.on_hang is not OnHang.REPORT:
        state.attempt.hang_due = at + state.attempt.hang_timeout
    return told


def _known(state: JobState, current: StackRound) -> tuple[StackGroup, ...]:
    """Return all stacks that came, and the ranks of members that gave no answer."""
    ranks = (tuple(state.ranks_of(each)) for each in current.awaited)
    silent = (StackGroup(each, "no answer", found=False) for each in ranks)
    return (*current.groups.most_common(MOST_KEPT), *silent)


def _acts(state: JobState) -> bool:
    """Return whether ``--on-hang`` ends the attempt now.

    A suspension has its own time limit, and a rank that saves may print nothing.
    """
    suspends = isinstance(state.attempt.agreement, Holding | Saving)
    return state.terms.on_hang is not OnHang.REPORT and not suspends
