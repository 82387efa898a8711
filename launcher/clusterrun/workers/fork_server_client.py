"""The fork server of a node, as its agent uses it: asks for workers, and turns its messages into events."""

import os
import resource
import select
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import assert_never

from msgspec import to_builtins
from msgspec.structs import replace

from clusterrun.bounds import LocalRank, as_name
from clusterrun.loop import NEVER
from clusterrun.planning.plan import NodePlan, WorkerPlan
from clusterrun.planning.preparation import Preparation
from clusterrun.policy.actions import (
    AwaitLeftovers,
    ForwardSignal,
    NameLeftovers,
    SignalLeftovers,
    SignalWorkers,
)
from clusterrun.policy.events import (
    CleanedUp,
    Event,
    ForkServerPrepared,
    ForkServerReady,
    HelperLost,
    Left,
    LeftoverProcess,
    NoLeftovers,
    SignalNotHandled,
    WorkerEnded,
    WorkerFailing,
    WorkerStarted,
    WorkerStopped,
)
from clusterrun.policy.outcome import Exited, Killed, NotStarted
from clusterrun.signals import ENDING_SIGNALS, SignalReceived
from clusterrun.workers.children import Orphans
from clusterrun.workers.fork_server import messages
from clusterrun.workers.fork_server.kernel import (
    activity_counter,
    boot_clock,
    describe,
    state_and_parent,
)
from clusterrun.workers.fork_server_process import ServerProcess
from clusterrun.workers.helper_client import HelperClient

IMPORT_TIMEOUT = 60.0
"""Seconds for which a preloaded import may make no progress; then each worker imports it itself."""

SECONDS_TO_LEAVE = 7.0
"""For the server's own cleanup after the connection is closed (5 s at most), and its exit."""

SECONDS_TO_KILL = 5.0
"""For killing what outlived the server."""

SECONDS_BETWEEN_CHECKS = 1.0
"""At what is imported before workers are forked."""

SECONDS_TO_FIRST_NOTICE = 10.0
SECONDS_BETWEEN_NOTICES = 30.0


def event_of(message: "messages.FromRunning", now: float) -> Event:
    """Return the event that ``message`` reports."""
    match message:
        case messages.Started(rank, pid, remark, at):
            return WorkerStarted(LocalRank(rank), pid, remark or "", min(at, now))
        case messages.StartFailed(rank, step, error):
            return WorkerEnded(LocalRank(rank), NotStarted(step, error), now)
        case messages.ScriptFailed(rank, failed_at):
            return WorkerFailing(LocalRank(rank), now, _age(failed_at, now))
        case messages.WorkerExited(rank, code, at, failed_at):
            # The agent may read of it later.
            since = _age(failed_at, min(at, now)) if code else 0.0
            return WorkerEnded(LocalRank(rank), Exited(code), min(at, now), since)
        case messages.WorkerKilled(rank, number, at, failure):
            failed_at, code = failure or (None, 0)
            # It may have been about to exit, with a code that is known.
            ending = Exited(code) if code else Killed(number)
            return WorkerEnded(LocalRank(rank), ending, min(at, now), _age(failed_at, min(at, now)))
        case messages.EndedByLease(rank, at):
            killed = Killed(signal.SIGKILL)
            return WorkerEnded(LocalRank(rank), killed, min(at, now), by_lease=True)
        case messages.Stopped():
            return WorkerStopped(now)
        case messages.SignalFromWorker(number, at):
            return SignalReceived(number, at, to_fork_server=True)
        case messages.NotHandled(number, ranks):
            return SignalNotHandled(number, tuple(map(LocalRank, ranks)), now)
        case messages.AllKilled(survivors):
            return CleanedUp(tuple(survivors), now)
        case messages.NoChildren():
            return NoLeftovers(now)
        case messages.ChildList(processes):
            named = (LeftoverProcess(pid, as_name(name), rank) for pid, name, rank in processes)
            return Left(tuple(named), now)
        case _:
            assert_never(message)


