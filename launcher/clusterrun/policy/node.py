"""What one node does in one attempt: a machine that turns each event into actions. Pure.

The first worker that fails ends the attempt: the others are stopped, what they left behind is killed,
their output is collected, and the end is reported. If all have succeeded, the coordinator knows at once,
and what they left running may end by itself. The coordinator answers with the next attempt or the verdict.
Signals, and what else comes from outside the workers, end the whole job: they are reported at once, so
that all nodes stop. An attempt goes from one phase to a later one, never back; OVER follows
the last of this table, in which nothing happens any more. "=" is as in the phase before::

    ==========================  =========================  ================  ========  ===========  ================  =================
    event                       RUNNING                    STOPPING          KILLING   CLEANING_UP  COLLECTING        WAITING
    ==========================  =========================  ================  ========  ===========  ================  =================
    worker starts               the last: watch for hangs  =                 =         =            =                 =
    worker exits with 0         collect; last: leave (7)   last: clean up    =         collect      =                 =
    ... and others run on       report, after 1 s
    worker fails                report, collect, stop      as with 0         =         =            =                 =
    it fails and does not exit  wait, look, name, kill
    deadline passes             of one that does not exit  kill              clean up  collect      report
    all is cleaned up                                                                  collect
    output ends                 keep                       =                 =         =            the last: report  keep
    TERM, INT, HUP              report, stop (1)           report            =         =            =                 report for others
    ... again                   after (1): kill            report, kill (6)  report    =            =                 finish
    stop command                report, stop               report            =         =            =                 report for others
    ... with --now              report, kill               =                 report    =            =                 =
    output is closed            report, stop
    relay is lost               report, stop (2)           (2)               =         =            =                 finish (9)
    fork server is lost         report, clean up (2)       clean up (2)      =         =            (2)               finish (9)
    Stop                        stop (3)
    ... at once                 kill                       =
    Verdict, node 0 is lost     stop, kill (4)             kill (4)                                                   finish
    GivenUp                     kill                       =                                                          join again
    lease is over               kill (8)                   =
    NextAttempt                                                                                                       begin, or decline
    CheckNode                                                                                                         check
    its check has ended                                                                                               report
    HoldRanks                   hold (5)                   (5)               =         =            =                 =
    SaveAt                      release
    CancelSuspension            release, TERM acts now     =                 =         =            =                 =
    rank asks, waits or saves   report
    no worker moves             report                                                                                report
    no main thread runs         report                                                                                report
    ==========================  =========================  ================  ========  ===========  ================  =================

1. TERM asks for a suspension instead, the first time, if a rank of the job may be suspended.
2. No other attempt can start on this node: it declines the next one.
3. Ranks that have saved are spared if all were to save.
4. Without a grace period where node 0 may go on without this one.
5. If a rank has ended, that is reported instead.
6. Ctrl-C after a failure the first time, too: a scheduler's SIGTERM does not shorten the grace period.
7. Clean up, where the ranks are to save and end, or with a grace period of 0 s.
8. The fork server has killed the workers: no failure of theirs.
9. In a job that outlives this node, which leaves it; else as in the phase before.

After success an attempt is LEAVING before CLEANING_UP::

    ==============================  ===================================================
    event                           LEAVING
    ==============================  ===================================================
    it is entered                   report success, wait for what is left; 1 s
    nothing is left                 collect
    first deadline                  name what is left; the rest of the grace period
    second deadline                 name it, SIGTERM; 5 s
    third deadline                  name it, clean up
    TERM, INT, HUP, stop command    report for others, as while WAITING; clean up
    Stop, GivenUp, node 0 is lost   clean up
    a helper is lost                clean up
    Verdict                         of success: keep; else clean up
    no worker moves                 report
    no main thread runs             report
    ==============================  ===================================================

In every phase QUIT asks for the stacks of all ranks, TSTP pauses, CONT continues, any other signal is
forwarded, ``--suspend-signal`` asks for a suspension, and stacks are printed.
"""

import signal
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, assert_never

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import LocalRank, counted
from clusterrun.cpuset import runs
from clusterrun.errors import exit_code_of_signal
from clusterrun.job.job import MAIN, Job
from clusterrun.job.options import OnFailure
from clusterrun.loop import NEVER
from clusterrun.planning.plan import NodePlan
from clusterrun.policy import actions, events, messages, notices
from clusterrun.policy.actions import Action
from clusterrun.policy.events import Event
from clusterrun.policy.messages import AgentMessage
from clusterrun.policy.outcome import (
    MAX_RANKS,
    EndedEarly,
    ExitStatus,
    ExternalCause,
    HelperFailed,
    Interrupted,
    Killed,
    NotReady,
    OutputGone,
    Succeeded,
)
from clusterrun.policy.stacks import EXITED, StackGroup, position_of
from clusterrun.signals import ENDING_SIGNALS, SignalReceived, signal_name

if TYPE_CHECKING:
    from clusterrun.job.services import Service

SECONDS_TO_DIE = 5.0
"""From SIGKILL until a worker counts as a survivor."""

SECONDS_TO_CLEAN_UP = 7.0
"""For the fork server, which needs at most 5 s to clean up, to answer."""

SECONDS_TO_LEAVE = 1.0
"""What workers left running and ends within this time is not named: helpers of libraries do."""

SECONDS_AFTER_SIGTERM = 5.0
"""From SIGTERM to SIGKILL, for what workers left running."""

SECONDS_TO_COLLECT = 2.0
"""For the last output once all processes are gone: a stopped terminal must not delay the end."""

SECONDS_AFTER_SERVICE_EXIT = 5.0
"""A worker of a service that was told to exit may do so before the program that told it."""

SECONDS_TO_EXIT = 5.0
"""A worker that needs longer is looked at, and named. Python's end takes a second with torch."""

SECONDS_TO_GATHER_EXITS = 1.0
"""A clean exit is reported after this time: in most jobs all ranks of a node exit together."""

SECONDS_TO_PRINT = 1.0
"""At least, whatever the grace period: a traceback is printed after the failure is known."""

SECONDS_TO_COLLECT_STACKS = 4.0
"""The relay gives workers 2 s."""

SECONDS_OF_ECHO = 1.0
"""Within this time after an ending signal, another one counts as the same.

Schedulers send one SIGTERM by two ways; wrappers pass on the SIGINT that the terminal sends to all.
"""


class Phase(Enum):
    """The life of an attempt: it goes from one member to a later one, never back."""

    RUNNING = "running"
    """Workers start and run; nothing has gone wrong."""

    STOPPING = "stopping"
    """The workers have got SIGTERM; the grace period runs."""

    KILLING = "killing"
    """The workers have got SIGKILL."""

    LEAVING = "leaving"
    """All workers have exited with 0; what they left running may end by itself."""

    CLEANING_UP = "cleaning up"
    """All workers have exited; what they left behind is being killed."""

    COLLECTING = "collecting"
    """No process is left; the last output is being collected."""

    WAITING = "waiting"
    """This node has reported its end, and waits for the coordinator's answer."""

    OVER = "over"
    """The attempt is over."""


