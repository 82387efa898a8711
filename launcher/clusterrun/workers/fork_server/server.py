"""The server's loop: performs what the agent asks for, and watches the workers until the agent is gone."""

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
    kill_children,
    kill_children_by_environment,
    list_children,
    prctl,
    refused_protections,
    send_signal,
    survives,
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
    """Is called when its descriptor is ready; returns in a forked child only what that runs."""

AGENT_FD = 3
STDERR_FD = 4
"""The agent's standard error; descriptor 2 is a pipe for errors of the interpreter's start."""

_READS_AT_END = 1024
"""Of 64 KiB: more than anybody sends to an agent, and no endless loop."""

SECONDS_BETWEEN_CLEANUPS = 0.2
"""The kernel's list of children may lack one that is just becoming a child."""


def main(script_namespace: Mapping[str, object], initial_modules: Collection[str]) -> ScriptRun:
    """Serve the agent until it closes its end of the socket, then clean up and exit.

    Args:
        script_namespace: what Python puts into the namespace of a script.
        initial_modules: the modules that a script finds imported.

    Returns:
        What a forked child runs. It never returns in the server.

    """
    # Workers need not search our objects at their end.
    gc.freeze()
    gc.enable()
    # Of what the launcher's own parent left open, workers get descriptors 0, 1 and 2 only.
    close_descriptors_above(STDERR_FD)
    os.dup2(STDERR_FD, 2)
    os.close(STDERR_FD)
    # While a worker's daemon holds it, the agent would not see the server's end.
    os.set_inheritable(AGENT_FD, False)
    connection = socket.socket(fileno=AGENT_FD)
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
    """A forked worker, which leads a group."""

    def __init__(self, local_rank: int, pid: int, status: int, *, runs_python: bool) -> None:
        self.local_rank = local_rank
        self.pid = pid
        self.status: int | None = status
        """The pipe from its start; None once its program runs."""
        self.runs_python = runs_python
        self.is_failing = False
        """Its script is known to have failed, which is reported."""
        self.ended_by_lease = False
        """It was killed because the lease was over."""
        self.incoming = bytearray()
        """What its start has reported so far: frames of ``FROM_WORKER``."""


