"""One attempt on one node: a state machine that turns each event into actions. Pure.

The first worker that fails ends the attempt: the other workers are stopped, their leftover processes are
killed, their output is collected, and the end is reported. If all workers succeed, the coordinator is
informed at once, and leftover processes may end by themselves. The coordinator answers with the next
attempt or the verdict. Signals and other causes outside the workers end the whole job, so they are
reported at once and all nodes stop. The phase of an attempt only moves forward. OVER comes after the last
column of this table; no event matters then. "=" means as in the phase before::

    ==========================  =========================  ================  ========  ===========  ================  =================
    event                       RUNNING                    STOPPING          KILLING   CLEANING_UP  COLLECTING        WAITING
    ==========================  =========================  ================  ========  ===========  ================  =================
    worker starts               last: watch for hangs      =                 =         =            =                 =
    worker exits with 0         collect; last: leave (7)   last: clean up    =         collect      =                 =
    ... and others run          report, after 1 s
    worker fails                report, collect, stop      as with 0         =         =            =                 =
    ... but does not exit       get stack, notice, kill
    deadline passes             of a late exit             kill              clean up  collect      report
    all is cleaned up                                                                  collect
    output ends                 keep                       =                 =         =            last: report      keep
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
    lease expires               kill (8)                   =
    NextAttempt                                                                                                       begin, or decline
    CheckNode                                                                                                         check
    the check ends                                                                                                    report
    HoldRanks                   hold (5)                   (5)               =         =            =                 =
    SaveAt                      release
    CancelSuspension            release, handle TERM       =                 =         =            =                 =
    suspend: call, hold, save   report
    no worker is active         report                                                                                report
    no main thread runs         report                                                                                report
    ==========================  =========================  ================  ========  ===========  ================  =================

1. The first TERM requests a suspension instead, if a rank of the job can be suspended.
2. No other attempt can start on this node: it declines the next one.
3. If all ranks were to save, ranks that have saved are not stopped.
4. Without a grace period if node 0 may continue without this node.
5. If a rank has ended, this is reported instead.
6. The first Ctrl-C after a failure also kills. A scheduler's SIGTERM does not shorten the grace period.
7. Clean up if the ranks are to save and end, or the grace period is 0 s.
8. The fork server has killed the workers, so they have not failed.
9. This node leaves a job that continues without it; otherwise as in the phase before.

After success an attempt is LEAVING before CLEANING_UP::

    ==============================  ====================================================
    event                           LEAVING
    ==============================  ====================================================
    it begins                       report success, wait for leftovers; 1 s
    no leftovers                    collect
    first deadline                  name leftovers; the rest of the grace period
    second deadline                 name leftovers, SIGTERM; 5 s
    third deadline                  name leftovers, clean up
    TERM, INT, HUP, stop command    report for others, as while WAITING; clean up
    Stop, GivenUp, node 0 is lost   clean up
    a helper is lost                clean up
    Verdict                         of success: keep; otherwise clean up
    no worker is active             report
    no main thread runs             report
    ==============================  ====================================================

In every phase QUIT asks for the stacks of all ranks, TSTP pauses, CONT continues, other signals are
forwarded, ``--suspend-signal`` requests a suspension, and stacks are printed.
"""

import signal
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, assert_never

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import LocalRank, counted
from clusterrun.cpuset import number_ranges
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

SECONDS_AFTER_SIGKILL = 5.0
"""After this time, a worker that has not ended counts as a survivor."""

SECONDS_TO_CLEAN_UP = 7.0
"""The fork server needs at most 5 s to clean up."""

SECONDS_FOR_LEFTOVERS = 1.0
"""Leftover processes that end within this time, as helpers of libraries do, are not named."""

SECONDS_AFTER_SIGTERM = 5.0
"""From SIGTERM to SIGKILL for leftover processes."""

SECONDS_TO_COLLECT = 2.0
"""For the last output when all processes are gone: a stopped terminal must not delay the end."""

SECONDS_AFTER_SERVICE_EXIT = 5.0
"""A service that the main program has asked to exit may exit before the main program."""

SECONDS_UNTIL_LATE = 5.0
"""After this time, the stack of a failed worker that has not exited is collected, and a notice names it.
With torch, the interpreter takes a second to exit."""

SECONDS_TO_GATHER_EXITS = 1.0
"""Clean exits are reported after this time, because the ranks of a node mostly exit together."""

MIN_SECONDS_TO_EXIT = 1.0
"""The shortest time for a failed worker to exit: its traceback is printed after the failure is known."""

SECONDS_TO_COLLECT_STACKS = 4.0
"""The relay waits 2 s for the workers."""

SECONDS_OF_DUPLICATES = 1.0
"""A signal within this time after the same signal is a duplicate.

Schedulers send one SIGTERM in two ways, and wrappers forward the SIGINT that the terminal sends to all.
"""


class Phase(Enum):
    """The phases of an attempt, in order; an attempt never returns to an earlier phase."""

    RUNNING = "running"
    """Workers start and run."""

    STOPPING = "stopping"
    """The workers were sent SIGTERM, and the grace period runs."""

    KILLING = "killing"
    """The workers were sent SIGKILL."""

    LEAVING = "leaving"
    """All workers have exited with 0, and leftover processes may end by themselves."""

    CLEANING_UP = "cleaning up"
    """All workers have exited, and leftover processes are being killed."""

    COLLECTING = "collecting"
    """All processes are gone, and the last output is being collected."""

    WAITING = "waiting"
    """This node has reported its end, and waits for the coordinator's answer."""

    OVER = "over"


class LeftoverState(Enum):
    """What was done last about leftover processes: processes that outlive their workers."""

    AWAITED = "awaited"
    NAMED = "named"
    TERMINATED = "terminated"
    KILLED = "killed"


class RunningWorker(Struct, frozen=True):
    """A worker that runs its program."""

    pid: int
    """0 if no process was started."""
    since: float