class LeftoverState(Enum):
    """What was done about the processes that workers have left running."""

    AWAITED = "awaited"
    NAMED = "named"
    TERMINATED = "terminated"
    """They have got SIGTERM."""

    KILLED = "killed"


class RunningWorker(Struct, frozen=True):
    """A worker that runs its program."""

    pid: int
    """0: no process was started."""
    since: float


class EndedWorker(Struct, frozen=True):
    """A worker that has exited or was never started."""

    ran: RunningWorker
    """Without a process if it was never started."""
    at: float
    failed_at: float
    """When its exception left the script; ``at`` if that is not known."""
    exit_status: ExitStatus
    stopped_by_us: bool
    """The launcher was stopping it before it exited, and before it failed."""
    killed_by_others: bool = False
    """SIGKILL ended it, and the launcher had sent no more than SIGTERM."""
    by_lease: bool = False
    """The fork server has ended it, because its lease was over."""


class SuspensionOnNode(Struct):
    """How far the suspension of the job is on this node."""

    possible: bool = False
    """A rank of the job has called ``suspend.requested``, in this attempt or an earlier one."""
    asked: frozenset[LocalRank] = frozenset()
    """The ranks of this node that have called it in this attempt."""
    saved: frozenset[LocalRank] = frozenset()
    saved_at: int = 0
    """The highest mark at which a rank of this node has saved; 0: none has."""
    is_on: bool = False
    """The ranks are being held, or save."""
    mark: int = 0
    """The mark at which they save; 0: not agreed on."""
    signalled_at: float = NEVER
    """When the first SIGTERM asked for the suspension at this agent: a second one ends the job."""


class IdleWorkers(Struct):
    """Since when the workers of this node do nothing; NEVER: they do."""

    silent_since: float = NEVER
    """None has printed or exited."""
    still_since: float = NEVER
    """No main thread has run."""


class LateExit(Struct):
    """A worker whose script has failed, and whose process still runs: a thread or an exit handler holds it.

    The other ranks wait for such a worker in a collective, and the GPUs of all with them. It has the grace
    period of ``--shutdown-timeout`` to exit, from when the exception left its script: it may be uploading
    a report of its crash. Then it is killed, and is the cause of the end like any other worker that fails.
    Where the job has one worker, none waits for it: a notice names it, and it is left alone. So is a worker
    that is debugged.

    ``patience`` is how long it may take to exit, NEVER if it is left alone.
    """

    failed_at: float
    looked_at: float = NEVER
    """When its stack was asked for."""
    was_named: bool = False
    """Its stack has come, and the user knows of it."""
    stack: str = ""
    was_killed: bool = False
    """Its time is over."""

    def look_at(self, patience: float) -> float:
        """Return when to ask for its stack."""
        was_looked_at = self.looked_at != NEVER
        return NEVER if was_looked_at else self.failed_at + min(SECONDS_TO_EXIT, patience)

    def kill_at(self, patience: float) -> float:
        """Return when its time is over; not before its stack is known, or does not come."""
        if self.looked_at == NEVER:
            return NEVER
        stack_comes = (
            self.failed_at if self.was_named else self.looked_at + SECONDS_TO_COLLECT_STACKS
        )
        return max(self.failed_at + patience, stack_comes)

    @property
    def hung(self) -> str:
        """The stack in which it hung until it was killed for that; "" if it was not, or has none."""
        return self.stack if self.was_killed else ""