class Server:
    """Serves the agent; orphans of its workers become its children."""

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
            guard_pid: the parent of this process; None: the agent is.
            preparation: of the script that workers are to run in place.

        """
        self.pid = os.getpid()
        self.agent = agent
        self.ignored = {n for n in worker_signals.SHIELDED if signal.getsignal(n) == signal.SIG_IGN}
        """The signals that the launcher was started with as ignored."""
        self.preparation = preparation
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Many requests to start a worker may come at once, with three descriptors each.
        allow_many_open_files()
        self.agent_pid = agent_pid
        self._guard_pid = guard_pid
        self._signals: list[tuple[int, float]] = []
        self._script_ends = FailureNotes()
        self._workers: dict[int, ForkedWorker] = {}
        """By pid, until they are reaped."""
        self._remarks: set[str] = set()
        self._cleanup_until: float | None = None
        self._cleanup_is_asked = False
        self._awaits_left = False
        """The agent is to know when no child is left."""
        self._signal_to_left = 0
        """All children get it; 0: none is sent."""
        self._have_got_it: set[int] = set()
        """The children that have got that signal."""
        self._lease = WorkersLease()
        self._was_over = False
        """The lease was over at the last look."""
        self._connection: socket.socket | None = None
        """The agent's to node 0."""
        self._callbacks: dict[int, Callback] = {}
        self._poll = select.poll()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._wakeup, self._signal_arrived = os.pipe()
        for end in (self._wakeup, self._signal_arrived):
            os.set_blocking(end, False)
        self.watch(self._wakeup, self._empty_wakeup_pipe)
        self.watch(agent.fileno(), self._hear_agent)
        self._take_signals()
        # The agent blocked all signals before it executed this program.
        signal.pthread_sigmask(signal.SIG_SETMASK, [failure_notes.SIGNAL])

    def watch(self, descriptor: int, callback: Callback) -> None:
        """Call ``callback`` whenever ``descriptor`` is ready to be read."""
        self._callbacks[descriptor] = callback
        self._poll.register(descriptor, select.POLLIN)

    def forget(self, descriptor: int) -> None:
        del self._callbacks[descriptor]
        self._poll.unregister(descriptor)

    def serve(self) -> ScriptRun:
        """Serve; return in a forked child only, with what it runs."""
        while True:
            writes = select.POLLOUT if self.agent.wants_write else 0
            self._poll.modify(self.agent.fileno(), select.POLLIN | writes)
            for descriptor, _ in self._poll.poll(self._milliseconds_left()):
                callback = self._callbacks.get(descriptor)
                run = callback() if callback is not None else None
                if run is not None:
                    return run
            run = self._keep_lease()
            if run is not None:
                return run
            self._look()

    def _keep_lease(self) -> ScriptRun | None:
        """End all that runs once the lease is over; return in a forked child only, as ``serve`` does."""
        is_over = self._lease.is_over()
        if is_over:
            # If this process was stopped, a renewal may wait to be read.
            run = self._hear_agent()
            if run is not None:
                return run
            is_over = self._lease.is_over()
        if is_over and not self._was_over:
            # Those that have ended by themselves.
            self._reap()
            self._begin_cleanup(is_asked=False)
        self._was_over = is_over
        return None

    def _look(self) -> None:
        """Look at what has changed without a descriptor: signals, children, time."""
        if self._guard_pid is not None and os.getppid() != self._guard_pid:
            # What would be left then, nobody else would end.
            self._end_all()
            os._exit(1)
        while self._signals:
            self.report(messages.SignalFromWorker(*self._signals.pop(0)))
        no_children = self._reap()
        self._look_at_leftovers(no_children=no_children)
        self._go_on_with_cleanup(no_children=no_children)

    def _milliseconds_left(self) -> float | None:
        times = [
            self._lease.milliseconds_left(),
            self._milliseconds_to_cleanup(),
        ]
        return min((each for each in times if each is not None), default=None)

    # The agent.

    def _hear_agent(self) -> ScriptRun | None:
        self.agent.flush()
        received = self.agent.receive()
        if self.agent.closed:
            # Nobody needs what it has asked for last.
            self._end_all()
            self._let_go()
            # The agent waits for this; Python's own end takes 7 ms.
            os._exit(0)
        for message, _ in received:
            if isinstance(message, messages.RenewLease):
                # First: it may be newer than one that is over, and workers are to be started.
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
            return self.preparation.perform(message, self)
        if isinstance(message, messages.SendSignal):
            self.send_signal(message)
        elif isinstance(message, messages.Forward):
            self.forward(message.number)
        elif isinstance(message, messages.KillAll):
            self._awaits_left, self._signal_to_left = False, 0
            self._begin_cleanup(is_asked=True)
        elif isinstance(message, messages.KillChildrenByEnvironment):
            kill_children_by_environment(message.variables)
        elif isinstance(message, messages.WaitForChildren):
            self._awaits_left = True
        elif isinstance(message, messages.ListChildren):
            self.report(messages.Children(list_children()))
        elif isinstance(message, messages.SignalChildren):
            self._signal_to_left, self._have_got_it = message.number, set()
        elif isinstance(message, messages.Ping):
            self.report(messages.Pong())
        elif isinstance(message, messages.KeepConnection):
            self._hold(descriptors[0])
        elif not isinstance(message, messages.RenewLease):
            _assert_never(message)
        return None

    def report(self, message: messages.FromForkServer) -> None:
        self.agent.send(message)

    # The agent's connection to node 0: its end (FIN) says that no worker is left, whoever was killed.

    def _hold(self, descriptor: int) -> None:
        if self._connection is not None:
            self._connection.close()
        os.set_inheritable(descriptor, False)
        self._connection = socket.socket(fileno=descriptor)

    def _let_go(self) -> None:
        """End it, now that all has been killed; but an agent that only leaves still reads from it."""
        if self._connection is None or not self.agent.peer_is_gone():
            return
        if children_and_zombies_of(self.pid):
            # Something is left: the connection is reset.
            self._connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        else:
            _read_what_is_there(self._connection)
        self._connection.close()

    def close_objects(self) -> None:
        """Close, in a forked child, each Python object that owns a descriptor, by its own method.

        Otherwise it would close its number when it is collected, which may be a file of the script's by
        then.
        """
        self.agent.close()
        if self._connection is not None:
            self._connection.close()

    # Signals to this process.

    def _take_signals(self) -> None:
        """Let no signal end this process; report those that a worker may have sent to its parent."""
        # The end of a guard wakes it, too.
        prctl(PR_SET_PDEATHSIG, signal.SIGCHLD)
        worker_signals.shield()
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
        """Be as a worker is, whose signal handlers and limits libraries read when they are loaded.

        A scheduler's signal to all processes may end this one: then workers are spawned. It can't hear
        that the agent is gone.
        """
        signal.set_wakeup_fd(-1)
        worker_signals.restore(self.ignored)
        worker_signals.set_as_python_does()
        die_with_parent(self._guard_pid or self.agent_pid)
        resource.setrlimit(resource.RLIMIT_NOFILE, self._open_files)

    def end_imports(self) -> None:
        allow_many_open_files()
        self._take_signals()

    # Workers.

    def _start_worker(
        self, request: messages.StartWorker, streams: tuple[int, ...]
    ) -> ScriptRun | None:
        """Fork a worker, which runs the script or executes its program; return in the child only."""
        local_rank = request.local_rank
        if self._lease.is_over():
            for descriptor in streams:
                os.close(descriptor)
            self.report(messages.EndedByLease(local_rank, time.monotonic()))
            return None
        script = self.preparation.script_for(request.command)
        end = self._script_ends.of(local_rank)
        end.clear()
        if must_be_bound(request.cpus):
            import_psutil()
        # A signal that reaches the child before its handlers are set stays pending.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pipe: tuple[int, ...] = ()
        pid = -1
        try:
            pipe = os.pipe()
            pid = os.fork()
        except OSError as error:
            self.report(messages.StartFailed(local_rank, "fork", describe_fork_error(error)))
        if pid == 0:
            return WorkerStart(request, streams, pipe[1], self).run(script, end)
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
        """Read the pipe of a start, which is ready; its end of file means that the program runs."""
        if worker.status is None:
            # It has been read to its end since the poll.
            return
        chunk = os.read(worker.status, 1 << 16)
        if chunk:
            worker.incoming += chunk
            return
        self._close_status(worker)
        bound = None
        for message, _ in take_messages(messages.FROM_WORKER, worker.incoming):
            if isinstance(message, messages.StartFailed):
                del self._workers[worker.pid]
                self.report(message)
                return
            bound = message
        remark = None if bound is None else self._remark(bound)
        self.report(messages.Started(worker.local_rank, worker.pid, remark, time.monotonic()))

    def _close_status(self, worker: ForkedWorker) -> None:
        if worker.status is not None:
            self.forget(worker.status)
            os.close(worker.status)
            worker.status = None

    def _remark(self, bound: messages.Bound) -> str | None:
        """Return how the binding of a started worker differs from the plan, if it does."""
        # What the kernel refuses, it refuses to all workers alike: one remark is enough.
        remarks = [remark for remark in bound if remark and remark not in self._remarks]
        self._remarks.update(remarks)
        return "; ".join(remarks) or None

    @property
    def _running(self) -> list[ForkedWorker]:
        """The workers that are known to have executed their programs."""
        return [worker for worker in self._workers.values() if worker.status is None]

    def send_signal(self, request: messages.SendSignal) -> None:
        """Send a signal to workers that have not been reaped, or to their groups."""
        for worker in self._workers.values():
            spared = request.except_failing and self._script_ends.of(worker.local_rank).failure
            if worker.local_rank in request.local_ranks and not spared:
                send_signal(worker.pid, request.number, group=request.group)

    def forward(self, number: int) -> None:
        """Send a signal to the workers that handle or ignore it; report the others.

        A program that isn't Python may be a shell that started the real program: every process of
        its group that handles the signal gets it.
        """
        self._read_starts()
        # A worker that has not executed its program still ignores what may kill the program.
        not_handled = [it.local_rank for it in self._workers.values() if it.status is not None]
        for worker in self._running:
            members = [worker.pid] if worker.runs_python else group_of(worker.pid)
            handling = [member for member in members if survives(member, number)]
            for member in handling:
                send_signal(member, number)
            if not handling:
                not_handled.append(worker.local_rank)
        self.report(messages.NotHandled(number, not_handled))

    def _read_starts(self) -> None:
        """Read what starting workers have reported by now: a program may have printed already."""
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
        self._report_stops()
        self._report_failing()
        try:
            while True:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    return False
                self._reap_child(ended)
        except ChildProcessError:
            return True

    def _reap_child(self, ended: os.waitid_result) -> None:
        """Reap a child; if it is a worker, report its exit, and kill its group if it has failed.

        What a worker that has succeeded leaves in its group may go on, as what has left the group.
        """
        worker = self._workers.get(ended.si_pid)
        # A start must be reported before the exit.
        while worker is not None and worker.status is not None:
            self._read_start(worker)
        worker = self._workers.pop(ended.si_pid, None)
        if worker is not None and (ended.si_code != os.CLD_EXITED or ended.si_status):
            # Until the worker is reaped, no other process can have its number.
            send_signal(worker.pid, signal.SIGKILL, group=True)
        os.waitid(os.P_PID, ended.si_pid, os.WEXITED)
        if worker is None:
            return
        local_rank, status, at = worker.local_rank, ended.si_status, time.monotonic()
        failure = self._script_ends.of(local_rank).failure
        if ended.si_code == os.CLD_EXITED:
            self.report(messages.WorkerExited(local_rank, status, at, failure and failure[0]))
        elif status == signal.SIGKILL and worker.ended_by_lease:
            self.report(messages.EndedByLease(local_rank, at))
        else:
            self.report(messages.WorkerKilled(local_rank, status, at, failure))

    def reap_within(self, pid: int, seconds: float) -> int | None:
        """Reap a child that is about to end; return its ``wait`` status, None if it has not ended."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            left = deadline - time.monotonic()
            if ended or left <= 0:
                return status if ended else None
            poll.poll(left * 1000)
            self._empty_wakeup_pipe()

    def _report_stops(self) -> None:
        """Report workers that Ctrl-Z on a terminal, or a SIGSTOP of any sender, has stopped."""
        for worker in self._running:
            try:
                stopped = os.waitid(os.P_PID, worker.pid, os.WSTOPPED | os.WNOHANG)
            except ChildProcessError:
                continue  # it has ended, and is reaped next
            if stopped is not None:
                self.report(messages.Stopped())

    def _report_failing(self) -> None:
        """Report workers whose script has failed: an exit handler or a thread may hold them."""
        for pid, nanoseconds in failure_notes.failed():
            if pid in self._workers:
                self._script_ends.of(self._workers[pid].local_rank).write(nanoseconds, 1)
        # A start must be reported before.
        for worker in self._running:
            failure = self._script_ends.of(worker.local_rank).failure
            if failure is not None and not worker.is_failing:
                worker.is_failing = True
                self.report(messages.ScriptFailed(worker.local_rank, failure[0]))

    # What workers that have succeeded leave running: it may end by itself, or is asked to.

    def _look_at_leftovers(self, *, no_children: bool) -> None:
        if self._awaits_left and no_children:
            self._awaits_left, self._signal_to_left = False, 0
            self.report(messages.NoChildren())
        elif self._signal_to_left:
            # Also to those that have become children now that their parents have ended of it.
            for pid in set(children_of(self.pid)) - self._have_got_it:
                send_signal(pid, self._signal_to_left)
                self._have_got_it.add(pid)

    # The cleanup: all workers and their descendants are killed, again and again until none is left.

    def _begin_cleanup(self, *, is_asked: bool) -> None:
        """Kill everything, until no child is left, or the time is over.

        Then ``AllKilled`` is reported to an agent that has asked for this; otherwise the lease is over.
        """
        self._cleanup_is_asked = is_asked
        self._cleanup_until = time.monotonic() + SECONDS_TO_CLEAN_UP
        self._kill_all()

    def _milliseconds_to_cleanup(self) -> float | None:
        if self._cleanup_until is None:
            return None
        left = max(0.0, self._cleanup_until - time.monotonic())
        return min(SECONDS_BETWEEN_CLEANUPS, left) * 1000

    def _go_on_with_cleanup(self, *, no_children: bool) -> None:
        if self._cleanup_until is None:
            return
        if not no_children and time.monotonic() < self._cleanup_until:
            self._kill_all()
            return
        self._cleanup_until = None
        if not self._cleanup_is_asked:
            return
        survivors = [] if no_children else children_of(self.pid)
        self.report(messages.AllKilled([describe(pid) for pid in survivors]))

    def _kill_all(self) -> None:
        for pid, worker in self._workers.items():
            worker.ended_by_lease = not self._cleanup_is_asked
            send_signal(pid, signal.SIGKILL, group=True)
        kill_children()

    def _end_all(self) -> None:
        """Kill everything, and wait for its end, for a limited time."""
        self._kill_all()
        end_children()


def _assert_never(message: Never) -> NoReturn:
    """Be what that of ``typing`` is, for the type checker: that module takes 10 ms to import."""
    raise AssertionError(message)


def _read_what_is_there(connection: socket.socket) -> None:
    """Read what nobody has read: the kernel would reset the connection instead of ending it."""
    try:
        for _ in range(_READS_AT_END):
            if not connection.recv(1 << 16, socket.MSG_DONTWAIT):
                return
    except OSError:  # there is nothing more, or it has failed
        pass
