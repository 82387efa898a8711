"""What the agent does about stacks: on SIGQUIT, or if no worker prints or exits any more. Pure."""

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from clusterrun.agent import late_exits
from clusterrun.agent.actions import PrintNotice, PrintStacks, SendToCoordinator
from clusterrun.agent.attempt_state import AttemptState, Phase
from clusterrun.agent.stop_sequence import Decision
from clusterrun.domain.counts import counted
from clusterrun.domain.events import StacksCollected, WorkersActive, WorkersIdle
from clusterrun.domain.messages import AllStacks, Idle, RequestStacks, Stacks
from clusterrun.domain.stacks import EXITED, StackGroup, named, who_differs

STACKS_OF_ALL = "SIGQUIT: the Python stacks of all ranks follow on node 0; nothing is ended"
"""The notice of SIGQUIT in a job on several nodes."""


def request_stacks(state: AttemptState) -> Decision:
    """Ask the coordinator for the stacks of all ranks, after a SIGQUIT."""
    if state.without_coordinator:
        return state, ()
    notice = stacks_follow(len(state.running)) if state.nodes == 1 else STACKS_OF_ALL
    return state, (PrintNotice(notice), SendToCoordinator(RequestStacks(state.attempt)))


def stack_event(
    state: AttemptState, event: WorkersIdle | WorkersActive | StacksCollected
) -> Decision:
    """Report idle workers, or their stacks; no worker is ended."""
    match event:
        case WorkersIdle() if state.phase not in {Phase.RUNNING, Phase.WAITING}:
            # Workers are being ended. While WAITING, those that have all exited are idle, too.
            return state, ()
        case WorkersIdle(seconds):
            return state, (SendToCoordinator(Idle(state.attempt, seconds)),)
        case WorkersActive():
            return state, (SendToCoordinator(Idle(state.attempt, 0.0)),)
        case StacksCollected(late_exits.ROUND):
            return late_exits.stacks_collected(state, event)
        case StacksCollected(number, groups, shown):
            own = () if shown and state.nodes == 1 else _own_stacks(state, groups)
            return state, (SendToCoordinator(Stacks(state.attempt, number, own)),)
        case _:
            assert_never(event)


def print_all(state: AttemptState, stacks: AllStacks) -> Decision:
    """Print the stacks of all nodes, on node 0."""
    if state.running and not stacks.groups and not stacks.missing:
        # The worker has printed its stack on the screen itself.
        return state, ()
    return state, (PrintStacks(describe(stacks.groups, stacks.missing)),)


def _own_stacks(state: AttemptState, groups: Iterable[StackGroup]) -> tuple[StackGroup, ...]:
    """Return stacks by global rank, and the workers that have ended well: others may wait for them."""
    well = tuple(rank for rank, ended in state.ended.items() if ended.ending.succeeded)
    exited = (StackGroup(well, EXITED, found=False),) if well else ()
    return tuple(
        replace(each, ranks=tuple(state.first_rank + rank for rank in each.ranks))
        for each in (*groups, *exited)
    )


def stacks_follow(workers: int) -> str:
    """Return the notice of SIGQUIT in a job on one node."""
    return f"SIGQUIT: the Python stacks of {counted(workers, 'worker')} follow; nothing is ended"


def describe(groups: Iterable[StackGroup], missing: Iterable[str] = ()) -> str:
    """Return the lines to print: who differs, each stack with its ranks, ranks without one and why."""
    groups = tuple(groups)
    lines = [f"  {_plain(line)}" for line in filter(None, [who_differs(groups)])]
    for group in groups:
        ranks = named(group.ranks)
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
