"""The way down of an attempt: ask, grace, SIGKILL, sweep, last words, the end. Pure."""

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
from clusterrun.agent.notices import killing
from clusterrun.agent.state import Phase, State

Decision = tuple[State, tuple[Action, ...]]

SECONDS_TO_DIE = 5.0
"""From SIGKILL until a worker counts as one that can't be killed."""

SECONDS_TO_CLEAN_UP = 7.0
"""For the fork server's answer to a sweep, which itself takes 5 s at most."""

SECONDS_TO_COLLECT = 2.0
"""For the last output once all processes are gone: a stopped terminal must not hold the end."""


def stop(state: State, number: int, *, spare_failing: bool = True) -> Decision:
    """Ask the workers that are left to end, and give them their grace.

    One whose script has failed ends by itself, and its traceback may be the report: it gets no
    signal before the grace is over, unless a user or scheduler sent the signal.
    """
    if not state.alive:
        return clean_up(state)
    ask = SignalWorkers(state.alive, number, state.signal_group, spare_failing)
    return replace(state, phase=Phase.STOPPING), (ask, SetDeadline(state.rules.grace))


def kill(state: State) -> Decision:
    """End by force the workers that are left."""
    by_force = SignalWorkers(state.alive, signal.SIGKILL, group=True)
    return replace(state, phase=Phase.KILLING), (by_force, SetDeadline(SECONDS_TO_DIE))


def clean_up(state: State) -> Decision:
    """No worker is left: kill what they have left behind."""
    return replace(state, phase=Phase.CLEANING_UP), (CleanUp(), SetDeadline(SECONDS_TO_CLEAN_UP))


def deadline_passed(state: State) -> Decision:
    """Go one step further down: what was given time has had it."""
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


def cleaned_up(state: State, survivors: tuple[str, ...]) -> Decision:
    """Wait for the last output, now that no process is left but ``survivors``."""
    if state.phase is not Phase.CLEANING_UP:
        return state, ()
    state = replace(state, phase=Phase.COLLECTING, survivors=survivors)
    if state.output_is_complete:
        return report_end(state)
    return state, (SetDeadline(SECONDS_TO_COLLECT),)


def report_if_complete(state: State) -> Decision:
    """End the attempt if only output was missing, and all of it is here."""
    if state.phase is Phase.COLLECTING and state.output_is_complete:
        return report_end(state)
    return state, ()


def report_end(state: State) -> Decision:
    """Report the end of all workers here, and wait for the coordinator's answer."""
    if state.without_coordinator:
        return finish(state)
    return replace(state, phase=Phase.WAITING), (ReportEnd(),)


def finish(state: State) -> Decision:
    """End the job."""
    return replace(state, phase=Phase.OVER), (Finish(),)