def _age(failed_at: float | None, now: float) -> float:
    """Return the seconds since a script failed; None: it is not known when."""
    return 0.0 if failed_at is None else max(0.0, now - failed_at)


class Importing:
    """What a fork server was asked to prepare, until it answers: it may take long, and it may hang."""

    def __init__(self, preparation: Preparation) -> None:
        """It has been asked, and may not serve yet."""
        self.preparation = preparation
        self.module = "what the script imports first"
        """What is being imported."""
        self._pid = 0
        self.looked = 0.0
        """When it was looked at last."""
        self._began = self._next_notice = 0.0
        self._quiet = 0.0
        """Seconds for which nothing has happened."""
        self._work = 0.0

    def begin(self, pid: int, now: float) -> None:
        """Watch process ``pid``, which serves by now."""
        self._pid, self._began, self.looked = pid, now, now
        self._next_notice = now + SECONDS_TO_FIRST_NOTICE

    def goes_on_with(self, module: str) -> None:
        """Take note that the next import has begun."""
        self.module, self._quiet = module, 0.0

    def look(self, now: float) -> str:
        """Look whether it has done anything since the last look; return how it hangs, or ""."""
        if not self._pid:
            self.looked = now
            return ""
        work = activity_counter(self._pid)
        # Of the time in which this process was stopped, little counts: the other one may have been.
        since = min(now - self.looked, 2 * SECONDS_BETWEEN_CHECKS)
        self._quiet = self._quiet + since if work == self._work else 0.0
        self._work, self.looked = work, now
        if self._quiet <= IMPORT_TIMEOUT:
            return ""
        return f"importing {self.module} hangs: nothing has happened for {IMPORT_TIMEOUT:g} s"

    def notice(self, now: float) -> str:
        """Return what the user is to know now and then while it goes on, or ""."""
        if not self._pid or now < self._next_notice:
            return ""
        self._next_notice = now + SECONDS_BETWEEN_NOTICES
        return (
            f"importing {self.module} before workers are forked, for {now - self._began:.0f} s now"
            " (--preload none leaves that to each worker)"
        )


