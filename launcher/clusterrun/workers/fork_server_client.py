"""The agent's side of the fork server: sends it requests, and turns its messages into events."""

import os
import resource
import select
import signal
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import assert_never

from msgspec import to_builtins
from msgspec.structs import replace

from clusterrun.bounds import LocalRank, as_name
from clusterrun.loop import NEVER
from clusterrun.planning.plan import NodePlan, WorkerPlan
from clusterrun.planning.preparation import Preparation
from clusterrun.policy.actions import (
    ForwardSignal,
    SignalWorkers,
)
from clusterrun.policy.events import (
    CleanedUp,
    Event,
    ForkServerPrepared,
    ForkServerReady,
    HelperLost,
    LeftoverProcess,
    LeftoversNamed,
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
"""For the server's own cleanup after the connection is closed (at most 5 s), and its exit."""

SECONDS_TO_KILL = 5.0
"""For killing what has outlived the server."""

SECONDS_BETWEEN_CHECKS = 1.0
"""Between checks of the imports before workers are forked."""

SECONDS_TO_FIRST_NOTICE = 10.0
SECONDS_BETWEEN_NOTICES = 30.0


def to_event(message: "messages.FromRunning", now: float) -> Event:
    match message:
        case messages.Started(rank, pid, warning, at):
            return WorkerStarted(LocalRank(rank), pid, warning or "", min(at, now))
        case messages.StartFailed(rank, step, error):
            return WorkerEnded(LocalRank(rank), NotStarted(step, error), now)
        case messages.ScriptFailed(rank, failed_at):
            return WorkerFailing(LocalRank(rank), now, _seconds_since(failed_at, now))
        case messages.WorkerExited(rank, code, at, failed_at):
            # The agent may read the message later.
            since = _seconds_since(failed_at, min(at, now)) if code else 0.0
            return WorkerEnded(LocalRank(rank), Exited(code), min(at, now), since)
        case messages.WorkerKilled(rank, number, at, failure):
            failed_at, code = failure or (None, 0)
            # A failing script may have been about to exit, with a known code.
            status = Exited(code) if code else Killed(number)
            since = _seconds_since(failed_at, min(at, now))
            return WorkerEnded(LocalRank(rank), status, min(at, now), since)
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
            return LeftoversNamed(tuple(named), now)
        case _:
            assert_never(message)


def _seconds_since(failed_at: float | None, now: float) -> float:
    """Return the seconds since a script failed; 0.0 if the time is unknown."""
    return 0.0 if failed_at is None else max(0.0, now - failed_at)


class ImportProgress:
    """The imports that a fork server makes before it forks workers; they may take long or hang."""

    def __init__(self, preparation: Preparation) -> None:
        self.preparation = preparation
        self.module = "what the script imports first"
        """The module that is being imported."""
        self.checked_at = 0.0
        self._pid: int | None = None
        """The server; None until it is ready."""
        self._began = self._next_notice = 0.0
        self._idle = 0.0
        """Seconds without progress."""
        self._activity = 0.0

    def begin(self, pid: int, now: float) -> None:
        """Watch process ``pid``, which is ready."""
        self._pid, self._began, self.checked_at = pid, now, now
        self._next_notice = now + SECONDS_TO_FIRST_NOTICE

    def module_begins(self, module: str) -> None:
        self.module, self._idle = module, 0.0

    def check(self, now: float) -> str | None:
        """Return that the imports hang, as text for the user, or None."""
        # If this process was stopped, so perhaps was the server: a long gap counts as two seconds.
        passed = min(now - self.checked_at, 2 * SECONDS_BETWEEN_CHECKS)
        self.checked_at = now
        if self._pid is None:
            return None
        activity = activity_counter(self._pid)
        self._idle = self._idle + passed if activity == self._activity else 0.0
        self._activity = activity
        if self._idle <= IMPORT_TIMEOUT:
            return None
        return f"importing {self.module} hangs: nothing has happened for {IMPORT_TIMEOUT:g} s"

    def due_notice(self, now: float) -> str | None:
        """Return a progress notice for the user if one is due."""
        if self._pid is None or now < self._next_notice:
            return None
        self._next_notice = now + SECONDS_BETWEEN_NOTICES
        return (
            f"importing {self.module} before workers are forked: {now - self._began:.0f} s so far"
            " (with --preload none, each worker imports it itself)"
        )


class ForkServer(HelperClient["messages.ToForkServer", "messages.FromForkServer"]):
    """The server that starts the workers of this node: a child of the agent.

    Its imports may hang, crash, or do something that a fork would break. Then it is killed with all that
    it has started, and is replaced by a server that imports nothing.
    """

    name = "fork server"

    def __init__(self, process: ServerProcess) -> None:
        super().__init__(process.channel, process.pid)
        self.pids: dict[LocalRank, int] = {}
        """Process ids of the workers that have executed their program, in the last attempt."""
        self.orphans = Orphans()
        self.start_error: str | None = None
        """Why no worker can be started: the script must be forked, but can't be."""
        self.on_prepared: Callable[[messages.Prepared], None] = lambda _prepared: None
        """Called once after ``prepare``, with the result."""
        self.notice: Callable[[str], None] = lambda _text: None
        """Prints a line for the user."""
        self.debugger_command: Callable[[Sequence[str]], tuple[str, ...]] | None = None
        """Adds the debugger that follows the workers to a worker's command; None: no debugger does."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._blocked_signals = sorted(int(number) for number in mask - ENDING_SIGNALS)
        """Signals that were blocked when the launcher started, without those that end the job."""
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        """The limits of the workers; node 0 raises its own later."""
        self._process = process
        self._imports: ImportProgress | None = None
        """The imports that the server was asked for; None once it has answered."""
        self._lease_ends: float | None = None
        """When the workers' lease expires, in seconds of CLOCK_BOOTTIME; None: never."""
        self.lease_grace = 0.25
        """Seconds that a stopped server has after the lease has expired before it is killed."""
        self._lease_due = NEVER
        """When to check whether the server is stopped, because the lease has expired."""
        self._stopped_since: float | None = None
        """When the server was first found stopped; None if it was running at the last check."""
        self._connection: int | None = None
        """Our duplicate of the connection that the server keeps, for a server that replaces it."""
        self._watched = self.pid
        """The server itself; ``pid`` may be its guard."""
        self._was_ready = False
        """Whether a server has been ready, and what its interpreter printed was reported."""
        self._is_closed = False
        self.orphans.helpers.add(self.pid)

    @property
    def due(self) -> float:
        return min(super().due, self._imports_due, self._lease_due)

    @property
    def _imports_due(self) -> float:
        return NEVER if self._imports is None else self._imports.checked_at + SECONDS_BETWEEN_CHECKS

    # The preparation.

    @property
    def is_preparing(self) -> bool:
        """Whether the server still imports modules, so no worker can be started yet."""
        return self._imports is not None

    def prepare(self, preparation: Preparation) -> None:
        """Have the server import what the script imports first; ``ForkServerPrepared`` follows."""
        self._imports = ImportProgress(preparation)
        self.send(messages.Prepare(**to_builtins(preparation)))

    def _replace(self, *, imports: bool = False) -> tuple[int | None, tuple[str, ...]]:
        """Replace the server; return the ``wait`` status of the old one, and what survives of it.

        ``imports``: the new server will import something too.
        """
        self.orphans.exempt_current_children(self.pid)
        if self._loop is not None:
            self._loop.forget(self._channel.fileno())
        status = self._process.end()
        survivors = self.orphans.end(SECONDS_TO_LEAVE)
        command = self._process.command
        if not imports:
            command = replace(command, is_guarded=False)
        # Stays true if no new server can be started.
        self.lost = True
        self._process = ServerProcess(command)
        self.lost = False
        self._channel, self.pid = self._process.channel, self._process.pid
        self._watched = self.pid
        if self._loop is not None:
            self._helper_watch.begin(self._loop.clock())
        self.orphans.helpers.add(self.pid)
        self._watch()
        return status, survivors

    def _prepared(
        self, preparation: Preparation, prepared: messages.Prepared, now: float
    ) -> Iterable[Event]:
        self._imports = None
        if prepared.retry_first is not None:
            # The imports before the unsafe one are repeated, in the same order.
            self._replace(imports=True)
            self.prepare(
                replace(preparation, only_first=(prepared.retry_first, prepared.why or ""))
            )
            return
        if prepared.must_be_replaced:
            self._replace()
        if preparation.must_fork:
            # The workers' failure report has this text, so no notice is needed.
            self.start_error = prepared.why
        if not self.start_error:
            self.on_prepared(prepared)
        # The server reads no other message while it prepares, and a new one has received none.
        if self._lease_ends is not None:
            self.send(messages.RenewLease(self._lease_ends))
        if self._connection is not None:
            self.send(messages.KeepConnection(), (self._connection,))
        yield ForkServerPrepared(now)

    def _imports_failed(self, preparation: Preparation, why: str, now: float) -> Iterable[Event]:
        """Continue without imports; the server was already replaced."""
        prepared = messages.Prepared(why, must_warn=True, costs_time=True)
        return self._prepared(preparation, prepared, now)

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
        """Ask for one worker of the plan.

        Args:
            plan: the plan of this node.
            worker: the worker.
            streams: its stdin, stdout and stderr, which the caller may close at once.
            startup_folder: a folder to prepend to PYTHONPATH; None for a program other than Python.
            foreground_group: the process group that hands over the terminal of ``streams``; None: the
                worker does not become the terminal's foreground.

        """
        cpus, memory = binding_of(worker)
        command = worker.command
        if self.debugger_command is not None:
            command = self.debugger_command(command)
        request = messages.StartWorker(
            local_rank=worker.local_rank,
            command=command,
            variables={**plan.env, **worker.env},
            startup_folder=startup_folder,
            cpus=cpus,
            memory=memory,
            blocked_signals=self._blocked_signals,
            open_files=self._open_files,
            foreground_group=foreground_group,
        )
        self.send(request, streams)

    def send_signal(self, action: SignalWorkers | ForwardSignal) -> None:
        """Have the server send a signal; ``SignalNotHandled`` answers ``ForwardSignal``."""
        if self.is_preparing:
            return
        match action:
            case SignalWorkers(ranks, number, group, except_failing):
                self.send(messages.SendSignal(sorted(ranks), int(number), group, except_failing))
            case ForwardSignal(number):
                self.send(messages.Forward(int(number)))
            case _:
                assert_never(action)

    def clean_up(self, now: float) -> Iterable[Event]:
        """Kill everything that workers left running; ``CleanedUp`` is returned or follows."""
        if self.lost:
            return [CleanedUp(self.orphans.end(SECONDS_TO_KILL), now)]
        if self._imports is not None:
            # A server that imports reads no messages: kill it, and have a new one prepare.
            preparation, self._imports = self._imports.preparation, None
            _, survivors = self._replace(imports=True)
            self.prepare(preparation)
            return [CleanedUp(survivors, now)]
        self.send(messages.KillAll())
        return []

    def reap_orphans(self) -> None:
        """Reap processes that became this process's children, perhaps when the server ended."""
        self.orphans.exempt_current_children(self.pid)
        self.orphans.reap()

    # The lease, and the connection to node 0.

    def renew_lease(self, ends: float | None) -> None:
        """Have all workers killed at ``ends``, unless this is called again before.

        A worker that is to start after that is reported as ended.

        Args:
            ends: in seconds of CLOCK_BOOTTIME; None: workers have no lease.

        """
        self._lease_ends, self._stopped_since = ends, None
        self._lease_due = NEVER
        if ends is not None and self._loop is not None:
            self._lease_due = self._loop.clock() + max(0.0, ends - boot_clock())
        if not (self.lost or self.is_preparing):
            self.send(messages.RenewLease(ends))

    def keep_connection(self, descriptor: int) -> None:
        """Have the server keep a duplicate of a connection, in place of the previous one.

        If this process is killed, the peer reads all that was sent, then the end of file once nothing of
        the job runs on this node. In all other cases the server closes its duplicate without effect.
        """
        self._close_connection()
        self._connection = os.dup(descriptor)
        if not (self.lost or self.is_preparing):
            self.send(messages.KeepConnection(), (self._connection,))

    def _close_connection(self) -> None:
        if self._connection is not None:
            os.close(self._connection)
            self._connection = None

    # Events.

    def _handle(self, now: float) -> Iterable[Event]:
        channel = self._channel
        for message, _descriptors in channel.receive():
            yield from self._handle_message(message, now)
        if channel is not self._channel:
            # The server was replaced.
            return
        if channel.closed:
            yield from self._connection_ended(now)
        elif self._imports is not None and now >= self._imports_due:
            yield from self._check_imports(self._imports, now)
        elif now >= self._lease_due:
            yield from self._check_stopped_past_lease(now)

    def _check_imports(self, imports: ImportProgress, now: float) -> Iterable[Event]:
        why = imports.check(now)
        if notice := imports.due_notice(now):
            self.notice(notice)
        if why:
            self._replace()
            yield from self._imports_failed(imports.preparation, why, now)

    def _check_stopped_past_lease(self, now: float) -> Iterable[Event]:
        """Kill a stopped server, which can't end the workers: other nodes may continue soon.

        It gets some time: if all processes of this node were stopped, it may continue after this one.
        """
        self._lease_due = now + self.lease_grace
        if state_and_parent(self._watched)[0] not in "Tt":
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        else:
            how = "is stopped, and has not ended the workers whose lease has expired"
            yield self._declare_lost(how, now)

    @property
    def _watched_pid(self) -> int:
        return self._watched

    def _ping(self) -> bool:
        if not self._process.is_ready or self.is_preparing:
            return False
        self.send(messages.Ping())
        return True

    def _kill(self, _how: str) -> None:
        self._process.kill_with_workers(self._watched)

    def _handle_message(self, message: "messages.FromForkServer", now: float) -> Iterable[Event]:
        self._helper_watch.message_received()
        match message:
            case messages.Pong():
                pass
            case messages.Ready(pid, refused):
                self._watched = pid
                if self._imports is not None:
                    self._imports.begin(pid, now)
                printed = self._process.set_ready()
                is_first, self._was_ready = not self._was_ready, True
                if is_first and (printed or refused):
                    yield ForkServerReady(printed, tuple(refused), now)
            case messages.ImportBegins(module):
                if self._imports is not None:
                    self._imports.module_begins(module)
            case messages.Prepared():
                if self._imports is not None:
                    yield from self._prepared(self._imports.preparation, message, now)
            case _:
                event = to_event(message, now)
                if isinstance(event, WorkerStarted):
                    self.pids[event.local_rank] = event.pid
                yield event

    def _connection_ended(self, now: float) -> Iterable[Event]:
        """Handle the end of the server, which alone closes the connection."""
        if self._imports is not None and self._process.is_ready:
            imports, pid = self._imports, self.pid
            status, _ = self._replace()
            why = f"importing {imports.module} {_how_importing_ended(status, pid)}"
            yield from self._imports_failed(imports.preparation, why, now)
        else:
            self.lost = True
            yield HelperLost(self.name, *self._process.reap(), now)

    def close(self) -> None:
        """Close the connection, wait until the server has ended all it started, and kill the rest."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self.lost:
            self.orphans.exempt_current_children(self.pid)
        self._leave_loop()
        if not self.lost:
            if not self.is_preparing and self._process.is_ready:
                self._wait_for_end()
            # Kills it if it has not ended.
            self._process.end()
        self._channel.close()
        self._close_connection()
        self.orphans.end(SECONDS_TO_KILL)

    def _wait_for_end(self) -> None:
        """Wait until the server closes the connection, when nothing of the job is left."""
        self._channel.shutdown_write()
        deadline = monotonic() + SECONDS_TO_LEAVE
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        while not self._channel.closed and (left := deadline - monotonic()) > 0:
            poll.poll(left * 1000)
            self._channel.receive()


def _how_importing_ended(status: int | None, pid: int) -> str:
    """Return how a server ended while it imported; ``status`` is None if it can't be killed."""
    if status is None:
        return f"can't be ended: {describe(pid)}"
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    return f"ended the process with code {os.WEXITSTATUS(status)}"


def binding_of(worker: WorkerPlan) -> tuple[list[int] | None, tuple[str, list[int]] | None]:
    """Return a worker's CPUs and memory policy as fields of ``messages.StartWorker``."""
    cpus, policy = worker.cpus, worker.memory
    return (
        None if cpus is None else sorted(cpus),
        None if policy is None else (policy.mode, list(policy.nodes)),
    )