class Attempt:
    """One attempt on this node, from the request to start its workers to its end."""

    def __init__(
        self, job: Job, plan: NodePlan, *, foreground: bool, can_suspend: bool = False
    ) -> None:
        """Begin with workers that are being started.

        Args:
            job: the job.
            plan: what runs on this node.
            foreground: the one worker has the terminal, which sends it Ctrl-C directly.
            can_suspend: a rank of the job has called ``suspend.requested`` in an earlier attempt.

        """
        self.job, self.plan, self.foreground = job, plan, foreground
        self.idle = IdleWorkers()
        self.number: int = plan.world.attempt
        """That of the next attempt, once this node has declined that."""
        self.phase = Phase.RUNNING
        self.suspending = SuspensionOnNode(can_suspend)
        everyone = frozenset(worker.local_rank for worker in plan.workers)
        self.waiting = frozenset(rank for rank in everyone if self.waits_for(rank))
        """Workers that start once services are ready."""
        self.starting = everyone - self.waiting
        self.early_exits: dict[LocalRank, float] = {}
        """Workers of services that have exited with 0, and when that is a failure."""
        self.ignored: set[LocalRank] = set()
        """Workers of services whose end is not a failure, however they ended: with the main program, or by
        ``on_failure: ignore``."""
        self.ready: set[LocalRank] = set()
        """Workers of services that have answered that they are."""
        self.not_ready: dict[LocalRank, NotReady] = {}
        """Those that are killed because they have not, and start again."""
        self.restarts: dict[LocalRank, int] = {}
        """How often workers of services have started again alone."""
        self.ends_before: dict[LocalRank, EndedWorker] = {}
        """How they ended the last time before."""
        self.services_end = self.stops_services = self.is_checked = False
        """Services are to end, as the main program has with 0; workers are stopped for that alone;
        ``--check`` was run after the attempt."""
        self.running: dict[LocalRank, RunningWorker] = {}
        self.ended: dict[LocalRank, EndedWorker] = {}
        """In the order in which they ended."""
        self.clean_exits: dict[LocalRank, float] = {}
        """Workers of worlds that have exited with 0, and when, as long as that is not reported."""
        self.late_exits: dict[LocalRank, LateExit] = {}
        """The workers that were known to have failed before they exited."""
        self.outputs: dict[LocalRank, events.OutputEnded] = {}
        self.external_cause: ExternalCause | None = None
        """What ended the job from outside its workers; None where nothing has."""
        self._external_cause_at = 0.0
        self.signals: dict[int, SignalReceived] = {}
        """By number, signals that end nothing and were sent to the agent or to the fork server; if to
        both, the other one follows."""
        self.stopped_at = NEVER
        """When the attempt left ``RUNNING``."""
        self._external_cause_elsewhere: ExternalCause | None = None
        """What ended the job from outside on another node, as the order to stop says."""
        self.leftovers = LeftoverState.AWAITED
        self.survivors: tuple[str, ...] = ()
        self.lost_helper: HelperFailed | None = None
        """The helper process that is lost; no other attempt can start without it."""
        self.answer: messages.Verdict | messages.NextAttempt | messages.GivenUp | None = None
        """The coordinator's, or a verdict of this node's own if node 0 is lost: no other comes."""
        self.decided: list[Action] = []
        """What to do about the event at hand."""

    @property
    def alive(self) -> frozenset[LocalRank]:
        """The workers that have begun to start, and not ended."""
        return self.starting.union(self.running)

    def handle(self, event: Event) -> list[Action]:
        """Take an event; return what to do about it, in order."""
        was_running, held_ranks = self.phase is Phase.RUNNING, self.suspending.is_on
        self.HANDLERS[type(event)](self, event)
        if was_running and self.phase is not Phase.RUNNING:
            self.stopped_at = event.at
            if held_ranks:
                # First of all: a rank that is held would not see SIGTERM.
                self.decided.insert(0, actions.LetRanksExit())
        decided, self.decided = self.decided, []
        return decided

    def _do(self, *decided: Action) -> None:
        self.decided += decided

    def _send(self, message: AgentMessage) -> None:
        self._do(actions.SendToCoordinator(message))

    def _note(self, text: str) -> None:
        self._do(actions.PrintNotice(text))

    @property
    def lease_expired(self) -> bool:
        """Whether workers were ended because their lease was over."""
        return any(ended.by_lease for ended in self.ended.values())

    @property
    def _workers(self) -> str:
        """Those that have not ended, in notices: "2 workers"."""
        return counted(len(self.alive), "worker")

    # The steps of the end.

    def _stop(
        self,
        number: int,
        *,
        except_failing: bool = True,
        spared: frozenset[LocalRank] = frozenset(),
    ) -> None:
        """Send signal ``number`` to the remaining workers but ``spared``, and begin the grace period.

        A worker whose script has failed exits by itself, and its traceback may be the report: it gets
        no signal before the grace period is over, unless a user or scheduler sent the signal.
        """
        if not self.alive:
            self._clean_up()
            return
        self.phase = Phase.STOPPING
        ranks = self.alive - spared
        python = frozenset(rank for rank in ranks if self.plan.workers[rank].runs_python)
        for some, group in ((python, False), (ranks - python, True)):
            if some:
                self._do(actions.SignalWorkers(some, number, group, except_failing))
        self._do(actions.SetDeadline(self.job.failures.shutdown_timeout))

    def _kill(self) -> None:
        self.phase = Phase.KILLING
        by_force = actions.SignalWorkers(self.alive, signal.SIGKILL, group=True)
        self._do(by_force, actions.SetDeadline(SECONDS_TO_DIE))

    def _leave(self) -> None:
        """Let what the workers left running end by itself, now that all have succeeded.

        The coordinator knows at once: no other node waits for that, and from its verdict on, no signal
        makes a failure of a success.
        """
        self.phase = Phase.LEAVING
        self._send(messages.RanksSucceeded(self.number))
        services = ((rank, self.plan.workers[rank].service) for rank in self.ended)
        of_services = frozenset(rank for rank, it in services if it and not it.must_finish)
        if of_services:
            # What they have left does not outlive them.
            self._do(actions.KillLeftovers(of_services))
        patience = min(SECONDS_TO_LEAVE, self.job.failures.shutdown_timeout)
        self._do(actions.AwaitLeftovers(), actions.SetDeadline(patience))

    @property
    def _may_leave(self) -> bool:
        known = self.suspending
        is_suspended = known.is_on or known.signalled_at != NEVER
        is_successful = self.phase is Phase.RUNNING or (
            self.stops_services and self.external_cause is None
        )
        return is_successful and not is_suspended and self.job.failures.shutdown_timeout > 0

    def _hurry_leftovers(self) -> None:
        """Do the next thing about what has not ended by itself."""
        patience = self.job.failures.shutdown_timeout - SECONDS_TO_LEAVE
        self._do(actions.NameLeftovers())
        match self.leftovers:
            case LeftoverState.AWAITED if patience > 0:
                self.leftovers = LeftoverState.NAMED
                self._do(actions.SetDeadline(patience))
            case LeftoverState.AWAITED | LeftoverState.NAMED:
                self.leftovers = LeftoverState.TERMINATED
                self._do(actions.SetDeadline(SECONDS_AFTER_SIGTERM))
            case _:
                self.leftovers = LeftoverState.KILLED
                self._clean_up()

    def _left(self, event: events.Left) -> None:
        """Name what is left, and what is done about it."""
        if not event.processes:
            return
        names, grace = notices.leftovers(event.processes), self.job.failures.shutdown_timeout
        match self.phase, self.leftovers:
            case Phase.LEAVING, LeftoverState.NAMED:
                here = "" if self.plan.world.nodes == 1 else " of this node"
                self._note(
                    f"the ranks{here} have ended; still running: {names};"
                    f" waiting up to {grace:g} s (--shutdown-timeout; Ctrl-C ends them)"
                )
            case Phase.LEAVING, LeftoverState.TERMINATED:
                self._note(f"{names} did not end within {grace:g} s: sending SIGTERM")
                self._do(actions.SignalLeftovers(signal.SIGTERM))
            case Phase.CLEANING_UP, LeftoverState.KILLED:
                within = f"within {SECONDS_AFTER_SIGTERM:g} s of SIGTERM"
                self._note(f"{names} did not end {within}: sending SIGKILL")
            case _:
                # They are being killed for another reason.
                pass

    def _nothing_left(self, _event: events.NoLeftovers) -> None:
        if self.phase is Phase.LEAVING:
            self._collect(())

    def _end_leaving(self, why: str) -> None:
        """Kill what the workers have left, if it is still allowed to run."""
        if self.phase is Phase.LEAVING:
            if self.leftovers is not LeftoverState.AWAITED:
                self._note(f"{why}: killing what the ranks here have left running")
            self._clean_up()

    def _clean_up(self) -> None:
        """Kill what the workers left behind."""
        self.phase = Phase.CLEANING_UP
        self._do(actions.CleanUp(), actions.SetDeadline(SECONDS_TO_CLEAN_UP))

    def _collect(self, survivors: tuple[str, ...]) -> None:
        """Wait for the last output, now that only ``survivors`` are left."""
        self.phase, self.survivors = Phase.COLLECTING, survivors
        if self._output_is_complete:
            self._report_end()
        else:
            self._do(actions.SetDeadline(SECONDS_TO_COLLECT))

    def _report_end(self) -> None:
        """Report the end of all workers, and wait for the coordinator's answer."""
        if self.answer is not None or self._leaves:
            self._finish()
        else:
            self.phase = Phase.WAITING
            if not all(ended.exit_status.succeeded for ended in self.ended.values()):
                self._report_clean_exits(NEVER)
            self._do(actions.ReportEnd())

    def _finish(self) -> None:
        self.phase = Phase.OVER
        rejoins = isinstance(self.answer, messages.GivenUp) and self.external_cause is None
        self._do(actions.Rejoin() if rejoins else actions.Finish())

    @property
    def _leaves(self) -> bool:
        """Whether the job goes on without this node, which can start no worker any more."""
        outlived = self.job.survives_node_loss and self.plan.world.node_rank > 0
        return outlived and self.lost_helper is not None

    def _deadline_passed(self, event: events.DeadlinePassed) -> None:
        match self.phase:
            case Phase.RUNNING:
                self._report_clean_exits(event.at)
                early = [rank for rank, at in self.early_exits.items() if event.at >= at]
                if early:
                    self._service_failed(early[0], EndedEarly(), event.at)
                else:
                    self._watch_late_exits(event.at)
            case Phase.STOPPING:
                grace = self.job.failures.shutdown_timeout
                self._note(f"{self._workers} did not exit within {grace:g} s: sending SIGKILL")
                self._kill()
            case Phase.KILLING:
                self._clean_up()
            case Phase.LEAVING:
                self._hurry_leftovers()
            case Phase.CLEANING_UP:
                self._collect(())
            case Phase.COLLECTING:
                self._report_end()
            case Phase.WAITING | Phase.OVER:
                pass
            case _:
                assert_never(self.phase)

    def _cleaned_up(self, event: events.CleanedUp) -> None:
        if self.phase is Phase.CLEANING_UP:
            self._collect(event.survivors)

    def _output_ended(self, event: events.OutputEnded) -> None:
        if event.local_rank not in self.ended:
            # It belongs to the attempt before.
            return
        self.outputs[event.local_rank] = event
        if self.phase is Phase.COLLECTING and self._output_is_complete:
            self._report_end()

    @property
    def _output_is_complete(self) -> bool:
        return self.ended.keys() == self.outputs.keys()

    # Workers.

    def _worker_started(self, event: events.WorkerStarted) -> None:
        self.starting -= {event.local_rank}
        self.running[event.local_rank] = RunningWorker(event.pid, event.at)
        if self.phase is Phase.RUNNING and self._is_asked(event.local_rank):
            self._do(actions.ProbeReadiness(event.local_rank))
        if self.job.active_hang_timeout and not self.starting and not self.waiting:
            # What imports before its script runs, such as the fork server, is not a hang of the script.
            self._do(actions.WatchActivity())
        if event.remark:
            # It is not bound as planned.
            self._note(f"local rank {event.local_rank}: {event.remark}")

    def _worker_ended(self, event: events.WorkerEnded) -> None:
        local_rank, exit_status = event.local_rank, event.exit_status
        if local_rank in self.ended:
            # It was killed because it was not ready.
            return
        if event.by_lease and self.phase in {Phase.RUNNING, Phase.STOPPING}:
            self._lease_is_over()
        self._keep_end(event)
        if local_rank in self.not_ready:
            exit_status = self.not_ready.pop(local_rank)
            self.ended[local_rank] = replace(self.ended[local_rank], exit_status=exit_status)
        is_failure = self.phase is Phase.RUNNING and not exit_status.succeeded
        if is_failure and self._goes_on_after(local_rank, exit_status):
            self._end_if_last()
            return
        if is_failure:
            # First, so that the other nodes stop at once.
            self._do(actions.ReportFailure(local_rank), actions.CollectOutput(local_rank))
            if self.foreground and exit_status == Killed(signal.SIGINT):
                # The terminal sent Ctrl-C to the worker.
                self.external_cause = Interrupted(signal.SIGINT)
                self._note("interrupted: exit code 130")
            self._stop(signal.SIGTERM)
            return
        if self.phase is Phase.RUNNING and self.suspending.is_on and self._is_main(local_rank):
            self._report_left(local_rank)
        self._do(actions.CollectOutput(local_rank))
        self._note_clean_exit(local_rank, event.at)
        if self.phase is Phase.RUNNING and self.job.services:
            self._program_may_have_ended(local_rank, event.at)
        self._end_if_last()

    def _note_clean_exit(self, local_rank: LocalRank, at: float) -> None:
        """Report soon that a worker has exited with 0, if others of its program may wait for it."""
        service = self.plan.workers[local_rank].service
        has_peers = service is None or (service.world and service.must_finish)
        if self.phase is Phase.RUNNING and has_peers:
            self.clean_exits[local_rank] = at
            self._set_deadline_while_running(at)

    def _report_clean_exits(self, at: float) -> None:
        """Report the workers that have exited with 0, once others have had the time to follow."""
        if self.clean_exits and at >= self._exits_due:
            ranks, self.clean_exits = tuple(sorted(self.clean_exits)), {}
            for start in range(0, len(ranks), MAX_RANKS):
                self._do(actions.ReportExits(ranks[start : start + MAX_RANKS]))

    @property
    def _exits_due(self) -> float:
        """When to report the workers that have exited with 0; NEVER: none has since the last time."""
        return next(iter(self.clean_exits.values()), NEVER) + SECONDS_TO_GATHER_EXITS

    def _lease_is_over(self) -> None:
        """Take note that the fork server kills the workers: other nodes may go on without this one."""
        why = "this node was stopped, or cut off from node 0, for too long: its lease"
        if self.answer is not None:
            # Node 0 is lost.
            why = "the lease of this node"
        self._note(f"{why} has expired, and {self._workers} killed")
        self.phase = Phase.KILLING
        self._do(actions.SetDeadline(SECONDS_TO_DIE))

    def _end_if_last(self) -> None:
        """Leave, or clean up, if all workers have ended, and no other follows."""
        may_be_last = self.phase in {Phase.RUNNING, Phase.STOPPING, Phase.KILLING}
        some_follow = self.phase is Phase.RUNNING and (self.waiting or self.early_exits)
        if may_be_last and not self.alive and not some_follow:
            if self._may_leave:
                self._leave()
            else:
                self._clean_up()

    def _keep_end(self, end: events.WorkerEnded) -> None:
        ran = self.running.pop(end.local_rank, RunningWorker(pid=0, since=end.at))
        self.starting -= {end.local_rank}
        if self.services_end and self.plan.workers[end.local_rank].service:
            self.ignored.add(end.local_rank)
        failed_at = end.at - end.since_failure
        by_us = self.phase is not Phase.RUNNING and (
            end.since_failure == 0 or failed_at > self.stopped_at
        )
        only_asked = by_us and self.phase is Phase.STOPPING
        by_others = only_asked and end.exit_status == Killed(signal.SIGKILL)
        self.ended[end.local_rank] = EndedWorker(
            ran, end.at, failed_at, end.exit_status, by_us, by_others, end.by_lease
        )

    # Services.

    def _is_main(self, local_rank: LocalRank) -> bool:
        return self.plan.workers[local_rank].service is None

    def waits_for(self, local_rank: LocalRank) -> tuple[str, ...]:
        """Return the services that must be ready before this worker starts."""
        service = self.plan.workers[local_rank].service
        if service is not None:
            return service.after
        return tuple(each.name for each in self.job.services if each.ready)

    def _is_asked(self, local_rank: LocalRank) -> bool:
        worker = self.plan.workers[local_rank]
        service = worker.service
        if service is None or not service.ready:
            return False
        return not service.world or worker.rank_in_program == 0

    def _services_ordered(self, order: messages.ServicesReady | messages.EndServices) -> None:
        if isinstance(order, messages.EndServices):
            self._end_services()
        elif self.phase is Phase.RUNNING:
            names = order.names
            now = frozenset(
                rank for rank in self.waiting if set(self.waits_for(rank)) <= set(names)
            )
            self.waiting -= now
            self.starting |= now
            if now:
                self._do(actions.StartWorkers(now))

    def _worker_ready(self, event: events.WorkerReady) -> None:
        if self.phase is Phase.RUNNING and event.local_rank in self.running:
            self.ready.add(event.local_rank)
            number = self.plan.workers[event.local_rank].rank
            self._send(messages.WorkersReady(self.number, (number,)))

    def _worker_not_ready(self, event: events.WorkerNotReady) -> None:
        """Kill it: its end is why the job ends, or why it starts again."""
        service = self.plan.workers[event.local_rank].service
        if self.phase is not Phase.RUNNING or event.local_rank not in self.running or not service:
            return
        exit_status = NotReady(service.ready_timeout, event.why)
        kill = actions.SignalWorkers(frozenset({event.local_rank}), signal.SIGKILL, group=True)
        self._do(kill)
        if self._may_restart(event.local_rank):
            # Once it has ended.
            self.not_ready[event.local_rank] = exit_status
            return
        self._keep_end(events.WorkerEnded(event.local_rank, exit_status, event.at))
        self._do(actions.CollectOutput(event.local_rank))
        self._service_failed(event.local_rank, exit_status, event.at)

    def _service_failed(self, local_rank: LocalRank, exit_status: ExitStatus, at: float) -> None:
        """Take note that a worker of a service, which has ended, has failed so."""
        self.early_exits.pop(local_rank, None)
        self.ended[local_rank] = replace(self.ended[local_rank], exit_status=exit_status)
        if self._goes_on_after(local_rank, exit_status):
            self._set_deadline_while_running(at)
            self._end_if_last()
            return
        self.early_exits.clear()
        self._do(actions.ReportFailure(local_rank))
        self._stop(signal.SIGTERM)

    def _may_restart(self, local_rank: LocalRank) -> bool:
        """Return whether a worker starts again alone if it fails."""
        service = self.plan.workers[local_rank].service
        is_asked = service is not None and service.on_failure is OnFailure.RESTART
        return is_asked and self.restarts.get(local_rank, 0) < self.job.failures.max_restarts

    def _goes_on_after(self, local_rank: LocalRank, exit_status: ExitStatus) -> bool:
        """Go on although a worker has failed, if it is of a service for which that is so."""
        service, name = self.plan.workers[local_rank].service, self.plan.name(local_rank)
        how = notices.describe_exit(exit_status)
        if self._may_restart(local_rank):
            count = self.restarts[local_rank] = self.restarts.get(local_rank, 0) + 1
            self.ends_before[local_rank] = self.ended.pop(local_rank)
            self.late_exits.pop(local_rank, None)
            if local_rank in self.ready:
                self.ready.discard(local_rank)
                number = self.plan.workers[local_rank].rank
                self._send(messages.WorkerStartsAgain(self.number, number))
            self.starting |= {local_rank}
            most = self.job.failures.max_restarts
            self._note(f"{name} {how}: restarting it ({count} of {most})")
            if self.outputs.pop(local_rank, None) is None:
                self._do(actions.CollectOutput(local_rank))
            self._do(actions.RestartWorker(local_rank))
            return True
        is_ignored = service is not None and service.on_failure is OnFailure.IGNORE
        # Others would wait for it for ever.
        if not is_ignored or (self._is_asked(local_rank) and local_rank not in self.ready):
            return False
        self.ignored.add(local_rank)
        self._note(f"{name} {how}; the job goes on (on_failure: ignore)")
        if local_rank not in self.outputs:
            self._do(actions.CollectOutput(local_rank))
        self._note_end_of_program(service)
        return True

    def _program_may_have_ended(self, local_rank: LocalRank, at: float) -> None:
        """Take note that a worker has ended with 0: the last one of its program, or one of a service."""
        service = self.plan.workers[local_rank].service
        # Others would wait for one that was to become ready for ever.
        is_awaited = self._is_asked(local_rank) and local_rank not in self.ready
        if service is not None and (is_awaited or not service.must_finish):
            self.early_exits[local_rank] = at + SECONDS_AFTER_SERVICE_EXIT
            self._set_deadline_while_running(at)
        else:
            self._note_end_of_program(service)

    def _note_end_of_program(self, service: "Service | None") -> None:
        """Report that all workers of a program have ended here, if they have."""
        mine = {each.local_rank for each in self.plan.workers if each.service is service}
        if mine <= self.ended.keys() and (service is None or service.must_finish):
            name = MAIN if service is None else service.name
            self._send(messages.ProgramEnded(self.number, name))

    def _end_services(self) -> None:
        """Stop services, now that the main program has ended with 0 on all nodes."""
        self.services_end = True
        if self.phase is not Phase.RUNNING:
            return
        self.ignored.update(self.early_exits)
        self.early_exits.clear()
        self.waiting = frozenset()
        self.stops_services = True
        if self.alive:
            self._note(f"the main program has ended: stopping {self._workers} of services")
            self._stop(signal.SIGTERM, except_failing=False)
        else:
            self._end_if_last()

    def _worker_stopped(self, _event: events.WorkerStopped) -> None:
        # Only if it has the terminal: elsewhere a debugger stops workers.
        if self.foreground:
            self._do(actions.Pause())

    # Workers that have failed and do not exit: see ``LateExit``.

    def _worker_failing(self, event: events.WorkerFailing) -> None:
        """Begin the time that a worker has to exit; one that is being stopped has the grace period."""
        if self.phase is Phase.RUNNING and event.local_rank in self.running:
            self.late_exits[event.local_rank] = LateExit(event.at - event.since_failure)
            self._set_deadline_while_running(event.at)

    def _watch_late_exits(self, at: float) -> None:
        """Look at workers that are late, kill those whose time is over."""
        for local_rank, late in self._late.items():
            if at >= late.kill_at(self._patience):
                late.was_killed = True
                within = f"within {self._patience:g} s (--shutdown-timeout) of its failure"
                self._note(f"{self.plan.name(local_rank)} did not exit {within}: killing it")
                self._do(actions.SignalWorkers(frozenset({local_rank}), signal.SIGKILL, group=True))
            elif at >= late.look_at(self._patience):
                late.looked_at = at
                if (look := actions.CollectStacks()) not in self.decided:
                    self._do(look)
        self._set_deadline_while_running(at)

    def _stacks_collected(self, event: events.StacksCollected) -> None:
        """Name the workers that are late, and where they are; the report has their stacks."""
        stacks = {rank: group for group in event.groups for rank in group.ranks}
        for local_rank, late in self._late.items():
            group = stacks.get(self.plan.workers[local_rank].rank)
            if late.looked_at == NEVER or late.was_named or group is None:
                continue
            late.stack, late.was_named = group.text if group.found else "", True
            place = position_of(late.stack)
            self._note(
                f"{self.plan.name(local_rank)} failed {event.at - late.failed_at:.0f} s ago"
                f" and has not exited{f', in {place}' if place else ''}: {self._what_then}"
            )
        self._set_deadline_while_running(event.at)

    @property
    def _late(self) -> dict[LocalRank, LateExit]:
        return {
            rank: late
            for rank, late in self.late_exits.items()
            if rank in self.running and not late.was_killed
        }

    @property
    def _patience(self) -> float:
        """How long a worker that has failed may take to exit; NEVER: none waits for it, or one debugs it."""
        is_alone = self.plan.world.size == 1 and not self.job.services
        if is_alone or self.job.failures.pdb:
            return NEVER
        return max(self.job.failures.shutdown_timeout, SECONDS_TO_PRINT)

    @property
    def _what_then(self) -> str:
        """What becomes of a worker that does not exit."""
        if self._patience == NEVER:
            why = "it is being debugged" if self.job.failures.pdb else "no other rank waits for it"
            return f"it is left alone, as {why}"
        after = f"{self._patience:g} s after its failure"
        return f"it is killed {after} (--shutdown-timeout gives it longer)"

    def _set_deadline_while_running(self, at: float) -> None:
        if self.phase is not Phase.RUNNING:
            return
        patience = self._patience
        times = [
            min(late.look_at(patience), late.kill_at(patience)) for late in self._late.values()
        ]
        due = min([*times, *self.early_exits.values(), self._exits_due])
        if due != NEVER:
            self._do(actions.SetDeadline(max(0.0, due - at)))

    # What ends the job from outside the workers of this node.

    def _end_externally(
        self, cause: Interrupted | OutputGone, at: float, to_workers: int, notice: str
    ) -> None:
        """Send the signal ``to_workers``, and report ``cause``, if the workers still run."""
        if self.phase is Phase.RUNNING:
            self._report_cause(cause, at)
            self._note(notice)
            self._stop(to_workers, except_failing=False)

    def _report_cause(self, cause: ExternalCause, at: float, *, at_once: bool = False) -> None:
        """Report what ends the job: the coordinator stops all nodes."""
        self.external_cause, self._external_cause_at = cause, at
        self._send(messages.EndedExternally(self.number, cause, at_once))

    def _output_closed(self, event: events.OutputClosed) -> None:
        # Nothing reads it any more (``| head``).
        notice = "standard output is closed: stopping all workers"
        self._end_externally(OutputGone(), event.at, signal.SIGTERM, notice)

    def _helper_lost(self, event: events.HelperLost) -> None:
        """End the job: no other attempt can start without this helper process."""
        self.lost_helper = cause = HelperFailed(event.name, event.how, event.signal)
        runs = self.alive and not self.services_end
        if self.external_cause is None and (runs or self._has_failed):
            # After a failure, it keeps the next attempt from starting.
            self.external_cause, self._external_cause_at = cause, event.at
        if self.phase is Phase.RUNNING or (self._leaves and self.phase is not Phase.OVER):
            self._send(messages.EndedExternally(self.number, cause))
        if self._leaves:
            # So that it can be told by whom it is: the report of the job is another.
            self.external_cause = self.external_cause or cause
            self._note(f"the {event.name} {event.how}: this node leaves the job")
        if event.name != "relay":
            self._workers_lost(event.at)
        elif self.phase is Phase.RUNNING:
            self._stop(signal.SIGTERM)
        self._end_leaving(f"the {event.name} {event.how}")
        if self._leaves and self.phase is Phase.WAITING:
            self._finish()

    def _workers_lost(self, at: float) -> None:
        """Clean up: the kernel has killed the workers together with the fork server."""
        if self.phase in {Phase.COLLECTING, Phase.WAITING}:
            return
        killed = sorted(self.alive)
        if killed:
            self.phase = Phase.KILLING
        for local_rank in killed:
            self._keep_end(events.WorkerEnded(local_rank, Killed(signal.SIGKILL), at))
            self._do(actions.CollectOutput(local_rank))
        self._clean_up()

    @property
    def _has_failed(self) -> bool:
        return any(
            not ended.exit_status.succeeded
            for rank, ended in self.ended.items()
            if rank not in self.ignored
        )

    def _fork_server_ready(self, event: events.ForkServerReady) -> None:
        if event.printed:
            self._note(f"the workers' interpreter printed when it started: {event.printed}")
        if event.refused:
            refused = " and ".join(event.refused)
            then = "if clusterrun is killed, processes of the job may live on"
            self._note(f"the kernel refuses {refused}: {then}")

    # Signals to the agent or to the fork server, and the command that ends the job.

    def _signal_received(self, event: SignalReceived) -> None:
        """End, suspend, pause or continue the job, print stacks, or forward the signal to the workers."""
        number, ends = event.number, event.number in ENDING_SIGNALS
        if not ends and self._arrives_by_second_way(event):
            return
        if self._asks_for_suspension(event):
            if number == signal.SIGTERM:
                self.suspending.signalled_at = event.at
            self._request_suspension(signal_name(number))
        elif ends:
            self._ending_signal(event)
        elif number == signal.SIGTSTP:
            self._do(actions.Pause())
        elif number == signal.SIGCONT:
            self._do(actions.Resume())
        elif number == signal.SIGQUIT:
            self._request_stacks()
        else:
            self._do(actions.ForwardSignal(number))

    def _arrives_by_second_way(self, event: SignalReceived) -> bool:
        """Return whether one signal to all processes of the job has reached agent and fork server."""
        earlier = self.signals.pop(event.number, None)
        if (
            earlier is not None
            and earlier.to_fork_server != event.to_fork_server
            and abs(event.at - earlier.at) <= SECONDS_OF_ECHO
        ):
            return True
        self.signals[event.number] = event
        return False

    def _ending_signal(self, event: SignalReceived) -> None:
        number, is_second = event.number, self._is_second_request(event)
        self._end_leaving(_signal_and_repeat(number)[0])
        match self.phase:
            case Phase.RUNNING if self._has_asked(event):
                if is_second:
                    # It ends the job at once, instead of suspending it.
                    self._report_cause(Interrupted(number), event.at)
                    code = exit_code_of_signal(number)
                    self._note(
                        f"{signal_name(number)} again: killing {self._workers}; exit code {code}"
                    )
                    self._kill()
            case Phase.RUNNING:
                self._stop_by_signal(event)
            case Phase.STOPPING if is_second:
                self._report_signal(number, event.at)
                self._kill()
            case Phase.WAITING if isinstance(self.external_cause, Interrupted):
                # A second signal ends this agent without waiting for the other nodes.
                if is_second:
                    self._finish()
            case Phase.WAITING:
                self._stop_other_nodes(number, event.at)
            case _:
                self._report_signal(number, event.at)

    def _stop_by_signal(self, event: SignalReceived) -> None:
        """Stop the workers; after Ctrl-C the notice is the only line, unless a worker has to be killed."""
        number = event.number
        what, again = _signal_and_repeat(number)
        if event.to_fork_server:
            what = f"{signal_name(number)} to the workers' parent process"
        notice = (
            f"{what}: stopping {self._workers}"
            f" (grace {self.job.failures.shutdown_timeout:g} s, a second {again} kills at once);"
            f" exit code {exit_code_of_signal(number)}"
        )
        to_workers = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        self._end_externally(Interrupted(number), event.at, to_workers, notice)

    def _is_second_request(self, event: SignalReceived) -> bool:
        """Return whether a signal is a second request to end, not the first one arriving twice."""
        if isinstance(self.external_cause, Interrupted):
            return event.at - self._external_cause_at > SECONDS_OF_ECHO
        if self._has_asked(event):
            return event.at - self.suspending.signalled_at > SECONDS_OF_ECHO
        # A scheduler's SIGTERM does not shorten the grace period after a failure. Ctrl-C does.
        return event.number == signal.SIGINT

    def _has_asked(self, event: SignalReceived) -> bool:
        """Return whether the same signal has asked for the suspension before."""
        return event.number == signal.SIGTERM and self.suspending.signalled_at != NEVER

    def _asks_for_suspension(self, event: SignalReceived) -> bool:
        """Return whether a signal is a request, and not one to end or to forward."""
        if event.number == self.job.suspending.suspend_signal:
            return True
        is_first = self.suspending.signalled_at == NEVER
        may_suspend = self.suspending.possible and self.phase is Phase.RUNNING
        return event.number == signal.SIGTERM and may_suspend and is_first

    def _report_signal(self, number: int, at: float) -> None:
        """Report a signal that came while the workers ended: the coordinator decides what it means."""
        if self.external_cause is not None:
            return
        if self.alive or self._has_failed:
            self._report_cause(Interrupted(number), at)
        elif self.plan.world.nodes > 1 and self.answer is None:
            # All workers of this node have succeeded: there is something to end only on other nodes.
            self._stop_other_nodes(number, at)

    def _stop_other_nodes(self, number: int, at: float) -> None:
        self._report_cause(Interrupted(number), at)
        what, again = _signal_and_repeat(number)
        then = f"the other nodes stop their workers (a second {again} does not wait for them)"
        if self.plan.world.nodes == 1:
            # The job waits only for its next attempt.
            then = "no restart"
        self._note(f"{what}: {then}; exit code {exit_code_of_signal(number)}")

    def _stop_wanted(self, event: events.StopRequested) -> None:
        """End the job for a command of the user's: also one that SIGTERM would suspend."""
        as_signal = Interrupted(signal.SIGTERM)
        self._end_leaving(event.by)
        if event.at_once:
            self._report_cause(self.external_cause or as_signal, event.at, at_once=True)
            self._kill_if_alive(f"{event.by}: killing {self._workers}; exit code 143")
        elif self.phase is Phase.RUNNING:
            notice = (
                f"{event.by}: stopping {self._workers}"
                f" (grace {self.job.failures.shutdown_timeout:g} s, {event.by} --now kills at once);"
                " exit code 143"
            )
            self._end_externally(as_signal, event.at, signal.SIGTERM, notice)
        elif self.phase is Phase.WAITING and self.external_cause is None:
            self._stop_other_nodes(signal.SIGTERM, event.at)
        else:
            self._report_signal(signal.SIGTERM, event.at)

    def _signal_not_handled(self, event: events.SignalNotHandled) -> None:
        if event.number == signal.SIGQUIT:
            self._do(actions.ExpectNoStacks(event.local_ranks))
        elif event.local_ranks:
            ranks = ", ".join(runs(event.local_ranks))
            self._note(
                f"{signal_name(event.number)} was not passed on to local rank {ranks}:"
                " it has no handler and would have been killed"
            )

    # The coordinator: its orders, and its loss.

    def _coordinator_sent(self, event: events.CoordinatorSent) -> None:
        order = event.message
        match order:
            case (
                messages.Stop(attempt)
                | messages.HoldRanks(attempt)
                | messages.SaveAt(attempt)
                | messages.CancelSuspension(attempt)
                | messages.ServicesReady(attempt)
                | messages.EndServices(attempt)
            ) if attempt != self.number:
                pass
            case messages.Stop(_, why, cause, at_once, lets_saved_ranks_exit):
                self._external_cause_elsewhere = cause
                if at_once:
                    self._end_leaving(why)
                    if not self._kill_if_alive(f"{why}: killing {self._workers} here"):
                        # Its workers may wait for a service that never will be ready.
                        self._stop_here(why)
                else:
                    self._stop_here(
                        why, self.suspending.saved if lets_saved_ranks_exit else frozenset()
                    )
            case messages.Verdict(Succeeded()) if self.phase is Phase.LEAVING:
                # What the workers have left may go on.
                self.answer = order
            case messages.Verdict():
                # All nodes report it. Before this node has reported, they have lost this node.
                self.answer = order
                self._end_without_answer("the other nodes have declared this one lost")
            case messages.GivenUp(why):
                self._given_up(order, f"node 0 has declared this node lost, as it {why}")
            case messages.NextAttempt():
                self._next_attempt(order)
            case messages.CheckNode():
                if self.phase is Phase.WAITING and not self.is_checked:
                    self.is_checked = True
                    self._do(actions.RunCheck())
            case messages.ServicesReady() | messages.EndServices():
                self._services_ordered(order)
            case _:
                self._suspension_ordered(order)

    def _next_attempt(self, order: messages.NextAttempt) -> None:
        """Begin the next attempt with all nodes, or report at once why this node can't."""
        if self.phase is not Phase.WAITING:
            return
        obstacle = self.external_cause or self.lost_helper
        if obstacle is None:
            self.phase, self.answer = Phase.OVER, order
            self._do(actions.Restart(order.world))
        else:
            # It starts no worker of the attempt that the coordinator has begun.
            self.number, self.external_cause = order.world.attempt, obstacle
            self._send(messages.Done(self.number, (), obstacle))

    def _node_checked(self, event: events.NodeChecked) -> None:
        if self.phase is Phase.WAITING:
            self._send(messages.Checked(event.fault))

    def _given_up(self, order: messages.GivenUp, why: str) -> None:
        """End the workers, and join again: the job goes on without this node."""
        self.answer = order
        if self._kill_if_alive(f"{why}: killing {self._workers} here; rejoining"):
            return
        self._note(f"{why}; rejoining")
        if self.phase is Phase.WAITING:
            self._finish()
        else:
            self._stop_here(why)

    def _coordinator_lost(self, event: events.CoordinatorLost) -> None:
        """Stop the workers: a part of the job must not train on alone.

        If an external cause is known, it is why node 0 is lost: mpirun kills node 0 one second after
        its SIGTERM.
        """
        self.external_cause = self.external_cause or self._external_cause_elsewhere
        self._external_cause_at = event.at
        why = notices.lost(event.node)
        if self.answer is None:
            self.answer = messages.Verdict(self.external_cause or event.node, "")
        if event.at_once and self._kill_if_alive(f"{why}: killing {self._workers} here"):
            return
        self._end_without_answer(why)

    def _end_without_answer(self, why: str) -> None:
        """End this node; the coordinator answers its report no more."""
        if self.phase is Phase.WAITING:
            self._finish()
        else:
            self._stop_here(why)

    def _kill_if_alive(self, notice: str) -> bool:
        """Kill workers that run or are being stopped; return whether there are any."""
        if self.phase not in {Phase.RUNNING, Phase.STOPPING} or not self.alive:
            return False
        self._note(notice)
        self._kill()
        return True

    def _stop_here(self, why: str, spared: frozenset[LocalRank] = frozenset()) -> None:
        """Stop the workers but ``spared`` for what has happened on another node."""
        self._end_leaving(why)
        if self.phase is not Phase.RUNNING:
            return
        if rest := self.alive - spared:
            self._note(f"{why}: stopping {counted(len(rest), 'worker')} here")
        self._stop(signal.SIGTERM, spared=spared)

    # A suspension. The coordinator agrees on the step; a rank that fails meanwhile ends the attempt.

    def _suspension_wanted(self, event: events.SuspensionRequested) -> None:
        self._request_suspension(event.by)

    def _request_suspension(self, by: str) -> None:
        """Pass a request on; the coordinator keeps it while the job restarts."""
        if self.answer is None:
            self._send(messages.RequestSuspension(by))

    def _rank_asked(self, event: events.RankCalledSuspend) -> None:
        if self.phase is Phase.RUNNING:
            if not self.suspending.asked:
                self._send(messages.RankCallsSuspend(self.number))
            self.suspending.asked |= {event.local_rank}
            self._report_progress()

    def _ranks_held(self, event: events.RanksHeld) -> None:
        if self.phase is Phase.RUNNING:
            self._send(messages.Held(self.number, event.mark))

    def _rank_saved(self, event: events.RankSaved) -> None:
        if self.phase is Phase.RUNNING:
            self.suspending.saved |= {event.local_rank}
            self.suspending.saved_at = max(self.suspending.saved_at, event.mark)
            self._report_progress()

    def _suspension_ordered(self, order: messages.SuspensionOrder) -> None:
        match order:
            case messages.SuspensionPossible():
                self.suspending.possible = True
            case messages.HoldRanks():
                self._hold_ranks()
            case messages.SaveAt(_, mark):
                self._save_at(mark)
            case messages.CancelSuspension():
                self._cancel_suspension()
            case _:
                assert_never(order)

    def _hold_ranks(self) -> None:
        left = next(filter(self._is_main, self.ended), None)
        if left is not None:
            self._report_left(left)
        elif self.phase is Phase.RUNNING:
            self.suspending.is_on = True
            self._do(actions.HoldRanks())

    def _save_at(self, mark: int) -> None:
        if self.phase is Phase.RUNNING:
            self.suspending.mark = mark
            self._do(actions.ReleaseRanks(mark))
            self._report_progress()

    def _cancel_suspension(self) -> None:
        """Let the ranks go on; if SIGTERM asked for the suspension here, it ends the job after all."""
        if self.suspending.is_on:
            self._do(actions.ReleaseRanks(0))
        signalled_at = self.suspending.signalled_at
        self.suspending.is_on, self.suspending.mark = False, 0
        self.suspending.signalled_at = NEVER
        if signalled_at != NEVER:
            self._ending_signal(SignalReceived(signal.SIGTERM, signalled_at))

    def _report_left(self, local_rank: LocalRank) -> None:
        """Report a rank that has ended while the others are to be held, or save."""
        self._send(messages.RankExitedEarly(self.number, self.plan.workers[local_rank].rank))

    def _report_progress(self) -> None:
        """Report which ranks have saved, once the step is agreed on."""
        known = self.suspending
        if known.mark:
            unsaved = self._global_ranks(known.asked - known.saved)
            silent = self._global_ranks(
                filter(self._is_main, (self.alive | self.waiting) - known.asked)
            )
            self._send(messages.Saves(self.number, known.saved_at, unsaved, silent))

    def _global_ranks(self, local_ranks: Iterable[LocalRank]) -> tuple[int, ...]:
        return tuple(self.plan.workers[rank].rank for rank in sorted(local_ranks)[:MAX_RANKS])

    # Stacks and hangs: no worker is ended.

    def _request_stacks(self) -> None:
        """Ask the coordinator for the stacks of all ranks, after a SIGQUIT."""
        if self.answer is not None:
            return
        of_whom = "all ranks follow on node 0"
        if self.plan.world.nodes == 1:
            of_whom = f"{counted(len(self.running), 'worker')} follow"
        self._note(f"SIGQUIT: the Python stacks of {of_whom}; the job keeps running")
        self._send(messages.RequestStacks())

    def stacks_by_rank(self, stacks: Iterable[StackGroup]) -> tuple[StackGroup, ...]:
        """Return stacks, given by local rank, by the workers' numbers in the job.

        Workers that have succeeded are included, because others may wait for them.
        """
        succeeded = tuple(rank for rank, it in self.ended.items() if it.exit_status.succeeded)
        exited = [StackGroup(succeeded, EXITED, found=False)] if succeeded else []
        numbers = self.plan.numbers
        return tuple(
            replace(group, ranks=tuple(numbers[rank] for rank in group.ranks))
            for group in (*stacks, *exited)
        )

    def _workers_idle(self, event: events.WorkersIdle) -> None:
        self.idle.silent_since = event.at - event.seconds if event.seconds else NEVER
        self._report_idle(event.seconds, seconds_since(self.idle.still_since, event.at))

    def _main_threads_still(self, event: events.MainThreadsBlocked) -> None:
        self.idle.still_since = event.at - event.seconds if event.seconds else NEVER
        self._report_idle(seconds_since(self.idle.silent_since, event.at), event.seconds)

    def _report_idle(self, seconds: float, still: float) -> None:
        # While workers are being ended, they may be idle. Once all have succeeded, they are idle, too,
        # and other nodes may hang.
        if not (seconds or still) or self.phase in {Phase.RUNNING, Phase.LEAVING, Phase.WAITING}:
            self._send(messages.Idle(self.number, seconds, still))

    HANDLERS: ClassVar[Mapping[type[Event], Callable[[Any, Any], None]]] = {
        events.WorkerStarted: _worker_started,
        events.WorkerEnded: _worker_ended,
        events.WorkerFailing: _worker_failing,
        events.WorkerReady: _worker_ready,
        events.WorkerNotReady: _worker_not_ready,
        events.WorkerStopped: _worker_stopped,
        events.OutputEnded: _output_ended,
        events.CleanedUp: _cleaned_up,
        events.NoLeftovers: _nothing_left,
        events.Left: _left,
        events.DeadlinePassed: _deadline_passed,
        events.OutputClosed: _output_closed,
        events.HelperLost: _helper_lost,
        events.ForkServerReady: _fork_server_ready,
        SignalReceived: _signal_received,
        events.StopRequested: _stop_wanted,
        events.SignalNotHandled: _signal_not_handled,
        events.CoordinatorSent: _coordinator_sent,
        events.NodeChecked: _node_checked,
        events.CoordinatorLost: _coordinator_lost,
        events.SuspensionRequested: _suspension_wanted,
        events.RankCalledSuspend: _rank_asked,
        events.RanksHeld: _ranks_held,
        events.RankSaved: _rank_saved,
        events.WorkersIdle: _workers_idle,
        events.MainThreadsBlocked: _main_threads_still,
        events.StacksCollected: _stacks_collected,
    }


def seconds_since(moment: float, at: float) -> float:
    """Return how long ago a moment was; 0.0 if it is NEVER."""
    return 0.0 if moment == NEVER else at - moment


def _signal_and_repeat(number: int) -> tuple[str, str]:
    """Return what happened, and what a user does to send the signal again."""
    name = signal_name(number)
    return ("interrupted", "Ctrl-C") if number == signal.SIGINT else (name, name)
