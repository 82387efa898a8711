"""The agent's whole policy: which actions follow which event. Pure.

The first worker that fails ends the attempt: the others are stopped, what they left behind is
killed, their output is collected (``stop_sequence``), and the end is reported. The coordinator
answers with the next attempt or the verdict. Events that come from elsewhere than the workers are
in ``external_events``.
"""

import signal

from msgspec.structs import replace

from clusterrun.agent.actions import Action, CollectOutput, PrintNotice, ReportFailure, Suspend
from clusterrun.agent.external_events import external_event
from clusterrun.agent.notices import about_fork_server, binding_differs, interrupted
from clusterrun.agent.stack_requests import stack_event
from clusterrun.agent.state import Output, Phase, Running, State, with_ended
from clusterrun.agent.stop_sequence import (
    Decision,
    clean_up,
    cleaned_up,
    deadline_passed,
    report_if_complete,
    stop,
)
from clusterrun.domain.events import (
    CleanedUp,
    DeadlinePassed,
    Event,
    ForkServerReady,
    OutputEnded,
    StacksCollected,
    StacksGathered,
    StacksRequested,
    WorkerExited,
    WorkerKilled,
    WorkerNotStarted,
    WorkersActive,
    WorkersIdle,
    WorkerStarted,
    WorkerStopped,
)
from clusterrun.domain.outcome import Ending, Exited, Interrupted, Killed, NotStarted
from clusterrun.domain.ranks import LocalRank


def decide(state: State, event: Event) -> Decision:
    """Return the state after ``event``, and the actions to perform, in order."""
    if state.phase is Phase.OVER:
        return state, ()
    decided, actions = _decide(state, event)
    if state.phase is Phase.RUNNING and decided.phase is not Phase.RUNNING:
        decided = replace(decided, stopped_at=event.at)
    return decided, actions


def _decide(state: State, event: Event) -> Decision:
    match event:
        case WorkerStarted():
            return _started(state, event)
        case WorkerNotStarted(local_rank, step, error, at):
            return _ended(state, local_rank, NotStarted(step, error), at)
        case WorkerExited(local_rank, code, at, since_failure):
            return _ended(state, local_rank, Exited(code), at, since_failure)
        case WorkerKilled(local_rank, number, at, since_failure, code):
            ending = Exited(code) if code else Killed(number)
            return _ended(state, local_rank, ending, at, since_failure)
        case WorkerStopped():
            # Only if it has the terminal: elsewhere a debugger stops workers.
            return state, (Suspend(),) if state.rules.foreground else ()
        case OutputEnded():
            return _output_ended(state, event)
        case ForkServerReady(printed, refused):
            return state, tuple(map(PrintNotice, about_fork_server(printed, refused)))
        case CleanedUp(survivors):
            return cleaned_up(state, survivors)
        case DeadlinePassed():
            return deadline_passed(state)
        case (
            WorkersIdle()
            | WorkersActive()
            | StacksRequested()
            | StacksCollected()
            | StacksGathered()
        ):
            return stack_event(state, event)
        case _:
            return external_event(state, event)


def _output_ended(state: State, event: OutputEnded) -> Decision:
    if event.local_rank not in state.ended:
        # It belongs to the attempt before.
        return state, ()
    output = Output(event.tail, event.error_file)
    return report_if_complete(replace(state, outputs={**state.outputs, event.local_rank: output}))


def _started(state: State, event: WorkerStarted) -> Decision:
    running = {**state.running, event.local_rank: Running(event.pid, event.at)}
    state = replace(state, starting=state.starting - {event.local_rank}, running=running)
    if not event.remark:
        return state, ()
    return state, (PrintNotice(binding_differs(event.local_rank, event.remark)),)


def _ended(
    state: State, local_rank: LocalRank, ending: Ending, at: float, since_failure: float = 0.0
) -> Decision:
    state = with_ended(state, local_rank, ending, at, since_failure)
    collect = CollectOutput(local_rank)
    if state.phase is Phase.RUNNING and not ending.succeeded:
        if state.rules.foreground and ending == Killed(signal.SIGINT):
            # The terminal sent Ctrl-C to the worker.
            state = replace(state, external_cause=Interrupted(signal.SIGINT))
            notice: tuple[Action, ...] = (PrintNotice(interrupted()),)
        else:
            notice = ()
        # First, so that the other nodes stop at once.
        state, actions = stop(state, signal.SIGTERM)
        return state, (ReportFailure(local_rank), collect, *notice, *actions)
    if not state.alive and state.phase in {Phase.RUNNING, Phase.STOPPING, Phase.KILLING}:
        state, actions = clean_up(state)
        return state, (collect, *actions)
    return state, (collect,)
