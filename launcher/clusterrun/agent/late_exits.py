"""Workers whose script has failed and that do not exit: a thread or an exit handler holds them. Pure.

The other ranks wait for such a worker in a collective, and the GPUs of all with them. It has the grace
period of ``--shutdown-timeout`` to exit, from when the exception left its script: it may be uploading
a report of its crash. Then it is killed, and is the cause of the end like any other worker that fails.
Where the job has one worker, none waits for it: the user is told, and it is left alone.
"""

import signal

from msgspec.structs import replace

from clusterrun.agent.actions import Action, CollectStacks, PrintNotice, SetDeadline, SignalWorkers
from clusterrun.agent.attempt_state import AttemptState, LateExit, Phase
from clusterrun.agent.node_notices import killed_after, killed_late, still_runs
from clusterrun.agent.stop_sequence import Decision
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.events import StacksCollected, WorkerFailing
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.stacks import place_of

SECONDS_TO_EXIT = 5.0
"""A worker that needs longer is looked at, and named. Python's end takes a second with torch."""

SECONDS_TO_PRINT = 1.0
"""At least, whatever the grace period: a traceback is printed after the failure is known."""

SECONDS_TO_SHOW_STACKS = 4.0
"""The relay gives workers 2 s."""

ROUND = 0
"""The number of our round of stacks: those of the coordinator count from 1."""


def worker_failing(state: AttemptState, event: WorkerFailing) -> Decision:
    """Begin the time that a worker has to exit."""
    if state.phase is not Phase.RUNNING or event.local_rank not in state.running:
        # It is being stopped already.
        return state, ()
    state = _noted(state, event.local_rank, LateExit(event.at - event.since_failure))
    return state, _next_deadline(state, event.at)


def time_passed(state: AttemptState, at: float) -> Decision:
    """Look at workers that are late, kill those whose time is over."""
    actions: tuple[Action, ...] = ()
    for local_rank, late in _still_there(state).items():
        if at >= _kill_at(state, late):
            state = _noted(state, local_rank, replace(late, killed=True))
            notice = killed_late(state.first_rank + local_rank, _grace(state))
            kill = SignalWorkers(frozenset({local_rank}), signal.SIGKILL, group=True)
            actions += (PrintNotice(notice), kill)
        elif at >= _look_at(state, late):
            state = _noted(state, local_rank, replace(late, looked_at=at))
            if CollectStacks(ROUND) not in actions:
                actions += (CollectStacks(ROUND),)
    return state, (*actions, *_next_deadline(state, at))


def stacks_collected(state: AttemptState, event: StacksCollected) -> Decision:
    """Name the workers that are late, and where they are; the report has their stacks."""
    stacks = {rank: group for group in event.groups for rank in group.ranks}
    actions: tuple[Action, ...] = ()
    for local_rank, late in _still_there(state).items():
        group = stacks.get(local_rank)
        if late.looked_at == NEVER or late.was_named or group is None:
            continue
        stack = group.text if group.found else ""
        state = _noted(state, local_rank, replace(late, stack=stack, was_named=True))
        rank, seconds = state.first_rank + local_rank, event.at - late.failed_at
        notice = still_runs(rank, seconds, place_of(stack), _what_then(state))
        actions += (PrintNotice(notice),)
    return state, (*actions, *_next_deadline(state, event.at))


def stack_of_killed(state: AttemptState, local_rank: LocalRank) -> str:
    """Return the stack in which a worker hung that was killed for it; "" if it was not, or has none."""
    late = state.late_exits.get(local_rank)
    return late.stack if late is not None and late.killed else ""


def _noted(state: AttemptState, local_rank: LocalRank, late: LateExit) -> AttemptState:
    return replace(state, late_exits={**state.late_exits, local_rank: late})


def _still_there(state: AttemptState) -> dict[LocalRank, LateExit]:
    return {
        rank: late
        for rank, late in state.late_exits.items()
        if rank in state.running and not late.killed
    }


def _must_exit(state: AttemptState) -> bool:
    """Tell whether other workers wait for one that does not exit, and no one debugs it."""
    is_alone = state.nodes == 1 and len(state.alive | state.ended.keys()) == 1
    return state.rules.ends_late_exits and not is_alone


def _what_then(state: AttemptState) -> str:
    if _must_exit(state):
        return killed_after(_grace(state))
    debugged = not state.rules.ends_late_exits
    return f"it is left alone, as {'it is debugged' if debugged else 'no other rank waits for it'}"


def _grace(state: AttemptState) -> float:
    return max(state.rules.grace, SECONDS_TO_PRINT)


def _look_at(state: AttemptState, late: LateExit) -> float:
    if late.looked_at != NEVER:
        return NEVER
    seconds = min(SECONDS_TO_EXIT, _grace(state)) if _must_exit(state) else SECONDS_TO_EXIT
    return late.failed_at + seconds


def _kill_at(state: AttemptState, late: LateExit) -> float:
    """Return when a worker's time is over; not before its stack is known, or does not come."""
    if not _must_exit(state) or late.looked_at == NEVER:
        return NEVER
    stack_comes = late.failed_at if late.was_named else late.looked_at + SECONDS_TO_SHOW_STACKS
    return max(late.failed_at + _grace(state), stack_comes)


def _next_deadline(state: AttemptState, at: float) -> tuple[Action, ...]:
    times = (
        min(_look_at(state, late), _kill_at(state, late)) for late in _still_there(state).values()
    )
    due = min(times, default=NEVER)
    return () if due == NEVER else (SetDeadline(max(0.0, due - at)),)