class EndedWorker(Struct, frozen=True):
    """A worker that has exited or could not be started."""

    ran: RunningWorker
    at: float
    failed_at: float
    """When its exception left the script, if that is known; otherwise ``at``."""
    exit_status: ExitStatus
    stopped_by_us: bool
    """The launcher was already stopping it when it failed or exited."""
    killed_by_others: bool = False
    """SIGKILL ended it when the launcher had sent no more than SIGTERM."""
    by_lease: bool = False
    """The fork server killed it, or did not start it, because its lease had expired."""


class SuspensionOnNode(Struct):
    """The state of a suspension on this node."""

    possible: bool = False
    """A rank of the job has called ``suspend.requested``, in this attempt or an earlier one."""
    callers: frozenset[LocalRank] = frozenset()
    """The ranks of this node that have called ``suspend.requested`` in this attempt."""
    saved: frozenset[LocalRank] = frozenset()
    saved_step_count: int = 0
    """The highest step count at which a rank of this node has saved; 0 if none has."""
    is_on: bool = False
    """The ranks are being held, or save."""
    step_count: int = 0
    """The number of calls of ``suspend.requested`` after which the ranks save; 0 until it is decided."""
    signalled_at: float = NEVER
    """When a SIGTERM to this agent requested the suspension, in this attempt or in one that ended before
    all ranks had saved; a second SIGTERM ends the job."""

    def in_next_attempt(self) -> "SuspensionOnNode":
        """Return the state at the start of the attempt after this one."""
        return SuspensionOnNode(possible=self.possible, signalled_at=self.signalled_at)


class ServicesOnNode(Struct):
    """The state of the services' workers on this node."""

    early_exits: dict[LocalRank, float] = {}
    """Workers that have exited with 0, and when this becomes a failure."""
    ready: set[LocalRank] = set()
    not_ready: dict[LocalRank, NotReady] = {}
    """Workers that are killed because they were not ready in time, and restart."""
    must_end: bool = False
    """The main program has ended with 0."""
    only_services_stop: bool = False
    """Workers are being stopped only for ``must_end``."""


class LateExit(Struct):
    """A worker whose script has failed, but whose process still runs, in a thread or an exit handler.

    Meanwhile the other ranks wait for it in a collective, and their GPUs idle. The worker has the grace
    period of ``--shutdown-timeout`` to exit, from the time at which the exception left its script, because
    it may be uploading a crash report. Then it is killed, and counts as a failed worker. If no other rank
    waits for it or it is being debugged, a notice names it, but it is not killed.

    ``timeout`` is the time in which it must exit, or NEVER.
    """

    failed_at: float
    stack_requested_at: float = NEVER
    is_reported: bool = False
    """A notice has named the worker and its position."""
    stack: str = ""
    is_killed: bool = False

    def stack_due(self, timeout: float) -> float:
        """Return when to request its stack."""
        is_requested = self.stack_requested_at != NEVER
        return NEVER if is_requested else self.failed_at + min(SECONDS_UNTIL_LATE, timeout)

    def kill_due(self, timeout: float) -> float:
        """Return when to kill it: not before its stack has arrived or is overdue."""
        if self.stack_requested_at == NEVER:
            return NEVER
        stack_overdue = self.stack_requested_at + SECONDS_TO_COLLECT_STACKS
        return max(self.failed_at + timeout, self.failed_at if self.is_reported else stack_overdue)

    @property
    def hung(self) -> str:
        """The stack of the worker that had to be killed; "" if it exited or has no stack."""
        return self.stack if self.is_killed else ""


