"""The server's event loop: performs the agent's requests and watches the workers until the agent is gone."""

from __future__ import annotations

import _signal as signal
import _socket as socket
import gc
import os
import resource
import select
import struct
import sys
import time

from . import failure_notes, messages, worker_signals
from .binding import import_psutil, must_be_bound
from .channel import HelperChannel, take_messages
from .failure_notes import FailureNotes
from .kernel import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    SECONDS_TO_CLEAN_UP,
    allow_many_open_files,
    children_and_zombies_of,
    children_of,
    close_descriptors_above,
    describe,
    describe_fork_error,
    die_with_parent,
    end_children,
    group_of,
    handles_or_ignores,
    kill_children,
    kill_children_by_environment,
    list_children,
    prctl,
    refused_protections,
    send_signal,
)
from .lease import WorkersLease
from .preloading.preparation import ScriptPreparation
from .worker_start import WorkerStart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Never, NoReturn

    from .script_run import ScriptRun

    Callback = Callable[[], ScriptRun | None]
    """Called when a descriptor is readable; returns a script run only in a forked child."""

_MAX_READS_AT_END = 1024
"""Of 64 KiB each: more than an agent is ever sent."""

SECONDS_BETWEEN_CLEANUPS = 0.2
"""Killing is repeated: the kernel's list of children may lack a process that is just being adopted."""


def main(script_namespace: Mapping[str, object], initial_modules: Collection[str]) -> ScriptRun:
    """Serve the agent until it closes its end of the socket, then clean up and exit.

    Args:
        script_namespace: what Python puts into the namespace of a script.
        initial_modules: the modules that a script finds imported.

    Returns:
        In a forked child, the script run. In the server it never returns.

    """
    # Workers need not search the server's objects at their end.
    gc.freeze()
    gc.enable()
    # Workers inherit only descriptors 0, 1 and 2, whatever the launcher's parent has left open.
    close_descriptors_above(messages.STDERR_FD)
    os.dup2(messages.STDERR_FD, 2)
    os.close(messages.STDERR_FD)
    # If a daemon of a worker inherited it, the agent would not see the server's end.
    os.set_inheritable(messages.AGENT_FD, False)
    connection = socket.socket(fileno=messages.AGENT_FD)
    agent = HelperChannel(connection, messages.FROM_FORK_SERVER, messages.TO_FORK_SERVER)
    refused = refused_protections()
    preparation = ScriptPreparation(script_namespace, initial_modules)
    agent_pid, guard_pid = int(sys.argv[1]), None
    if sys.argv[2] == "--guarded":
        from .guard import guard

        guard_pid = guard(agent_pid)
    server = Server(agent, agent_pid, guard_pid, preparation)
    agent.send(messages.Ready(server.pid, refused))
    return server.serve()


class ForkedWorker:
    """A forked worker, which leads a process group."""

    def __init__(self, local_rank: int, pid: int, status: int, *, runs_python: bool) -> None:
        self.local_rank = local_rank
        self.pid = pid
        self.status: int | None = status
        """The pipe from its start; None once its program runs."""
        self.runs_python = runs_python
        self.failure_is_reported = False
        self.ended_by_lease = False
        """It was killed because the lease had expired."""
        self.incoming = bytearray()
        """Bytes of its start's ``FROM_WORKER`` messages."""


