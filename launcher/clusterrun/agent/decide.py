"""The agent's whole policy: which actions follow which event. Pure.

The first worker that fails ends the attempt: the others are stopped, what they left behind is
killed, their output is collected (``stop_sequence``), and the end is reported. The coordinator
answers with the next attempt or the verdict (``orders``). Signals (``signals``) and what else comes
from outside the workers (``external_causes``) end the whole job.
"""

import signal
from typing import assert_never

from msgspec.structs import replace

from clusterrun.agent import late_exits
from clusterrun.agent.actions import (
    Action,
    CollectOutput,
    Pause,
    PrintNotice,
    ReportFailure,
    WatchActivity,
)
from clusterrun.agent.attempt_state import AttemptState, Output, Phase, Running, with_ended
from clusterrun.agent.external_causes import end_externally, helper_lost
from clusterrun.agent.node_notices import (
    OUTPUT_CLOSED,
    about_fork_server,
    binding_differs,
    interrupted,
)
from clusterrun.agent.orders import coordinator_lost, coordinator_sought, order_received
from clusterrun.agent.signals import signal_not_handled, signal_received, stop_wanted
from clusterrun.agent.stack_requests import stack_event
from clusterrun.agent.stop_sequence import (
    Decision,
    clean_up,
    cleaned_up,
    deadline_passed,
    report_if_complete,
    stop,
)
from clusterrun.agent.suspending import on_leaving, rank_ended, rank_event, suspension_wanted
from clusterrun.domain import events
from clusterrun.domain.events import Event
from clusterrun.domain.outcome import Ending, Exited, Interrupted, Killed, NotStarted, OutputGone
from clusterrun.domain.ranks import LocalRank


def decide(state: AttemptState, event: Event) -> Decision:
    """Return the state after ``event``, and the actions to perform, in order."""
    if state.phase is Phase.OVER:
        return state, ()
    decided, actions = _decide(state, event)
    if state.phase is Phase.RUNNING and decided.phase is not Phase.RUNNING:
        decided = replace(decided, stopped_at=event.at)
        actions = (*on_leaving(state), *actions)
    return decided, actions


def _decide(state: AttemptState, event: Event) -> Decision:
    match event:
        case events.WorkerStarted():
            return _started(state, event)
        case events.WorkerNotStarted(local_rank, step, error, at):
            return _ended(state, local_rank, NotStarted(step, error), at)
        case events.WorkerExited(local_rank, code, at, since_failure):
            return _ended(state, local_rank, Exited(code), at, since_failure)
        case events.WorkerKilled(local_rank, number, at, since_failure, code):
            ending = Exited(code) if code else Killed(number)
            return _ended(state, local_rank, ending, at, since_failure)
        case events.WorkerStopped():
            # Only if it has the terminal: elsewhere a debugger stops workers.
            return state, (Pause(),) if state.rules.foreground else ()
        case events.WorkersIdle() | events.WorkersActive() | events.StacksCollected():
            return stack_event(state, event)
        case events.WorkerFailing():
            return late_exits.worker_failing(state, event)
        case events.RankAsked() | events.RanksHeld() | events.RankSaved():
            return rank_event(state, event)
        case events.OutputEnded():
            return _output_ended(state, event)
        case events.ForkServerReady(printed, refused):
            return state, tuple(map(PrintNotice, about_fork_server(printed, refused)))
        case events.CleanedUp(survivors):
            return cleaned_up(state, survivors)
        case events.DeadlinePassed(at):
            running = state.phase is Phase.RUNNING
            return late_exits.time_passed(state, at) if running else deadline_passed(state)
        case events.LookOrdered() | events.RelaySaw():
            # They change nothing: see ``ports.Looks``.
            return state, ()
        case _:
            return _from_outside(state, event)


FromOutside = (
    events.SignalReceived
    | events.SuspensionWanted
    | events.StopWanted
    | events.SignalNotHandled
    | events.OutputClosed
    | events.HelperLost
    | events.CoordinatorSent
    | events.CoordinatorLost
    | events.CoordinatorSought
)


def _from_outside(state: AttemptState, event: FromOutside) -> Decision:
    match event:
        case events.SignalReceived():
            return signal_received(state, event)
        case events.SuspensionWanted():
            return suspension_wanted(state, event)
        case events.StopWanted():
            return stop_wanted(state, event)
        case events.SignalNotHandled():
            return signal_not_handled(state, event)
        case events.OutputClosed(at):
            return end_externally(state, OutputGone(), at, signal.SIGTERM, OUTPUT_CLOSED)
        case events.HelperLost():
            return helper_lost(state, event)
        case events.CoordinatorSent(order):
            return order_received(state, order)
        case events.CoordinatorLost():
            return coordinator_lost(state, event)
        case events.CoordinatorSought():
            return coordinator_sought(state, event)
        case _:
            assert_never(event)


def _output_ended(state: AttemptState, event: events.OutputEnded) -> Decision:
    if event.local_rank not in state.ended:
        # It belongs to the attempt before.
        return state, ()
    output = Output(event.tail, event.error_file)
    return report_if_complete(replace(state, outputs={**state.outputs, event.local_rank: output}))


def _started(state: AttemptState, event: events.WorkerStarted) -> Decision:
    running = {**state.running, event.local_rank: Running(event.pid, event.at)}
    state = replace(state, starting=state.starting - {event.local_rank}, running=running)
    # What imports before its script runs, such as the fork server, is no hang of the script.
    begins = state.rules.finds_hangs and not state.starting
    watch = (WatchActivity(),) if begins else ()
    if not event.remark:
        return state, watch
    return state, (*watch, PrintNotice(binding_differs(event.local_rank, event.remark)))


def _ended(
    state: AttemptState,
    local_rank: LocalRank,
    ending: Ending,
    at: float,
    since_failure: float = 0.0,
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
    left = rank_ended(state, local_rank) if state.phase is Phase.RUNNING else ()
    if not state.alive and state.phase in {Phase.RUNNING, Phase.STOPPING, Phase.KILLING}:
        state, actions = clean_up(state)
        return state, (*left, collect, *actions)
    return state, (*left, collect)
