"""SIGQUIT, and workers that don't move any more: whose stacks are collected, and who is told. Pure."""

from collections.abc import Iterable
from typing import assert_never

from clusterrun.agent.actions import (
    AskForStacks,
    CollectStacks,
    Say,
    ShowStacks,
    TellStacks,
    TellStill,
)
from clusterrun.agent.state import Phase, State
from clusterrun.agent.stop_sequence import Decision
from clusterrun.domain.cpuset import runs
from clusterrun.domain.events import (
    AboutStacks,
    StacksCollected,
    StacksGathered,
    StacksRequested,
    WorkersActive,
    WorkersIdle,
)
from clusterrun.domain.stacks import StackGroup

ALONE = 0
"""Number of a round that no coordinator has asked for."""


def wanted(state: State) -> Decision:
    """A user wants to know where all ranks are."""
    if _shared(state):
        return state, (Say(stacks_of_all()), AskForStacks())
    return state, (Say(stacks_follow(len(state.running))), CollectStacks(ALONE))


def about_stacks(state: State, event: AboutStacks) -> Decision:
    """Return what is to be done about ``event``; it never ends anything."""
    match event:
        case WorkersIdle():
            return _still(state, event)
        case WorkersActive():
            return state, (TellStill(0.0),) if _shared(state) else ()
        case StacksRequested():
            say = (
                (Say(_why(event)),) if event.shown_here and (event.still_for or event.host) else ()
            )
            return state, (*say, CollectStacks(event.number))
        case StacksCollected(number, groups, shown):
            if _shared(state):
                return state, (TellStacks(number, groups),)
            return state, () if shown else (ShowStacks(describe(groups)),)
        case StacksGathered(groups, missing):
            return state, (ShowStacks(describe(groups, missing)),)
        case _:
            assert_never(event)


def _still(state: State, event: WorkersIdle) -> Decision:
    if _shared(state):
        # One that is done moves as little as any.
        tell = state.phase in {Phase.RUNNING, Phase.WAITING}
        return state, (TellStill(event.seconds),) if tell else ()
    if state.phase is not Phase.RUNNING:
        return state, ()
    return state, (Say(nothing_moves(event.seconds)), CollectStacks(ALONE))


def _shared(state: State) -> bool:
    return state.rules.shared and not state.cut_off


def stacks_follow(workers: int) -> str:
    """Say what SIGQUIT does on a single node."""
    who = "1 worker" if workers == 1 else f"{workers} workers"
    return f"SIGQUIT: the Python stacks of {who} follow; nothing is ended"


def stacks_of_all() -> str:
    """Say what SIGQUIT does on one of several nodes."""
    return "SIGQUIT: the Python stacks of all ranks follow on node 0; nothing is ended"


def nothing_moves(seconds: float) -> str:
    """Say why the stacks of all ranks are shown though nobody has asked."""
    return (
        f"no rank has printed or exited for {seconds:g} s: the Python stacks of all ranks follow;"
        " nothing is ended"
    )


def _why(asked: StacksRequested) -> str:
    if asked.still_for:
        return nothing_moves(asked.still_for)
    return f"SIGQUIT on {asked.host}: the Python stacks of all ranks follow; nothing is ended"


def describe(groups: Iterable[StackGroup], missing: Iterable[str] = ()) -> str:
    """Return stacks for people: each with its ranks, and the ranks that have none with the reason."""
    lines = []
    for group in groups:
        who = f"rank{'s' if len(group.ranks) > 1 else ''} {', '.join(runs(group.ranks))}"
        if group.found:
            lines += [
                f"  {who}:",
                *(f"    {_plain(line)}".rstrip() for line in group.text.split("\n")),
            ]
        else:
            lines.append(f"  {who}: {_plain(group.text)}")
    lines += [f"  {_plain(node)}: no answer" for node in missing]
    return "\n".join(lines) or "  no rank is running"


def _plain(line: str) -> str:
    """Return a line that another host may have made up without what a terminal obeys."""
    return "".join(sign for sign in line if sign.isprintable())