class Server:
    """Serves the agent; adopts orphans of its workers."""

    def __init__(
        self,
        agent: HelperChannel[messages.FromForkServer, messages.ToForkServer],
        agent_pid: int,
        guard_pid: int | None,
        preparation: ScriptPreparation,
    ) -> None:
        """Shield this process from signals.

        Args:
            agent: the connection to the agent.
            agent_pid: the agent's process.
            guard_pid: the parent of this process; None: the agent is the parent.
            preparation: of the script that workers may run in place.

        """
        self.pid = os.getpid()
        self.agent = agent
        self.ignored = {n for n in worker_signals.SHIELDED if signal.getsignal(n) == signal.SIG_IGN}
        """The signals that the launcher was started with as ignored."""
        self.environment = dict(os.environ)
        """The job's, without what imports before the fork set."""
        self.preparation = preparation
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Many requests to start a worker, with three descriptors each, may arrive at once.
        allow_many_open_files()
        self.agent_pid = agent_pid
        self._guard_pid = guard_pid
        self._signals: list[tuple[int, float]] = []
        self._failure_notes = FailureNotes()
        self._workers: dict[int, ForkedWorker] = {}
        """By pid, until they are reaped."""
        self._binding_warnings: set[str] = set()
        """Those that have been reported."""
        self._cleanup_until: float | None = None
        self._cleanup_is_requested = False
        self._must_report_no_children = False
        """The agent waits until no child is left."""
        self._leftover_signal: int | None = None
        """A signal that all children get."""
        self._signalled: set[int] = set()
        """The children that have been sent that signal."""
        self._lease = WorkersLease()
        self._lease_had_expired = False
        """The result of the last check."""
        self._connection: socket.socket | None = None
        """The agent's connection to node 0."""
        self._callbacks: dict[int, Callback] = {}
        self._poll = select.poll()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._wakeup, self._signal_arrived = os.pipe()
        for end in (self._wakeup, self._signal_arrived):
            os.set_blocking(end, False)
        self.watch(self._wakeup, self._empty_wakeup_pipe)
        self.watch(agent.fileno(), self._handle_agent)
        self._catch_signals()
        # The agent blocked all signals before it executed this program.
        signal.pthread_sigmask(signal.SIG_SETMASK, [failure_notes.SIGNAL])

    def watch(self, descriptor: int, callback: Callback) -> None:
        """Call ``callback`` whenever ``descriptor`` is readable."""
        self._callbacks[descriptor] = callback
        self._poll.register(descriptor, select.POLLIN)

    def serve(self) -> ScriptRun:
        """Serve the agent; return only in a forked child, with its script run."""
        while True:
            writes = select.POLLOUT if self.agent.wants_write else 0
            self._poll.modify(self.agent.fileno(), select.POLLIN | writes)
            times = (self._lease.milliseconds_left(), self._milliseconds_to_cleanup())
            timeout = min((each for each in times if each is not None), default=None)
            for descriptor, _ in self._poll.poll(timeout):
                callback = self._callbacks.get(descriptor)
                run = callback() if callback is not None else None
                if run is not None:
                    return run
            run = self._check_lease()
            if run is not None:
                return run
            self._check_signals_and_children()

    def _check_lease(self) -> ScriptRun | None:
        """Kill everything once the lease has expired; return a run only in a forked child."""
        has_expired = self._lease.has_expired()
        if has_expired:
            # If this process was stopped, a renewal may be waiting.
            run = self._handle_agent()
            if run is not None:
                return run
            has_expired = self._lease.has_expired()
        if has_expired and not self._lease_had_expired:
            # First report workers that have ended by themselves.
            self._reap()
            self._begin_cleanup(is_requested=False)
        self._lease_had_expired = has_expired
        return None

    def _check_signals_and_children(self) -> None:
        if self._guard_pid is not None and os.getppid() != self._guard_pid:
            # Without the guard, no other process would kill what is left.
            self._end_all()
            os._exit(1)
        while self._signals:
            self.report(messages.SignalFromWorker(*self._signals.pop(0)))
        no_children = self._reap()
        self._handle_leftovers(no_children=no_children)
        self._continue_cleanup(no_children=no_children)

    # The agent.

    def _handle_agent(self) -> ScriptRun | None:
        self.agent.flush()
        received = self.agent.receive()
        if self.agent.closed:
            # Its last requests no longer matter.
            self._end_all()
            self._close_connection()
            # The agent may wait for this; Python's own end takes 7 ms.
            os._exit(0)
        for message, _ in received:
            if isinstance(message, messages.RenewLease):
                # First, because with the old lease a requested worker might not be started.
                self._lease.renew(message.until)
        for message, descriptors in received:
            run = self._perform(message, descriptors)
            if run is not None:
                return run
        return None

    def _perform(
        self, message: messages.ToForkServer, descriptors: tuple[int, ...]
    ) -> ScriptRun | None:
        if isinstance(message, messages.StartWorker):
            return self._start_worker(message, descriptors)
        if isinstance(message, messages.Prepare):
            self.preparation.perform(message, self)
        elif isinstance(message, messages.SendSignal):
            self.send_signal(message)
        elif isinstance(message, messages.Forward):
            self.forward(message.number)
        elif isinstance(message, messages.KillAll):
            self._must_report_no_children, self._leftover_signal = False, None
            self._begin_cleanup(is_requested=True)
        elif isinstance(message, messages.KillChildrenByEnvironment):
            kill_children_by_environment(message.variables)
        elif isinstance(message, messages.WaitForChildren):
            self._must_report_no_children = True
        elif isinstance(message, messages.ListChildren):
            self.report(messages.ChildList(list_children()))
        elif isinstance(message, messages.SignalChildren):
            self._leftover_signal, self._signalled = message.number, set()
        elif isinstance(message, messages.Ping):
            self.report(messages.Pong())
        elif isinstance(message, messages.KeepConnection):
            self._keep_connection(descriptors[0])
        elif not isinstance(message, messages.RenewLease):
            _assert_never(message)
        return None

    def report(self, message: messages.FromForkServer) -> None:
        self.agent.send(message)

    # The agent's connection to node 0: its end (FIN) means that no worker is left, even if the agent was killed.

    def _keep_connection(self, descriptor: int) -> None:
        if self._connection is not None:
            self._connection.close()
        os.set_inheritable(descriptor, False)
        self._connection = socket.socket(fileno=descriptor)

    def _close_connection(self) -> None:
        """Close the connection after everything was killed, unless the agent still reads from it."""
        if self._connection is None or not self.agent.peer_is_gone():
            return
        if children_and_zombies_of(self.pid):
            # A process is left, so reset the connection.
            self._connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        else:
            _drain(self._connection)
        self._connection.close()

    def close_objects(self) -> None:
        """Close, in a forked child, the Python objects that own a descriptor.

        Otherwise they would close their descriptor number when they are collected, and by then it may
        belong to a file of the script.
        """
        self.agent.close()
        if self._connection is not None:
            self._connection.close()

    # Signals to this process.

    def _catch_signals(self) -> None:
        """Let no signal end this process; report those that a worker may have sent to its parent."""
        # The end of the guard also wakes the loop.
        prctl(PR_SET_PDEATHSIG, signal.SIGCHLD)
        worker_signals.ignore_shielded()
        signal.set_wakeup_fd(self._signal_arrived, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in worker_signals.REPORTED:
            if number not in self.ignored:
                signal.signal(number, self._note_signal)

    def _note_signal(self, number: int, _frame: object) -> None:
        self._signals.append((number, time.monotonic()))

    def _empty_wakeup_pipe(self) -> None:
        try:
            while os.read(self._wakeup, 4096):
                pass
        except BlockingIOError:
            pass

    def begin_imports(self) -> None:
        """Set the signal handlers and limits of a worker: libraries read them when they are imported.

        Until ``end_imports``, a scheduler's signal to all processes may end this process; then workers are
        spawned. The kernel kills it when the agent ends, because it does not read the socket.
        """
        signal.set_wakeup_fd(-1)
        worker_signals.restore(self.ignored)
        worker_signals.set_as_python_does()
        die_with_parent(self._guard_pid or self.agent_pid)
        resource.setrlimit(resource.RLIMIT_NOFILE, self._open_files)

    def end_imports(self) -> None:
        allow_many_open_files()
        self._catch_signals()

    # Workers.

    def _start_worker(
        self, request: messages.StartWorker, streams: tuple[int, ...]
    ) -> ScriptRun | None:
        """Fork a worker, which runs the script or executes its program; return a run only in the child."""
        local_rank = request.local_rank
        if self._lease.has_expired():
            for descriptor in streams:
                os.close(descriptor)
            self.report(messages.EndedByLease(local_rank, time.monotonic()))
            return None
        script = self.preparation.script_for(request.command)
        failure_note = self._failure_notes.of(local_rank)
        failure_note.clear()
        if must_be_bound(request.cpus):
            import_psutil()
        # A signal that arrives before the child's handlers are set stays pending.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pipe: tuple[int, ...] = ()
        pid = -1
        try:
            pipe = os.pipe()
            pid = os.fork()
        except OSError as error:
            self.report(messages.StartFailed(local_rank, "fork", describe_fork_error(error)))
        if pid == 0:
            return WorkerStart(request, streams, pipe[1], self).run(script, failure_note)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for descriptor in (*streams, *(pipe if pid == -1 else pipe[1:])):
            os.close(descriptor)
        if pid != -1:
            runs_python = request.startup_folder is not None
            worker = ForkedWorker(local_rank, pid, pipe[0], runs_python=runs_python)
            self._workers[pid] = worker
            self.watch(pipe[0], lambda: self._read_start(worker))
        return None

    def _read_start(self, worker: ForkedWorker) -> None:
        """Read the pipe of a start, which is readable; its end of file means that the program runs."""
        if worker.status is None:
            # Its end of file has been read since the poll.
            return
        chunk = os.read(worker.status, 1 << 16)
        if chunk:
            worker.incoming += chunk
            return
        del self._callbacks[worker.status]
        self._poll.unregister(worker.status)
        os.close(worker.status)
        worker.status = None
        warnings: list[str] = []
        for message, _ in take_messages(messages.FROM_WORKER, worker.incoming):
            if isinstance(message, messages.StartFailed):
                del self._workers[worker.pid]
                self.report(message)
                return
            # The kernel refuses the same to all workers: one warning is enough.
            warnings = [each for each in message if each and each not in self._binding_warnings]
        self._binding_warnings.update(warnings)
        warning = "; ".join(warnings) or None
        self.report(messages.Started(worker.local_rank, worker.pid, warning, time.monotonic()))

    @property
    def _running(self) -> list[ForkedWorker]:
        """The workers whose start is reported."""
        return [worker for worker in self._workers.values() if worker.status is None]

    def send_signal(self, request: messages.SendSignal) -> None:
        """Send a signal to workers that have not been reaped, or to their groups."""
        for worker in self._workers.values():
            failure = self._failure_notes.of(worker.local_rank).failure
            is_excepted = request.except_failing and failure is not None
            if worker.local_rank in request.local_ranks and not is_excepted:
                send_signal(worker.pid, request.number, group=request.group)

    def forward(self, number: int) -> None:
        """Send a signal to the workers that handle or ignore it; report the others.

        A program that isn't Python may be a shell that has started the real program, so each process of
        its group that handles or ignores the signal gets it.
        """
        self._read_starts()
        # A worker that has not started its program still ignores signals that may kill the program.
        not_handled = [it.local_rank for it in self._workers.values() if it.status is not None]
        for worker in self._running:
            members = [worker.pid] if worker.runs_python else group_of(worker.pid)
            handling = [member for member in members if handles_or_ignores(member, number)]
            for member in handling:
                send_signal(member, number)
            if not handling:
                not_handled.append(worker.local_rank)
        self.report(messages.NotHandled(number, not_handled))

    def _read_starts(self) -> None:
        """Read the pipes of all starts without waiting: programs may run since the last poll."""
        for worker in list(self._workers.values()):
            poll = select.poll()
            while worker.status is not None:
                poll.register(worker.status, select.POLLIN)
                if not poll.poll(0):
                    break
                self._read_start(worker)

    # Children.

    def _reap(self) -> bool:
        """Reap all children that have ended; return whether no child is left."""
        self._report_stopped_workers()
        self._report_failed_scripts()
        try:
            while True:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    return False
                self._reap_child(ended)
        except ChildProcessError:
            return True

    def _reap_child(self, ended: os.waitid_result) -> None:
        """Reap a child; if it is a worker, report its exit, and kill its process group if it has failed.

        Processes that a successful worker leaves may continue.
        """
        worker = self._workers.get(ended.si_pid)
        # The start must be reported before the exit.
        while worker is not None and worker.status is not None:
            self._read_start(worker)
        worker = self._workers.pop(ended.si_pid, None)
        if worker is not None and (ended.si_code != os.CLD_EXITED or ended.si_status):
            # Before the worker is reaped, because then its pid may be reused.
            send_signal(worker.pid, signal.SIGKILL, group=True)
        os.waitid(os.P_PID, ended.si_pid, os.WEXITED)
        if worker is None:
            return
        local_rank, status, at = worker.local_rank, ended.si_status, time.monotonic()
        failure = self._failure_notes.of(local_rank).failure
        if ended.si_code == os.CLD_EXITED:
            self.report(messages.WorkerExited(local_rank, status, at, failure and failure[0]))
        elif status == signal.SIGKILL and worker.ended_by_lease:
            self.report(messages.EndedByLease(local_rank, at))
        else:
            self.report(messages.WorkerKilled(local_rank, status, at, failure))

    def _report_stopped_workers(self) -> None:
        """Report workers that were stopped by Ctrl-Z on a terminal or by SIGSTOP."""
        for worker in self._running:
            try:
                stopped = os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOHANG)
            except ChildProcessError:
                continue  # it has ended, and will be reaped
            if stopped is not None:
                self.report(messages.Stopped())

    def _report_failed_scripts(self) -> None:
        """Report workers whose script has failed: an exit handler or a thread may keep them alive."""
        for pid, nanoseconds in failure_notes.failed_since_last_call():
            if pid in self._workers:
                self._failure_notes.of(self._workers[pid].local_rank).write(nanoseconds, 1)
        # Only running ones, because the start must be reported first.
        for worker in self._running:
            failure = self._failure_notes.of(worker.local_rank).failure
            if failure is not None and not worker.failure_is_reported:
                worker.failure_is_reported = True
                self.report(messages.ScriptFailed(worker.local_rank, failure[0]))

    # Processes that successful workers leave running.

    def _handle_leftovers(self, *, no_children: bool) -> None:
        if self._must_report_no_children and no_children:
            self._must_report_no_children, self._leftover_signal = False, None
            self.report(messages.NoChildren())
        elif self._leftover_signal is not None:
            # Including orphans adopted since, whose parents this signal has ended.
            for pid in set(children_of(self.pid)) - self._signalled:
                send_signal(pid, self._leftover_signal)
                self._signalled.add(pid)

    # The cleanup: all workers and their descendants are killed repeatedly until none is left.

    def _begin_cleanup(self, *, is_requested: bool) -> None:
        """Kill everything until no child is left or ``SECONDS_TO_CLEAN_UP`` have passed.

        If the agent has requested it, ``AllKilled`` is then reported; otherwise the lease has expired.
        """
        self._cleanup_is_requested = is_requested
        self._cleanup_until = time.monotonic() + SECONDS_TO_CLEAN_UP
        self._kill_all()

    def _milliseconds_to_cleanup(self) -> float | None:
        if self._cleanup_until is None:
            return None
        left = max(0.0, self._cleanup_until - time.monotonic())
        return min(SECONDS_BETWEEN_CLEANUPS, left) * 1000

    def _continue_cleanup(self, *, no_children: bool) -> None:
        if self._cleanup_until is None:
            return
        if not no_children and time.monotonic() < self._cleanup_until:
            self._kill_all()
            return
        self._cleanup_until = None
        if not self._cleanup_is_requested:
            return
        survivors = [] if no_children else children_of(self.pid)
        self.report(messages.AllKilled([describe(pid) for pid in survivors]))

    def _kill_all(self) -> None:
        for pid, worker in self._workers.items():
            worker.ended_by_lease = not self._cleanup_is_requested
            send_signal(pid, signal.SIGKILL, group=True)
        kill_children()

    def _end_all(self) -> None:
        """Kill everything and wait for its end, for at most ``SECONDS_TO_CLEAN_UP``."""
        self._kill_all()
        end_children()


def _assert_never(message: Never) -> NoReturn:
    """Replace ``typing.assert_never``, because ``typing`` takes 10 ms to import."""
    raise AssertionError(message)


def _drain(connection: socket.socket) -> None:
    """Discard unread data: with it, the kernel would reset the connection instead of closing it."""
    try:
        for _ in range(_MAX_READS_AT_END):
            if not connection.recv(1 << 16, socket.MSG_DONTWAIT):
                return
    except OSError:  # there is no more data, or the connection has failed
        pass