class ForkServer(HelperClient["messages.ToForkServer", "messages.FromForkServer"]):
    """The server that starts the workers of this node: a child of the agent.

    What it imports in preparation may hang, crash, or do what a fork would break. Then it is given up:
    it is killed with all that it has started, and another one takes its place, which imports nothing.
    """

    name = "fork server"

    def __init__(self, process: ServerProcess) -> None:
        """Use the server that ``process`` has executed."""
        super().__init__(process.channel, process.pid)
        self.pids: dict[LocalRank, int] = {}
        """Process ids of the workers that have executed their program, in the last attempt."""
        self.orphans = Orphans()
        self.refusal = ""
        """Why no worker is started: the script must be forked, and can't be."""
        self.on_prepared: Callable[[messages.Prepared], None] = lambda _prepared: None
        """Is called once after ``prepare``, with the result."""
        self.say: Callable[[str], None] = lambda _text: None
        """Prints a line for the user."""
        self.attached: Callable[[Sequence[str]], tuple[str, ...]] | None = None
        """Returns a worker's command with the debugger in it that follows the workers; None: none does."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.mask = sorted(int(number) for number in mask - ENDING_SIGNALS)
        """The signals that the launcher was started with as blocked, but for those that end the job."""
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        """Its limits: node 0 raises them."""
        self._process = process
        self._importing: Importing | None = None
        """What it is asked to prepare, until it answers."""
        self._lease_ends: float | None = None
        """Until when workers may run, in seconds of CLOCK_BOOTTIME; None: as long as they do."""
        self.lease_grace = 0.25
        """Seconds after its end for which a server may be stopped that is to end the workers."""
        self._lease_due = NEVER
        """When to look whether it is stopped, though the lease is over."""
        self._stopped_since: float | None = None
        """It was found so first; None: it was not, the last time."""
        self._connection: int | None = None
        """What the server holds: our own duplicate, for a server that replaces this one."""
        self._watched = self.pid
        """The server itself: ``pid`` may be its guard."""
        self._was_ready = False
        """One has been, and what its interpreter had printed is reported."""
        self._is_closed = False
        self.orphans.ours.add(self.pid)

    @property
    def due(self) -> float:
        """When to look how the imports go on, and whether it answers."""
        return min(super().due, self._imports_due, self._lease_due)

    @property
    def _imports_due(self) -> float:
        return NEVER if self._importing is None else self._importing.looked + SECONDS_BETWEEN_CHECKS

    # The preparation.

    @property
    def is_preparing(self) -> bool:
        """Whether no worker can be started yet."""
        return self._importing is not None

    def prepare(self, preparation: Preparation) -> None:
        """Have it import what the script imports first; ``ForkServerPrepared`` follows."""
        self._importing = Importing(preparation)
        self._send(messages.Prepare(**to_builtins(preparation)))

    def _prepare_anew(self) -> tuple[str, ...]:
        """Kill it while it prepares, and have another one prepare; return who survives."""
        importing, self._importing = self._importing, None
        _, survivors = self._replace(imports=True)
        if importing is not None:
            self.prepare(importing.preparation)
        return survivors

    def _replace(self, *, imports: bool = False) -> tuple[int | None, tuple[str, ...]]:
        """Put another server in its place; return the ``wait`` status of the first, and who survives.

        ``imports``: it imports something, too.
        """
        self.orphans.exempt_current_children(self.pid)
        if self._loop is not None:
            self._loop.forget(self._channel.fileno())
        status = self._process.end()
        survivors = self.orphans.end(SECONDS_TO_LEAVE)
        command = self._process.command
        if not imports:
            command = replace(command, is_guarded=False)
        # There is none if it can't be started.
        self.lost = True
        self._process = ServerProcess(command)
        self.lost = False
        self._channel, self.pid = self._process.channel, self._process.pid
        self._watched = self.pid
        if self._loop is not None:
            self._helper_watch.begin(self._loop.clock())
        self.orphans.ours.add(self.pid)
        self._watch()
        return status, survivors

    def _prepared(
        self, preparation: Preparation, prepared: messages.Prepared, now: float
    ) -> Iterable[Event]:
        self._importing = None
        if prepared.retry_first is not None:
            # The imports before this one are safe: they are made again, in the same order.
            self._replace(imports=True)
            self.prepare(
                replace(preparation, only_first=(prepared.retry_first, prepared.why or ""))
            )
            return
        if prepared.must_be_replaced:
            self._replace()
        if preparation.must_fork:
            # The report of the workers says it.
            self.refusal = prepared.why or ""
        if not self.refusal:
            self.on_prepared(prepared)
        self._send_again()
        yield ForkServerPrepared(now)

    def _break_off(self, importing: Importing, why: str, now: float) -> Iterable[Event]:
        """Go on without an answer, with another server already."""
        prepared = messages.Prepared(why, must_warn=True, costs_time=True)
        return self._prepared(importing.preparation, prepared, now)

    # Workers.

    def start_worker(
        self,
        plan: NodePlan,
        worker: WorkerPlan,
        streams: tuple[int, int, int],
        *,
        startup_folder: str | None,
        foreground_group: int | None,
    ) -> None:
        """Ask for one worker.

        Args:
            plan: the node's.
            worker: one of its workers.
            streams: its stdin, stdout and stderr, which the caller may close at once.
            startup_folder: a folder to put in front of PYTHONPATH; None for programs that aren't
                Python.
            foreground_group: the process group that hands over the terminal of ``streams``; None: the
                worker gets no terminal.

        """
        cpus, memory = binding_of(worker)
        request = messages.StartWorker(
            local_rank=worker.local_rank,
            command=worker.command if self.attached is None else self.attached(worker.command),
            variables={**plan.env, **worker.env},
            startup_folder=startup_folder,
            cpus=cpus,
            memory=memory,
            blocked_signals=self.mask,
            open_files=self._open_files,
            foreground_group=foreground_group,
        )
        self._send(request, streams)

    def send(self, action: SignalWorkers | ForwardSignal) -> None:
        """Have it send a signal; ``SignalNotHandled`` answers one that is forwarded."""
        if self.is_preparing:
            return
        match action:
            case SignalWorkers(ranks, number, group, except_failing):
                self._send(messages.SendSignal(sorted(ranks), int(number), group, except_failing))
            case ForwardSignal(number):
                self._send(messages.Forward(int(number)))
            case _:
                assert_never(action)

    def clean_up(self, now: float) -> Iterable[Event]:
        """Kill everything that workers left behind; ``CleanedUp`` is returned, or follows."""
        if self.lost:
            return [CleanedUp(self.orphans.end(SECONDS_TO_KILL), now)]
        if self.is_preparing:
            # It does not hear us.
            return [CleanedUp(self._prepare_anew(), now)]
        self._send(messages.KillAll())
        return []

    def kill_leftovers(self, variables: Mapping[str, str]) -> None:
        """Kill what a worker has left that has ended: all that has these variables in its environment."""
        self._send(messages.KillChildrenByEnvironment(variables))

    def handle_leftovers(self, action: AwaitLeftovers | NameLeftovers | SignalLeftovers) -> None:
        """Do what concerns the processes that workers have left running.

        ``NoLeftovers`` answers the first, ``Left`` the second.
        """
        match action:
            case AwaitLeftovers():
                self._send(messages.WaitForChildren())
            case NameLeftovers():
                self._send(messages.ListChildren())
            case SignalLeftovers(number):
                self._send(messages.SignalChildren(int(number)))
            case _:
                assert_never(action)

    def reap_orphans(self) -> None:
        """Reap what has ended and became this process's child, perhaps when the server ended."""
        self.orphans.exempt_current_children(self.pid)
        self.orphans.reap()

    # The lease, and the connection to node 0.

    def renew_lease(self, ends: float | None) -> None:
        """Have all that runs killed when ``ends`` has passed, unless this is called again before.

        Until then no worker is started, either: its end is reported at once.

        Args:
            ends: in seconds of CLOCK_BOOTTIME; None: workers have no lease.

        """
        self._lease_ends, self._stopped_since = ends, None
        self._lease_due = NEVER
        if ends is not None and self._loop is not None:
            self._lease_due = self._loop.clock() + max(0.0, ends - boot_clock())
        if not (self.lost or self.is_preparing):
            self._send(messages.RenewLease(ends))

    def hold_connection(self, descriptor: int) -> None:
        """Have it hold a connection of ours, too, in place of the one before: the caller keeps its own.

        If this process is killed, the other side reads all that was sent, and then the end of file once
        nothing is left of the job here. If something is left, or this process still runs, the server just
        drops it.
        """
        self._close_connection()
        self._connection = os.dup(descriptor)
        if not (self.lost or self.is_preparing):
            self._send(messages.KeepConnection(), (self._connection,))

    def _close_connection(self) -> None:
        if self._connection is not None:
            os.close(self._connection)
            self._connection = None

    def _send_again(self) -> None:
        """Send what a server does not hear while it prepares, and one that replaces it has not heard."""
        if self._lease_ends is not None:
            self._send(messages.RenewLease(self._lease_ends))
        if self._connection is not None:
            self._send(messages.KeepConnection(), (self._connection,))

    # Events.

    def _happened(self, now: float) -> Iterable[Event]:
        channel = self._channel
        for message, _descriptors in channel.receive():
            yield from self._heard(message, now)
        if channel is not self._channel:
            return
        importing = self._importing
        if channel.closed:
            yield from self._ended(now)
        elif importing is not None and now >= self._imports_due:
            why = importing.look(now)
            if notice := importing.notice(now):
                self.say(notice)
            if why:
                self._replace()
                yield from self._break_off(importing, why, now)
        elif now >= self._lease_due:
            yield from self._look_past_lease(now)

    def _look_past_lease(self, now: float) -> Iterable[Event]:
        """End a server that is stopped, and so does not end the workers: others may go on soon.

        Not at once: if all processes of this node were stopped, it continues a moment later than this one.
        """
        self._lease_due = now + self.lease_grace
        if state_and_parent(self._watched)[0] not in "Tt":
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        else:
            self.lost = True
            how = "is stopped, and has not ended the workers whose lease has expired"
            self._kill(how)
            yield HelperLost(self.name, how, signal.SIGKILL, now)

    @property
    def _watched_pid(self) -> int:
        return self._watched

    def _ping(self) -> bool:
        if not self._process.is_ready or self.is_preparing:
            return False
        self._send(messages.Ping())
        return True

    def _kill(self, _how: str) -> None:
        self._process.kill_with_workers(self._watched)

    def _heard(self, message: "messages.FromForkServer", now: float) -> Iterable[Event]:
        self._helper_watch.heard()
        match message:
            case messages.Pong():
                pass
            case messages.Ready(pid, refused):
                self._watched = pid
                if self._importing is not None:
                    self._importing.begin(pid, now)
                printed = self._process.set_ready()
                is_first, self._was_ready = not self._was_ready, True
                if is_first and (printed or refused):
                    yield ForkServerReady(printed, tuple(refused), now)
            case messages.ImportBegins(module):
                if self._importing is not None:
                    self._importing.goes_on_with(module)
            case messages.Prepared():
                if self._importing is not None:
                    yield from self._prepared(self._importing.preparation, message, now)
            case _:
                event = event_of(message, now)
                if isinstance(event, WorkerStarted):
                    self.pids[event.local_rank] = event.pid
                yield event

    def _ended(self, now: float) -> Iterable[Event]:
        """Take note of the end of the connection, which only the end of the server closes."""
        if self._importing is not None and self._process.is_ready:
            importing, pid = self._importing, self.pid
            status, _ = self._replace()
            why = f"importing {importing.module} {_how_it_broke_off(status, pid)}"
            yield from self._break_off(importing, why, now)
        else:
            self.lost = True
            yield HelperLost(self.name, *self._process.reap(), now)

    def close(self) -> None:
        """Close the connection, wait until the server has ended all that it has started; end the rest."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self.lost:
            self.orphans.exempt_current_children(self.pid)
        self._leave_loop()
        if not self.lost:
            if not self.is_preparing and self._process.is_ready:
                self._wait_for_end()
            # One that does not answer is killed.
            self._process.end()
        self._channel.close()
        self._close_connection()
        self.orphans.end(SECONDS_TO_KILL)

    def _wait_for_end(self) -> None:
        """Wait until the server closes the connection: then nothing of the job is left."""
        self._channel.shutdown_write()
        deadline = monotonic() + SECONDS_TO_LEAVE
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        while not self._channel.closed and (left := deadline - monotonic()) > 0:
            poll.poll(left * 1000)
            self._channel.receive()


def _how_it_broke_off(status: int | None, pid: int) -> str:
    """Return how a server ended that was importing; ``status``: None if it can't be killed."""
    if status is None:
        return f"can't be ended: {describe(pid)}"
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    return f"ended the process with code {os.WEXITSTATUS(status)}"


def binding_of(worker: WorkerPlan) -> tuple[list[int] | None, tuple[str, list[int]] | None]:
    """Return a worker's CPUs and memory policy as the fork server takes them."""
    cpus, policy = worker.cpus, worker.memory
    return (
        None if cpus is None else sorted(cpus),
        None if policy is None else (policy.mode, list(policy.nodes)),
    )
