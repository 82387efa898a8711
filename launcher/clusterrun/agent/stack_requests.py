"""What the agent does about stacks: on SIGQUIT, or if no worker prints or exits any more. Pure."""

from collections.abc import Iterable
from typing import assert_never

from clusterrun.agent.actions import (
    CollectStacks,
    PrintNotice,
    PrintStacks,
    ReportStacks,
    SendToCoordinator,
)
from clusterrun.agent.state import Phase, State
from clusterrun.agent.stop_sequence import Decision
from clusterrun.coordination.messages import Idle, RequestStacks
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

STACKS_OF_ALL = "SIGQUIT: the Python stacks of all ranks follow on node 0; nothing is ended"
"""The notice of SIGQUIT in a job on several nodes."""


def stacks_wanted(state: State) -> Decision:
    """Return what SIGQUIT does."""
    if state.without_coordinator:
        return state, ()
    notice = stacks_follow(len(state.running)) if state.nodes == 1 else STACKS_OF_ALL
    return state, (PrintNotice(notice), SendToCoordinator(RequestStacks(state.attempt)))


def stack_event(state: State, event: AboutStacks) -> Decision:
    """Return what to do about ``event``; it never ends a worker."""
    match event:
        case WorkersIdle():
            # Workers that have all exited are idle, too.
            reports = state.phase in {Phase.RUNNING, Phase.WAITING}
            return state, (_idle(state, event.seconds),) if reports else ()
        case WorkersActive():
            return state, (_idle(state, 0.0),)
        case StacksRequested():
            notice = (
                (PrintNotice(_why(event)),)
                if event.shown_here and (event.idle_for or event.host)
                else ()
            )
            return state, (*notice, CollectStacks(event.number))
        case StacksCollected(number, groups, shown):
            return state, (ReportStacks(number, () if shown and state.nodes == 1 else groups),)
        case StacksGathered((), ()) if state.running:
            # The worker has printed its stack on the screen itself.
            return state, ()
        case StacksGathered(groups, missing):
            return state, (PrintStacks(describe(groups, missing)),)
        case _:
            assert_never(event)


def _idle(state: State, seconds: float) -> SendToCoordinator:
    return SendToCoordinator(Idle(state.attempt, seconds))


def stacks_follow(workers: int) -> str:
    """Return the notice of SIGQUIT in a job on one node."""
    what = "1 worker" if workers == 1 else f"{workers} workers"
    return f"SIGQUIT: the Python stacks of {what} follow; nothing is ended"


def nothing_moves(seconds: float) -> str:
    """Return the notice of --hang-timeout."""
    return (
        f"no rank has printed or exited for {seconds:g} s: the Python stacks of all ranks follow;"
        " nothing is ended"
    )


def _why(asked: StacksRequested) -> str:
    if asked.idle_for:
        return nothing_moves(asked.idle_for)
    return f"SIGQUIT on {asked.host}: the Python stacks of all ranks follow; nothing is ended"


def describe(groups: Iterable[StackGroup], missing: Iterable[str] = ()) -> str:
    """Return the lines to print: each stack with its ranks, then the ranks without one and why."""
    lines = []
    for group in groups:
        ranks = f"rank{'s' if len(group.ranks) > 1 else ''} {', '.join(runs(group.ranks))}"
        if group.found:
            lines += [
                f"  {ranks}:",
                *(f"    {_plain(line)}".rstrip() for line in group.text.split("\n")),
            ]
        else:
            lines.append(f"  {ranks}: {_plain(group.text)}")
    lines += [f"  {_plain(node)}: no answer" for node in missing]
    return "\n".join(lines) or "  no rank is running"


def _plain(line: str) -> str:
    """Return a line of another host without control characters."""
    return "".join(sign for sign in line if sign.isprintable())