class Attempt:
    """An attempt on this node, from the request to start its workers to its end."""

    def __init__(
        self,
        job: Job,
        plan: NodePlan,
        *,
        foreground: bool,
        before: SuspensionOnNode | None = None,
    ) -> None:
        """Begin an attempt whose workers are being started.

        Args:
            job: the job.
            plan: the workers of this node.
            foreground: the only worker has the terminal, which sends it Ctrl-C directly.
            before: the suspension in the attempt before; None: this is the first one.

        """
        self.job, self.plan, self.foreground = job, plan, foreground
        self.silent_since = NEVER
        """When a worker last printed or exited, once that is a while ago."""
        self.still_since = NEVER
        """When a main thread last ran, once that is a while ago."""
        self.number: int = plan.world.attempt
        """The number of the attempt, or of the next one if this node has declined it."""
        self.phase = Phase.RUNNING
        self.suspending = SuspensionOnNode() if before is None else before.in_next_attempt()
        everyone = frozenset(worker.local_rank for worker in plan.workers)
        self.waiting = frozenset(rank for rank in everyone if self.awaited_services(rank))
        """Workers that start once services are ready."""
        self.starting = everyone - self.waiting
        self.services = ServicesOnNode()
        self.ignored: set[LocalRank] = set()
        """Ended workers of services whose exit status does not count, because the main program has ended
        or by ``on_failure: ignore``."""
        self.restarts: dict[LocalRank, int] = {}
        """The number of restarts of single workers of services."""
        self.ends_before: dict[LocalRank, EndedWorker] = {}
        """How restarted workers had ended."""
        self.is_checked = False
        """``--check`` was run after the attempt."""
        self.running: dict[LocalRank, RunningWorker] = {}
        self.ended: dict[LocalRank, EndedWorker] = {}
        """In the order in which they ended."""
        self.clean_exits: dict[LocalRank, float] = {}
        """Times of clean exits that other ranks may wait for and that are not reported yet."""
        self.late_exits: dict[LocalRank, LateExit] = {}
        """Workers that have failed before their process exited."""
        self.outputs: dict[LocalRank, events.OutputEnded] = {}
        self.external_cause: ExternalCause | None = None
        """What ended the job from outside its workers."""
        self._external_cause_at = 0.0
        self.signals: dict[int, SignalReceived] = {}
        """The last signals that end nothing, by number: the agent and the fork server may both get one."""
        self.stopped_at = NEVER
        """When the attempt left ``RUNNING``."""
        self._external_cause_elsewhere: ExternalCause | None = None
        """The external cause on another node, by the order to stop."""
        self.leftovers = LeftoverState.AWAITED
        self.survivors: tuple[str, ...] = ()
        """Processes that SIGKILL did not end."""
        self.lost_helper: HelperFailed | None = None
        """Without this helper process no other attempt can start."""
        self.answer: messages.Verdict | messages.NextAttempt | messages.GivenUp | None = None
        """The coordinator's answer, or this node's own verdict if node 0 is lost; it is final."""
        self._actions: list[Action] = []
        """The actions for the current event."""

    @property
    def alive(self) -> frozenset[LocalRank]:
        """The workers that are starting or running."""
        return self.starting.union(self.running)

    def handle(self, event: Event) -> list[Action]:
        """Handle an event; return the actions for it, in order."""
        was_running, held_ranks = self.phase is Phase.RUNNING, self.suspending.is_on
        self.HANDLERS[type(event)](self, event)
        if was_running and self.phase is not Phase.RUNNING:
            self.stopped_at = event.at
            if held_ranks:
                # This must come first: a held rank would not see SIGTERM.
                self._actions.insert(0, actions.LetRanksExit())
        decided, self._actions = self._actions, []
        return decided

    def _do(self, *decided: Action) -> None:
        self._actions += decided

    def _send(self, message: AgentMessage) -> None:
        self._do(actions.SendToCoordinator(message))

    def _note(self, text: str) -> None:
        self._do(actions.PrintNotice(text))

    @property
    def lease_expired(self) -> bool:
        """Whether workers were killed because their lease had expired."""
        return any(ended.by_lease for ended in self.ended.values())

    @property
    def _workers(self) -> str:
        """The workers that have not ended, in notices: "2 workers"."""
        return counted(len(self.alive), "worker")

    # The steps of the end.

    def _stop(
        self,
        number: int,
        *,
        except_failing: bool = True,
        spared: frozenset[LocalRank] = frozenset(),
    ) -> None:
        """Send a signal to the remaining workers except ``spared``, and begin the grace period.

        With ``except_failing``, a worker whose script has failed gets no signal before the grace period
        is over, because it exits by itself and its traceback may be the cause.
        """
        if not self.alive:
            self._clean_up()
            return
        self.phase = Phase.STOPPING
        ranks = self.alive - spared
        python = frozenset(rank for rank in ranks if self.plan.workers[rank].runs_python)
        for receivers, group in ((python, False), (ranks - python, True)):
            if receivers:
                self._do(actions.SignalWorkers(receivers, number, group, except_failing))
        self._do(actions.SetDeadline(self.job.failures.shutdown_timeout))

    def _kill(self) -> None:
        self.phase = Phase.KILLING
        kill = actions.SignalWorkers(self.alive, signal.SIGKILL, group=True)
        self._do(kill, actions.SetDeadline(SECONDS_AFTER_SIGKILL))

    def _leave(self) -> None:
        """Let leftover processes end by themselves, because all workers have succeeded.

        The coordinator is informed at once, so no other node waits for these processes. After its
        verdict no signal turns the success into a failure.
        """
        self.phase = Phase.LEAVING
        self._send(messages.RanksSucceeded(self.number))
        services = ((rank, self.plan.workers[rank].service) for rank in self.ended)
        of_services = frozenset(rank for rank, it in services if it and not it.must_finish)
        if of_services:
            # Leftover processes of such a service must not outlive it.
            self._do(actions.KillLeftovers(of_services))
        seconds = min(SECONDS_FOR_LEFTOVERS, self.job.failures.shutdown_timeout)
        self._do(actions.AwaitLeftovers(), actions.SetDeadline(seconds))

    @property
    def _may_leave(self) -> bool:
        is_suspended = self.suspending.is_on or self.suspending.signalled_at != NEVER
        is_successful = self.phase is Phase.RUNNING or (
            self.services.only_services_stop and self.external_cause is None
        )
        return is_successful and not is_suspended and self.job.failures.shutdown_timeout > 0

    def _escalate_leftovers(self) -> None:
        """Take the next step against leftover processes that have not ended by themselves."""
        grace = self.job.failures.shutdown_timeout - SECONDS_FOR_LEFTOVERS
        self._do(actions.NameLeftovers())
        match self.leftovers:
            case LeftoverState.AWAITED if grace > 0:
                self.leftovers = LeftoverState.NAMED
                self._do(actions.SetDeadline(grace))
            case LeftoverState.AWAITED | LeftoverState.NAMED:
                self.leftovers = LeftoverState.TERMINATED
                self._do(actions.SetDeadline(SECONDS_AFTER_SIGTERM))
            case _:
                self.leftovers = LeftoverState.KILLED
                self._clean_up()

    def _leftovers_found(self, event: events.LeftoversNamed) -> None:
        """Name leftover processes, and what is done about them."""
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

    def _no_leftovers(self, _event: events.NoLeftovers) -> None:
        if self.phase is Phase.LEAVING:
            self._collect(())

    def _kill_leftovers(self, why: str) -> None:
        """Kill leftover processes if they may still run."""
        if self.phase is Phase.LEAVING:
            if self.leftovers is not LeftoverState.AWAITED:
                self._note(f"{why}: killing processes that the ranks on this node left running")
            self._clean_up()

    def _clean_up(self) -> None:
        """Have the fork server kill everything that the workers have left."""
        self.phase = Phase.CLEANING_UP
        self._do(actions.CleanUp(), actions.SetDeadline(SECONDS_TO_CLEAN_UP))

    def _collect(self, survivors: tuple[str, ...]) -> None:
        """Wait for the last output."""
        self.phase, self.survivors = Phase.COLLECTING, survivors
        if self._output_is_complete:
            self._report_end()
        else:
            self._do(actions.SetDeadline(SECONDS_TO_COLLECT))

    def _report_end(self) -> None:
        """Report the end of all workers and wait for the coordinator's answer, if it will answer."""
        if self.answer is not None or self._leaves_job:
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
    def _leaves_job(self) -> bool:
        """Whether the job continues without this node, which cannot start workers any more."""
        outlived = self.job.survives_node_loss and self.plan.world.node_rank > 0
        return outlived and self.lost_helper is not None

    def _deadline_passed(self, event: events.DeadlinePassed) -> None:
        match self.phase:
            case Phase.RUNNING:
                self._report_clean_exits(event.at)
                early = [rank for rank, at in self.services.early_exits.items() if event.at >= at]
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
                self._escalate_leftovers()
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
            # It belongs to the attempt before, or to a worker that restarts.
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
        if self.phase is Phase.RUNNING and self._has_probe(event.local_rank):
            self._do(actions.ProbeReadiness(event.local_rank))
        if self.job.active_hang_timeout and not self.starting and not self.waiting:
            # Imports before the script runs, as in the fork server, must not count as a hang.
            self._do(actions.WatchActivity())
        if event.warning:
            self._note(f"local rank {event.local_rank}: {event.warning}")

    def _worker_ended(self, event: events.WorkerEnded) -> None:
        local_rank, exit_status = event.local_rank, event.exit_status
        if local_rank in self.ended:
            # Its end was recorded when it was killed because it was not ready.
            return
        if event.by_lease and self.phase in {Phase.RUNNING, Phase.STOPPING}:
            self._handle_expired_lease()
        self._record_end(event)
        if local_rank in self.services.not_ready:
            exit_status = self.services.not_ready.pop(local_rank)
            self.ended[local_rank] = replace(self.ended[local_rank], exit_status=exit_status)
        is_failure = self.phase is Phase.RUNNING and not exit_status.succeeded
        if is_failure and self._tolerate_failure(local_rank, exit_status):
            self._end_if_last()
            return
        if is_failure:
            # This comes first so the other nodes stop at once.
            self._do(actions.ReportFailure(local_rank), actions.CollectOutput(local_rank))
            if self.foreground and exit_status == Killed(signal.SIGINT):
                # The terminal sent Ctrl-C to the worker.
                self.external_cause = Interrupted(signal.SIGINT)
                self._note("interrupted: exit code 130")
            self._stop(signal.SIGTERM)
            return
        if self.phase is Phase.RUNNING and self.suspending.is_on and self._is_main(local_rank):
            self._report_early_exit(local_rank)
        self._do(actions.CollectOutput(local_rank))
        self._record_clean_exit(local_rank, event.at)
        if self.phase is Phase.RUNNING and self.job.services:
            self._worker_succeeded(local_rank, event.at)
        self._end_if_last()

    def _record_clean_exit(self, local_rank: LocalRank, at: float) -> None:
        """Record that a worker has exited with 0, if peers may wait for it."""
        service = self.plan.workers[local_rank].service
        has_peers = service is None or (service.world and service.must_finish)
        if self.phase is Phase.RUNNING and has_peers:
            self.clean_exits[local_rank] = at
            self._set_deadline_while_running(at)

    def _report_clean_exits(self, at: float) -> None:
        """Report workers that have exited with 0, after ``SECONDS_TO_GATHER_EXITS``."""
        if self.clean_exits and at >= self._clean_exits_due:
            ranks, self.clean_exits = tuple(sorted(self.clean_exits)), {}
            for start in range(0, len(ranks), MAX_RANKS):
                self._do(actions.ReportExits(ranks[start : start + MAX_RANKS]))

    @property
    def _clean_exits_due(self) -> float:
        """When to report workers that have exited with 0."""
        return next(iter(self.clean_exits.values()), NEVER) + SECONDS_TO_GATHER_EXITS

    def _handle_expired_lease(self) -> None:
        """Print that the fork server kills the workers, and wait for their ends."""
        why = "this node was stopped, or cut off from node 0, for too long: its lease"
        if self.answer is not None:
            # Node 0 is lost.
            why = "the lease of this node"
        self._note(f"{why} has expired, and {self._workers} killed")
        self.phase = Phase.KILLING
        self._do(actions.SetDeadline(SECONDS_AFTER_SIGKILL))

    def _end_if_last(self) -> None:
        """Leave or clean up if all workers have ended and no other worker will start."""
        may_be_last = self.phase in {Phase.RUNNING, Phase.STOPPING, Phase.KILLING}
        some_follow = self.phase is Phase.RUNNING and (self.waiting or self.services.early_exits)
        if may_be_last and not self.alive and not some_follow:
            if self._may_leave:
                self._leave()
            else:
                self._clean_up()

    def _record_end(self, end: events.WorkerEnded) -> None:
        ran = self.running.pop(end.local_rank, RunningWorker(pid=0, since=end.at))
        self.starting -= {end.local_rank}
        if self.services.must_end and self.plan.workers[end.local_rank].service:
            self.ignored.add(end.local_rank)
        failed_at = end.at - end.since_failure
        by_us = self.phase is not Phase.RUNNING and (
            end.since_failure == 0 or failed_at > self.stopped_at
        )
        sigterm_only = by_us and self.phase is Phase.STOPPING
        by_others = sigterm_only and end.exit_status == Killed(signal.SIGKILL)
        self.ended[end.local_rank] = EndedWorker(
            ran, end.at, failed_at, end.exit_status, by_us, by_others, end.by_lease
        )

    # Services.

    def _is_main(self, local_rank: LocalRank) -> bool:
        return self.plan.workers[local_rank].service is None

    def awaited_services(self, local_rank: LocalRank) -> tuple[str, ...]:
        """Return the services that must be ready before this worker starts."""
        service = self.plan.workers[local_rank].service
        if service is not None:
            return service.after
        return tuple(each.name for each in self.job.services if each.ready)

    def _has_probe(self, local_rank: LocalRank) -> bool:
        """Return whether this worker of a service is probed for readiness."""
        worker = self.plan.workers[local_rank]
        service = worker.service
        if service is None or not service.ready:
            return False
        return not service.world or worker.rank_in_program == 0

    def _services_ready(self, names: Iterable[str]) -> None:
        """Start the workers that wait for no service except these."""
        ready = set(names)
        ranks = frozenset(
            rank for rank in self.waiting if ready.issuperset(self.awaited_services(rank))
        )
        if ranks and self.phase is Phase.RUNNING:
            self.waiting -= ranks
            self.starting |= ranks
            self._do(actions.StartWorkers(ranks))

    def _worker_ready(self, event: events.WorkerReady) -> None:
        if self.phase is Phase.RUNNING and event.local_rank in self.running:
            self.services.ready.add(event.local_rank)
            number = self.plan.workers[event.local_rank].rank
            self._send(messages.WorkersReady(self.number, (number,)))

    def _worker_not_ready(self, event: events.WorkerNotReady) -> None:
        """Kill a worker that is not ready in time; its end ends the job, or it restarts."""
        service = self.plan.workers[event.local_rank].service
        if self.phase is not Phase.RUNNING or event.local_rank not in self.running or not service:
            return
        exit_status = NotReady(service.ready_timeout, event.why)
        kill = actions.SignalWorkers(frozenset({event.local_rank}), signal.SIGKILL, group=True)
        self._do(kill)
        if self._service_may_restart(event.local_rank):
            # It restarts when it has ended.
            self.services.not_ready[event.local_rank] = exit_status
            return
        self._record_end(events.WorkerEnded(event.local_rank, exit_status, event.at))
        self._do(actions.CollectOutput(event.local_rank))
        self._service_failed(event.local_rank, exit_status, event.at)

    def _service_failed(self, local_rank: LocalRank, exit_status: ExitStatus, at: float) -> None:
        """Handle the end of a service's worker as a failure with this status."""
        self.services.early_exits.pop(local_rank, None)
        self.ended[local_rank] = replace(self.ended[local_rank], exit_status=exit_status)
        if self._tolerate_failure(local_rank, exit_status):
            self._set_deadline_while_running(at)
            self._end_if_last()
            return
        self.services.early_exits.clear()
        self._do(actions.ReportFailure(local_rank))
        self._stop(signal.SIGTERM)

    def _service_may_restart(self, local_rank: LocalRank) -> bool:
        """Return whether a worker of a service restarts alone if it fails."""
        service = self.plan.workers[local_rank].service
        restarts = service is not None and service.on_failure is OnFailure.RESTART
        return restarts and self.restarts.get(local_rank, 0) < self.job.failures.max_restarts

    def _tolerate_failure(self, local_rank: LocalRank, exit_status: ExitStatus) -> bool:
        """Restart or ignore a failed worker, if its service allows that; return whether it does."""
        service, name = self.plan.workers[local_rank].service, self.plan.name(local_rank)
        how = notices.describe_exit(exit_status)
        if self._service_may_restart(local_rank):
            count = self.restarts[local_rank] = self.restarts.get(local_rank, 0) + 1
            self.ends_before[local_rank] = self.ended.pop(local_rank)
            self.late_exits.pop(local_rank, None)
            if local_rank in self.services.ready:
                self.services.ready.discard(local_rank)
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
        # Other workers wait until a service with a probe is ready.
        if not is_ignored or (
            self._has_probe(local_rank) and local_rank not in self.services.ready
        ):
            return False
        self.ignored.add(local_rank)
        self._note(f"{name} {how}; the job continues (on_failure: ignore)")
        if local_rank not in self.outputs:
            self._do(actions.CollectOutput(local_rank))
        self._report_program_end(service)
        return True

    def _worker_succeeded(self, local_rank: LocalRank, at: float) -> None:
        """Handle an exit with 0 while the job runs: too early for most services."""
        service = self.plan.workers[local_rank].service
        # Other workers wait until a service with a probe is ready.
        is_awaited = self._has_probe(local_rank) and local_rank not in self.services.ready
        if service is not None and (is_awaited or not service.must_finish):
            self.services.early_exits[local_rank] = at + SECONDS_AFTER_SERVICE_EXIT
            self._set_deadline_while_running(at)
        else:
            self._report_program_end(service)

    def _report_program_end(self, service: "Service | None") -> None:
        """Report a program all of whose workers on this node have ended."""
        own = {each.local_rank for each in self.plan.workers if each.service is service}
        if own <= self.ended.keys() and (service is None or service.must_finish):
            name = MAIN if service is None else service.name
            self._send(messages.ProgramEnded(self.number, name))

    def _end_services(self) -> None:
        """Stop services because the main program has ended with 0 on all nodes."""
        self.services.must_end = True
        if self.phase is not Phase.RUNNING:
            return
        self.ignored.update(self.services.early_exits)
        self.services.early_exits.clear()
        self.waiting = frozenset()
        self.services.only_services_stop = True
        if self.alive:
            self._note(f"the main program has ended: stopping {self._workers} of services")
            self._stop(signal.SIGTERM, except_failing=False)
        else:
            self._end_if_last()

    def _worker_stopped(self, _event: events.WorkerStopped) -> None:
        # A worker without the terminal is stopped by a debugger.
        if self.foreground:
            self._do(actions.Pause())

    # Workers that have failed but do not exit: see ``LateExit``.

    def _worker_failing(self, event: events.WorkerFailing) -> None:
        """Begin the time in which a failed worker must exit, unless it is being stopped anyway."""
        if self.phase is Phase.RUNNING and event.local_rank in self.running:
            self.late_exits[event.local_rank] = LateExit(event.at - event.since_failure)
            self._set_deadline_while_running(event.at)

    def _watch_late_exits(self, at: float) -> None:
        """Request the stacks of late workers, and kill them after their timeout."""
        for local_rank, late in self._pending_late_exits.items():
            if at >= late.kill_due(self._exit_timeout):
                late.is_killed = True
                within = f"within {self._exit_timeout:g} s (--shutdown-timeout) of its failure"
                self._note(f"{self.plan.name(local_rank)} did not exit {within}: killing it")
                self._do(actions.SignalWorkers(frozenset({local_rank}), signal.SIGKILL, group=True))
            elif at >= late.stack_due(self._exit_timeout):
                late.stack_requested_at = at
                if (collect := actions.CollectStacks()) not in self._actions:
                    self._do(collect)
        self._set_deadline_while_running(at)

    def _stacks_collected(self, event: events.StacksCollected) -> None:
        """Name late workers and their positions; the report at the end has their stacks."""
        stacks = {rank: group for group in event.groups for rank in group.ranks}
        for local_rank, late in self._pending_late_exits.items():
            group = stacks.get(self.plan.workers[local_rank].rank)
            if late.stack_requested_at == NEVER or late.is_reported or group is None:
                continue
            late.stack, late.is_reported = group.text if group.found else "", True
            position = position_of(late.stack)
            where = f", in {position}" if position else ""
            self._note(
                f"{self.plan.name(local_rank)} failed {event.at - late.failed_at:.0f} s ago"
                f" and has not exited{where}: {self._late_exit_policy}"
            )
        self._set_deadline_while_running(event.at)

    @property
    def _pending_late_exits(self) -> dict[LocalRank, LateExit]:
        return {
            rank: late
            for rank, late in self.late_exits.items()
            if rank in self.running and not late.is_killed
        }

    @property
    def _exit_timeout(self) -> float:
        """How long a failed worker may take to exit; NEVER if no rank waits for it, or with --pdb."""
        is_alone = self.plan.world.size == 1 and not self.job.services
        if is_alone or self.job.failures.pdb:
            return NEVER
        return max(self.job.failures.shutdown_timeout, MIN_SECONDS_TO_EXIT)

    @property
    def _late_exit_policy(self) -> str:
        """What happens to a worker that does not exit."""
        if self._exit_timeout == NEVER:
            why = "it is being debugged" if self.job.failures.pdb else "no other rank waits for it"
            return f"it is left alone, as {why}"
        after = f"{self._exit_timeout:g} s after its failure"
        return f"it is killed {after} (--shutdown-timeout gives it longer)"

    def _set_deadline_while_running(self, at: float) -> None:
        if self.phase is not Phase.RUNNING:
            return
        timeout = self._exit_timeout
        times = [
            min(late.stack_due(timeout), late.kill_due(timeout))
            for late in self._pending_late_exits.values()
        ]
        due = min([*times, *self.services.early_exits.values(), self._clean_exits_due])
        if due != NEVER:
            self._do(actions.SetDeadline(max(0.0, due - at)))

    # Causes outside the workers of this node.

    def _end_externally(
        self, cause: Interrupted | OutputGone, at: float, to_workers: int, notice: str
    ) -> None:
        """Report the cause and stop the workers with the signal ``to_workers``, if they run."""
        if self.phase is Phase.RUNNING:
            self._report_cause(cause, at)
            self._note(notice)
            self._stop(to_workers, except_failing=False)

    def _report_cause(self, cause: ExternalCause, at: float, *, at_once: bool = False) -> None:
        """Report the end of the job, so the coordinator stops all nodes."""
        self.external_cause, self._external_cause_at = cause, at
        self._send(messages.EndedExternally(self.number, cause, at_once))

    def _output_closed(self, event: events.OutputClosed) -> None:
        # Its reader has exited (``| head``).
        notice = "standard output is closed: stopping all workers"
        self._end_externally(OutputGone(), event.at, signal.SIGTERM, notice)

    def _helper_lost(self, event: events.HelperLost) -> None:
        """End the job: no other attempt can start without this helper process."""
        self.lost_helper = cause = HelperFailed(event.name, event.how, event.signal)
        runs = self.alive and not self.services.must_end
        if self.external_cause is None and (runs or self._has_failed):
            # After a failure, the lost helper prevents the next attempt.
            self.external_cause, self._external_cause_at = cause, event.at
        if self.phase is Phase.RUNNING or (self._leaves_job and self.phase is not Phase.OVER):
            self._send(messages.EndedExternally(self.number, cause))
        if self._leaves_job:
            # The report of the job will not mention it, because the job continues.
            self.external_cause = self.external_cause or cause
            self._note(f"the {event.name} {event.how}: this node leaves the job")
        if event.name != "relay":
            self._workers_lost(event.at)
        elif self.phase is Phase.RUNNING:
            self._stop(signal.SIGTERM)
        self._kill_leftovers(f"the {event.name} {event.how}")
        if self._leaves_job and self.phase is Phase.WAITING:
            self._finish()

    def _workers_lost(self, at: float) -> None:
        """Clean up, because the kernel has killed the workers together with the fork server."""
        if self.phase in {Phase.COLLECTING, Phase.WAITING}:
            return
        killed = sorted(self.alive)
        if killed:
            self.phase = Phase.KILLING
        for local_rank in killed:
            self._record_end(events.WorkerEnded(local_rank, Killed(signal.SIGKILL), at))
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
            self._note(f"{refused}: processes of the job may keep running after its end")

    # Signals to the agent or to the fork server, and the command that ends the job.

    def _signal_received(self, event: SignalReceived) -> None:
        """Let a signal end, suspend, pause or continue the job, print stacks, or forward it."""
        number, ends = event.number, event.number in ENDING_SIGNALS
        if not ends and self._is_duplicate(event):
            return
        if self._requests_suspension(event):
            if number == signal.SIGTERM:
                self.suspending.signalled_at = event.at
            self._request_suspension(signal_name(number))
        elif ends:
            self._ending_signal(event)
        elif number == signal.SIGTSTP and self.foreground and self.running:
            # As by Ctrl-Z: the agent stops when the worker has, which may ignore the signal.
            self._do(actions.SignalWorkers(frozenset(self.running), number, group=True))
        elif number == signal.SIGTSTP:
            self._do(actions.Pause())
        elif number == signal.SIGCONT:
            self._do(actions.Resume())
        elif number == signal.SIGQUIT:
            self._request_stacks()
        else:
            self._do(actions.ForwardSignal(number))

    def _is_duplicate(self, event: SignalReceived) -> bool:
        """Return whether the agent and the fork server both got one signal to the whole job."""
        earlier = self.signals.pop(event.number, None)
        if (
            earlier is not None
            and earlier.to_fork_server != event.to_fork_server
            and abs(event.at - earlier.at) <= SECONDS_OF_DUPLICATES
        ):
            return True
        self.signals[event.number] = event
        return False

    def _ending_signal(self, event: SignalReceived) -> None:
        number, is_second = event.number, self._is_second_request(event)
        self._kill_leftovers(_signal_and_repeat(number)[0])
        match self.phase:
            case Phase.RUNNING if self._has_requested_suspension(event):
                if is_second:
                    # The job ends at once instead of being suspended.
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
                # The agent does not wait for the other nodes.
                if is_second:
                    self._finish()
            case Phase.WAITING:
                self._stop_other_nodes(number, event.at)
            case _:
                self._report_signal(number, event.at)

    def _stop_by_signal(self, event: SignalReceived) -> None:
        """Stop the workers; after Ctrl-C the notice is the only line unless workers need SIGKILL."""
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
        """Return whether a signal is a second request to end, and not a duplicate of the first."""
        if isinstance(self.external_cause, Interrupted):
            return event.at - self._external_cause_at > SECONDS_OF_DUPLICATES
        if self._has_requested_suspension(event):
            return event.at - self.suspending.signalled_at > SECONDS_OF_DUPLICATES
        # After a failure, Ctrl-C shortens the grace period, but a scheduler's SIGTERM does not.
        return event.number == signal.SIGINT

    def _has_requested_suspension(self, event: SignalReceived) -> bool:
        """Return whether the same signal has requested the suspension before."""
        return event.number == signal.SIGTERM and self.suspending.signalled_at != NEVER

    def _requests_suspension(self, event: SignalReceived) -> bool:
        """Return whether a signal requests a suspension."""
        if event.number == self.job.suspending.suspend_signal:
            return True
        is_first = self.suspending.signalled_at == NEVER
        may_suspend = self.suspending.possible and self.phase is Phase.RUNNING
        return event.number == signal.SIGTERM and may_suspend and is_first

    def _report_signal(self, number: int, at: float) -> None:
        """Report a signal while the workers end, so the coordinator decides what it means."""
        if self.external_cause is not None:
            return
        if self.alive or self._has_failed:
            self._report_cause(Interrupted(number), at)
        elif self.plan.world.nodes > 1 and self.answer is None:
            # All workers of this node have succeeded, so only other nodes have workers to stop.
            self._stop_other_nodes(number, at)

    def _stop_other_nodes(self, number: int, at: float) -> None:
        self._report_cause(Interrupted(number), at)
        # Without an exit code: a worker that has failed may turn out to be the reason.
        if self.plan.world.nodes == 1:
            # The job only waits for its next attempt.
            self._note(notices.no_restart(number))
            return
        what, again = _signal_and_repeat(number)
        then = f"the other nodes stop their workers (a second {again} does not wait for them)"
        self._note(f"{what}: {then}")

    def _stop_requested(self, event: events.StopRequested) -> None:
        """End the job for a user's command, even if SIGTERM would suspend it."""
        as_signal = Interrupted(signal.SIGTERM)
        self._kill_leftovers(event.by)
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
            ranks = ", ".join(number_ranges(event.local_ranks))
            self._note(
                f"{signal_name(event.number)} was not passed on to local rank {ranks}:"
                " it has no handler and would have been killed"
            )

    # Orders of the coordinator, and its loss.

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
                    self._kill_leftovers(why)
                    if not self._kill_if_alive(f"{why}: killing {self._workers} on this node"):
                        # Its workers may wait for a service that will never be ready.
                        self._stop_here(why)
                else:
                    self._stop_here(
                        why, self.suspending.saved if lets_saved_ranks_exit else frozenset()
                    )
            case messages.Verdict(Succeeded()) if self.phase is Phase.LEAVING:
                # Leftover processes may still end by themselves.
                self.answer = order
            case messages.Verdict():
                # A verdict before this node has reported means that the others have lost this node.
                self.answer = order
                self._end_without_coordinator("the other nodes have declared this one lost")
            case messages.GivenUp(why):
                self._handle_given_up(order, f"node 0 has declared this node lost, as it {why}")
            case messages.NextAttempt():
                self._next_attempt(order)
            case messages.CheckNode():
                if self.phase is Phase.WAITING and not self.is_checked:
                    self.is_checked = True
                    self._do(actions.RunCheck())
            case messages.ServicesReady(names=names):
                self._services_ready(names)
            case messages.EndServices():
                self._end_services()
            case _:
                self._handle_suspension_order(order)

    def _next_attempt(self, order: messages.NextAttempt) -> None:
        """Begin the next attempt, or report at once why this node cannot."""
        if self.phase is not Phase.WAITING:
            return
        obstacle = self.external_cause or self.lost_helper
        if obstacle is None:
            self.phase, self.answer = Phase.OVER, order
            self._do(actions.Restart(order.world))
        else:
            # The coordinator has begun an attempt, but this node starts no worker for it.
            self.number, self.external_cause = order.world.attempt, obstacle
            self._send(messages.Done(self.number, (), obstacle))

    def _node_checked(self, event: events.NodeChecked) -> None:
        if self.phase is Phase.WAITING:
            self._send(messages.CheckResult(event.fault))

    def _handle_given_up(self, order: messages.GivenUp, why: str) -> None:
        """Kill the workers and join again, because the job continues without this node."""
        self.answer = order
        if self._kill_if_alive(f"{why}: killing {self._workers} on this node; rejoining"):
            return
        self._note(f"{why}; rejoining")
        if self.phase is Phase.WAITING:
            self._finish()
        else:
            self._stop_here(why)

    def _coordinator_lost(self, event: events.CoordinatorLost) -> None:
        """Stop the workers, because some nodes must not train on without the others.

        A known external cause is also why node 0 is lost: mpirun kills node 0 one second after its
        SIGTERM.
        """
        if self.external_cause is None:
            self.external_cause, self._external_cause_at = self._external_cause_elsewhere, event.at
        why = notices.lost(event.node)
        if self.answer is None:
            self.answer = messages.Verdict(self.external_cause or event.node, "")
        if event.at_once and self._kill_if_alive(f"{why}: killing {self._workers} on this node"):
            return
        self._end_without_coordinator(why)

    def _end_without_coordinator(self, why: str) -> None:
        """End the attempt; no answer of the coordinator will come."""
        if self.phase is Phase.WAITING:
            self._finish()
        else:
            self._stop_here(why)

    def _kill_if_alive(self, notice: str) -> bool:
        """Kill workers that run or are being stopped; return False if there are none."""
        if self.phase not in {Phase.RUNNING, Phase.STOPPING} or not self.alive:
            return False
        self._note(notice)
        self._kill()
        return True

    def _stop_here(self, why: str, spared: frozenset[LocalRank] = frozenset()) -> None:
        """Stop the workers except ``spared``, because of an event on another node."""
        self._kill_leftovers(why)
        if self.phase is not Phase.RUNNING:
            return
        if rest := self.alive - spared:
            self._note(f"{why}: stopping {counted(len(rest), 'worker')} on this node")
        self._stop(signal.SIGTERM, spared=spared)

    # Suspension: the coordinator decides on the step; a rank that fails meanwhile ends the attempt.

    def _suspension_requested(self, event: events.SuspensionRequested) -> None:
        self._request_suspension(event.by)

    def _request_suspension(self, by: str) -> None:
        """Forward a request to the coordinator, which keeps it while the job restarts."""
        if self.answer is None:
            self._send(messages.RequestSuspension(by))

    def _rank_called_suspend(self, event: events.RankCalledSuspend) -> None:
        if self.phase is Phase.RUNNING:
            if not self.suspending.callers:
                self._send(messages.RankCallsSuspend(self.number))
            self.suspending.callers |= {event.local_rank}
            self._report_progress()

    def _ranks_held(self, event: events.RanksHeld) -> None:
        if self.phase is Phase.RUNNING:
            self._send(messages.HoldReport(self.number, event.step_count))

    def _rank_saved(self, event: events.RankSaved) -> None:
        if self.phase is Phase.RUNNING:
            self.suspending.saved |= {event.local_rank}
            self.suspending.saved_step_count = max(
                self.suspending.saved_step_count, event.step_count
            )
            self._report_progress()

    def _handle_suspension_order(self, order: messages.SuspensionOrder) -> None:
        match order:
            case messages.SuspensionPossible():
                self.suspending.possible = True
            case messages.HoldRanks():
                self._hold_ranks()
            case messages.SaveAt(_, step_count):
                if self.phase is Phase.RUNNING:
                    self.suspending.step_count = step_count
                    self._do(actions.ReleaseRanks(step_count))
                    self._report_progress()
            case messages.CancelSuspension():
                self._cancel_suspension()
            case _:
                assert_never(order)

    def _hold_ranks(self) -> None:
        ended = next(filter(self._is_main, self.ended), None)
        if ended is not None:
            self._report_early_exit(ended)
        elif self.phase is Phase.RUNNING:
            self.suspending.is_on = True
            self._do(actions.HoldRanks())

    def _cancel_suspension(self) -> None:
        """Release the ranks; a SIGTERM that requested the suspension now ends the job."""
        if self.suspending.is_on:
            self._do(actions.ReleaseRanks(0))
        signalled_at, self.suspending.signalled_at = self.suspending.signalled_at, NEVER
        self.suspending.is_on, self.suspending.step_count = False, 0
        if signalled_at != NEVER:
            self._ending_signal(SignalReceived(signal.SIGTERM, signalled_at))

    def _report_early_exit(self, local_rank: LocalRank) -> None:
        """Report a rank that has ended while the others are held or save."""
        self._send(messages.RankExitedEarly(self.number, self.plan.workers[local_rank].rank))

    def _report_progress(self) -> None:
        """Report which ranks have saved, if it is decided when they save."""
        state = self.suspending
        if state.step_count:
            unsaved = self._global_ranks(state.callers - state.saved)
            silent = filter(self._is_main, (self.alive | self.waiting) - state.callers)
            ranks = self._global_ranks(silent)
            self._send(messages.SaveReport(self.number, state.saved_step_count, unsaved, ranks))

    def _global_ranks(self, local_ranks: Iterable[LocalRank]) -> tuple[int, ...]:
        return tuple(self.plan.workers[rank].rank for rank in sorted(local_ranks)[:MAX_RANKS])

    # Stacks and hangs.

    def _request_stacks(self) -> None:
        """Ask the coordinator for the stacks of all ranks, after SIGQUIT."""
        if self.answer is not None:
            return
        where = "on node 0" if self.job.tasks is None else "in task 0"
        of_whom = f"all ranks follow {where}"
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
        self.silent_since = event.at - event.seconds if event.seconds else NEVER
        self._report_idle(event.seconds, _seconds_since(self.still_since, event.at))

    def _main_threads_blocked(self, event: events.MainThreadsBlocked) -> None:
        self.still_since = event.at - event.seconds if event.seconds else NEVER
        self._report_idle(_seconds_since(self.silent_since, event.at), event.seconds)

    def _report_idle(self, seconds: float, still: float) -> None:
        # Workers that are being stopped may be idle. When all have succeeded, other nodes may hang.
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
        events.NoLeftovers: _no_leftovers,
        events.LeftoversNamed: _leftovers_found,
        events.DeadlinePassed: _deadline_passed,
        events.OutputClosed: _output_closed,
        events.HelperLost: _helper_lost,
        events.ForkServerReady: _fork_server_ready,
        SignalReceived: _signal_received,
        events.StopRequested: _stop_requested,
        events.SignalNotHandled: _signal_not_handled,
        events.CoordinatorSent: _coordinator_sent,
        events.NodeChecked: _node_checked,
        events.CoordinatorLost: _coordinator_lost,
        events.SuspensionRequested: _suspension_requested,
        events.RankCalledSuspend: _rank_called_suspend,
        events.RanksHeld: _ranks_held,
        events.RankSaved: _rank_saved,
        events.WorkersIdle: _workers_idle,
        events.MainThreadsBlocked: _main_threads_blocked,
        events.StacksCollected: _stacks_collected,
    }


def _seconds_since(moment: float, at: float) -> float:
    """Return the seconds from ``moment`` to ``at``; 0.0 if it is NEVER."""
    return 0.0 if moment == NEVER else at - moment


def _signal_and_repeat(number: int) -> tuple[str, str]:
    """Return "interrupted" and "Ctrl-C", or the name of another signal twice."""
    name = signal_name(number)
    return ("interrupted", "Ctrl-C") if number == signal.SIGINT else (name, name)
