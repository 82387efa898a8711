"""The end of an attempt on this node: SIGTERM, grace period, SIGKILL, cleanup, output. Pure."""

import signal
from typing import assert_never

from msgspec.structs import replace

from clusterrun.agent.actions import (
    Action,
    CleanUp,
    Finish,
    PrintNotice,
    ReportEnd,
    SetDeadline,
    SignalWorkers,
)
from clusterrun.agent.attempt_state import AttemptState, Phase
from clusterrun.agent.node_notices import killing
from clusterrun.domain.ranks import LocalRank

Decision = tuple[AttemptState, tuple[Action, ...]]

SECONDS_TO_DIE = 5.0
"""From SIGKILL until a worker counts as a survivor."""

SECONDS_TO_CLEAN_UP = 7.0
"""For the fork server, which needs at most 5 s to clean up, to answer."""

SECONDS_TO_COLLECT = 2.0
"""For the last output once all processes are gone: a stopped terminal must not delay the end."""


def stop(
    state: AttemptState,
    number: int,
    *,
    except_failing: bool = True,
    spared: frozenset[LocalRank] = frozenset(),
) -> Decision:
    """Send signal ``number`` to the remaining workers but ``spared``, and begin the grace period.

    A worker whose script has failed exits by itself, and its traceback may be the report: it gets
    no signal before the grace period is over, unless a user or scheduler sent the signal.
    """
    if not state.alive:
        return clean_up(state)
    ask = SignalWorkers(state.alive - spared, number, state.signal_group, except_failing)
    return replace(state, phase=Phase.STOPPING), (ask, SetDeadline(state.rules.grace))


def kill(state: AttemptState) -> Decision:
    """Kill the remaining workers."""
    by_force = SignalWorkers(state.alive, signal.SIGKILL, group=True)
    return replace(state, phase=Phase.KILLING), (by_force, SetDeadline(SECONDS_TO_DIE))


def clean_up(state: AttemptState) -> Decision:
    """Kill what the workers left behind."""
    return replace(state, phase=Phase.CLEANING_UP), (CleanUp(), SetDeadline(SECONDS_TO_CLEAN_UP))


def deadline_passed(state: AttemptState) -> Decision:
    """Go on with the next step of the sequence."""
    match state.phase:
        case Phase.STOPPING:
            notice = PrintNotice(killing(len(state.alive), state.rules.grace))
            state, actions = kill(state)
            return state, (notice, *actions)
        case Phase.KILLING:
            return clean_up(state)
        case Phase.CLEANING_UP:
            return cleaned_up(state, ())
        case Phase.COLLECTING:
            return report_end(state)
        case Phase.RUNNING | Phase.WAITING | Phase.OVER:
            return state, ()
        case _:
            assert_never(state.phase)


def cleaned_up(state: AttemptState, survivors: tuple[str, ...]) -> Decision:
    """Wait for the last output, now that only ``survivors`` are left."""
    if state.phase is not Phase.CLEANING_UP:
        return state, ()
    state = replace(state, phase=Phase.COLLECTING, survivors=survivors)
    if state.output_is_complete:
        return report_end(state)
    return state, (SetDeadline(SECONDS_TO_COLLECT),)


def report_if_complete(state: AttemptState) -> Decision:
    """Report the end if only output was missing, and all of it is here."""
    if state.phase is Phase.COLLECTING and state.output_is_complete:
        return report_end(state)
    return state, ()


def report_end(state: AttemptState) -> Decision:
    """Report the end of all workers, and wait for the coordinator's answer."""
    if state.without_coordinator:
        return finish(state)
    return replace(state, phase=Phase.WAITING), (ReportEnd(),)


def finish(state: AttemptState) -> Decision:
    """End the job."""
    return replace(state, phase=Phase.OVER), (Finish(),)
