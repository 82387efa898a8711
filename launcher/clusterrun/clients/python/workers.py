"""``Workers``: ranks that stay alive between calls; and the cell magic ``%%ranks``."""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar
from weakref import WeakSet

from clusterrun.clients.python import wire
from clusterrun.clients.python.call import FunctionCall, cell_sources, command_line, pickle_call
from clusterrun.clients.python.command import CommandProcess, Peer
from clusterrun.clients.python.failures import JobInterrupted, WorkerFailed
from clusterrun.clients.python.interrupts import DeferredInterrupts
from clusterrun.clients.python.launch import exception_of_job, remote_exception, result_of
from clusterrun.errors import UsageError
from clusterrun.loop import NEVER

ReturnT = TypeVar("ReturnT")

SECONDS_TO_ABORT = 1.0
"""If an interrupted rank does not return within this time, its collectives are aborted."""

SECONDS_TO_RETURN = 5.0
"""If a rank does not return within this time, perhaps because C code holds the GIL, all are killed."""

SECONDS_TO_REPORT = 30.0
"""How long the command may take to end after a rank has ended."""

SECONDS_TO_DETECT_EXIT = 3.0
"""If one rank is gone for this time and others are not, it has exited with code 0, which ends no job."""

SECONDS_BETWEEN_INTERRUPTS = 0.1

SECONDS_TO_EXIT = 25.0
"""For exit handlers of the ranks; as long as a job's workers have after SIGTERM by default."""

GROUPS_DESTROYED_NOTE = (
    "process groups were destroyed: ranks had not all ended the same collectives"
)

_REFUSED_OPTIONS = {
    **dict.fromkeys(("max_restarts", "spares"), "call restart() to start failed ranks again"),
    **dict.fromkeys(("hang_timeout", "on_hang"), "ranks that wait for a call do nothing"),
    "rejoin_timeout": "call restart() after a node is lost",
    **dict.fromkeys(("nnodes", "node_rank"), "use hosts, which are reached by ssh"),
}

_FIXED_OPTIONS = {
    **dict.fromkeys(("max_restarts", "spares", "rejoin_timeout", "hang_timeout"), 0),
    "on_hang": "report",
}
"""These override variables of the environment."""


class Workers:
    """Ranks that stay alive, so each call finds the state that earlier calls have left.

    Example::

        with clusterrun.Workers(4) as workers:
            workers.run(build_model)
            losses = workers.run(train_epoch, 0)
    """

    def __init__(self, nproc_per_node: int | str | None = None, **options: Any) -> None:
        """Start the ranks; return when all can be called.

        Args:
            nproc_per_node: the number of ranks, by default one for each GPU.
            options: those of ``clusterrun.launch``.

        Raises:
            TypeError: an option is unknown, or can't be used with ``Workers``.
            LauncherError: as ``clusterrun.launch``.
            WorkerFailed: a rank could not be started.

        """
        for name, why in _REFUSED_OPTIONS.items():
            if name in options:
                raise TypeError(f"Workers() takes no {name}: {why}")
        self._options = {**options, **_FIXED_OPTIONS, "nproc_per_node": nproc_per_node}
        self._lock = threading.Lock()
        self._number = 0
        self._call_to_interrupt = 0
        """The number of the call that ``interrupt`` ends."""
        self._environ: dict[str, str] = {}
        """Variables that ranks set before a call."""
        self._known_cells: set[str] = set()
        self._command: CommandProcess | None = None
        self._start()
        register_magic()

    def _start(self) -> None:
        options, on_other_hosts = command_line("Workers", self._options)
        # Ctrl-C must not reach the ranks, because it ends only the current call.
        self._command = command = CommandProcess(
            options, own_group=True, on_other_hosts=on_other_hosts
        )
        self.started_at = time.monotonic()
        """``%%ranks`` uses the newest workers."""
        open_workers.add(self)
        self._environ, self._known_cells = {}, set()
        try:
            while not command.all_connected:
                command.poll(None)
                self._check_start(command)
        except BaseException:
            self._stop()
            raise

    def _check_start(self, command: CommandProcess) -> None:
        if command.fault is not None:
            raise command.fault
        for peer in command.peers.values():
            if peer.size != peer.local_size and not command.on_other_hosts:
                raise UsageError(
                    "Workers() starts the ranks of one node, but this job has several nodes"
                    f" (WORLD_SIZE is {peer.size})",
                    'run the program once, and name the others: hosts="a,b" reaches them by ssh;'
                    " or use launch(), which each node may call",
                )
        if command.has_ended:
            command.copy_output()
            raise exception_of_job(command.report, command.exit_code(), command.peers)

    @property
    def world_size(self) -> int:
        """The number of ranks; 0 if these workers are closed."""
        return len(self._command.peers) if self._command is not None else 0

    # Calls.

    def run(self, fn: Callable[..., ReturnT], /, *args: object, **kwargs: object) -> list[ReturnT]:
        """Run ``fn(*args, **kwargs)`` on every rank, and return the results by rank.

        Global variables that functions of ``__main__`` or of a notebook assign are kept in each rank's own
        ``__main__``. A global variable that the caller also has gets the caller's value again in each call.

        Raises:
            WorkerFailed: a rank has raised an exception, and all ranks stay alive; or a rank has ended.
            KeyboardInterrupt: Ctrl-C, or a notebook's interrupt, has ended the call.
            JobInterrupted: ``interrupt`` has ended the call.
            UsageError: the call can't be pickled.
            ValueError: these workers are closed.

        """
        with self._lock:
            return self._run(FunctionCall(fn, args, kwargs), None)

    def exec(self, source: str, rank: int | None = None) -> None:
        """Execute code in ``__main__`` of every rank, or of one rank; print the value of its last line.

        Raises:
            as ``run``.
            IndexError: there is no such rank.

        """
        with self._lock:
            name = f"<ranks {self._number + 1}>"
            self._run(FunctionCall(wire.run_cell, (source, name), {}), rank)

    def _run(self, call: FunctionCall, rank: int | None) -> list[Any]:
        command = self._open_command()
        if rank is not None and rank not in command.peers:
            raise IndexError(f"there is no rank {rank}: there are {self.world_size} ranks")
        lines = cell_sources(self._known_cells)
        parts = pickle_call(call, self._environ, lines)
        if rank is None:
            self._known_cells |= lines.keys()
        self._number += 1
        chosen = [peer for _, peer in sorted(command.peers.items()) if rank in {None, peer.rank}]
        running = GroupCall(command, chosen, self._number)
        with DeferredInterrupts(command.wake) as interrupts:
            try:
                running.make(parts, interrupts, lambda: self._call_to_interrupt == self._number)
            except BaseException:
                # Ranks are gone, or do not return.
                self._stop()
                raise
            command.show_output()
            error = running.error()
            if error is not None:
                if running.must_reset_groups and self._reset_process_groups(command, interrupts):
                    error.add_note(GROUPS_DESTROYED_NOTE)
                raise error
        return [result_of(peer) for peer in chosen]

    def _reset_process_groups(
        self, command: CommandProcess, interrupts: DeferredInterrupts
    ) -> bool:
        """Make all ranks destroy their process groups, and use another MASTER_PORT from now on.

        Returns:
            Whether there were any process groups.

        """
        self._number += 1
        everyone = [peer for _, peer in sorted(command.peers.items())]
        renewal = GroupCall(command, everyone, self._number, kind=wire.ABORT)
        try:
            renewal.make([b""], interrupts, lambda: False)
            renewed = [result_of(peer) for peer in everyone]
        except BaseException:
            self._stop()
            raise
        self._environ["MASTER_PORT"] = str(renewed[0][1])
        return any(had_some for had_some, _ in renewed)

    def interrupt(self) -> None:
        """End the running call, if any; ``run`` then raises ``JobInterrupted``. Any thread may call this."""
        self._call_to_interrupt = self._number
        if self._command is not None:
            self._command.wake()

    # The ranks.

    def restart(self) -> None:
        """End the ranks, and start new ones, which import changed files.

        Raises:
            as the constructor.

        """
        with self._lock:
            self._shut_down()
            self._start()

    def close(self) -> None:
        """Let the ranks exit, which runs their exit handlers; no more calls are possible.

        After 25 s, the ranks that are left get SIGTERM.
        """
        with self._lock:
            self._shut_down()

    def _close_at_exit(self) -> None:
        """Close, but end calls of daemon threads first: they still run when the program exits."""
        while not self._lock.acquire(timeout=SECONDS_BETWEEN_INTERRUPTS):
            self.interrupt()
        try:
            self._shut_down()
        finally:
            self._lock.release()

    def _renew_lock(self) -> None:
        """In a forked child, replace the lock: the thread that holds it is only in the parent."""
        self._lock = threading.Lock()

    def _shut_down(self) -> None:
        command = self._command
        if command is None or command.is_forked_copy:
            return
        try:
            for peer in command.peers.values():
                command.send(peer, wire.EXIT, 0, [b""])
            deadline = time.monotonic() + SECONDS_TO_EXIT
            while not command.has_ended and (left := deadline - time.monotonic()) > 0:
                command.poll(left)
            command.copy_output()
        finally:
            # Ctrl-C ends the wait.
            self._stop()

    def _stop(self) -> None:
        command, self._command = self._command, None
        open_workers.discard(self)
        if command is not None:
            command.close()

    def _open_command(self) -> CommandProcess:
        if self._command is None:
            raise ValueError("these Workers are closed")
        if self._command.is_forked_copy:
            raise RuntimeError("these Workers belong to the process that this one was forked from")
        return self._command

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()


class GroupCall:
    """One call of all ranks, until each has answered."""

    def __init__(
        self, command: CommandProcess, peers: Sequence[Peer], number: int, kind: int = wire.CALL
    ) -> None:
        self._command = command
        self._peers = peers
        self._number = number
        self._kind = kind
        self._abort_at = self._give_up_at = NEVER
        self._interrupts = 0
        self._by_other_thread = False
        self._has_interrupted = False
        self._first_raised: Peer | None = None
        """The first rank whose function has raised an exception."""

    def make(
        self, parts: list[Any], interrupts: DeferredInterrupts, is_interrupted: Callable[[], bool]
    ) -> None:
        """Make the call; end it on all ranks if one raises an exception, or the user interrupts it.

        Args:
            parts: the parts of the frame.
            interrupts: delivers Ctrl-C.
            is_interrupted: returns whether another thread has interrupted the call.

        Raises:
            WorkerFailed: a rank is gone, or does not return.
            JobInterrupted: the command was ended.
            KeyboardInterrupt: the second one, or the first if ranks then do not return.

        """
        for peer in self._peers:
            peer.answer = None
        for peer in self._peers:
            self._command.send(peer, self._kind, self._number, parts)
        while left := [peer for peer in self._peers if peer.answer is None]:
            try:
                interrupts.deliver()
                if is_interrupted() and not self._by_other_thread:
                    self._by_other_thread = True
                    self._interrupt(left)
                self._wait_for_answers(left)
            except KeyboardInterrupt:
                self._interrupts += 1
                if self._interrupts > 1:
                    raise
                self._interrupt(left)

    def _wait_for_answers(self, left: Sequence[Peer]) -> None:
        """Abort collectives or give up when it is time, and wait for the next event."""
        if self._command.has_ended or any(peer.is_gone for peer in self._peers):
            raise self._disconnect_error()
        now = time.monotonic()
        if now >= self._give_up_at:
            raise self._timeout_error(left)
        if now >= self._abort_at:
            self._abort_at = NEVER
            for peer in left:
                self._command.control(peer, wire.ABORT, self._number)
        due = min(self._abort_at, self._give_up_at)
        self._command.poll(None if due == NEVER else max(0.0, due - now))
        self._interrupt_others_on_failure()

    def _interrupt_others_on_failure(self) -> None:
        # An exception after an interrupt is not a cause.
        if self._give_up_at == NEVER:
            raised = (it for it in self._peers if it.answer and it.answer[0] == wire.RAISED)
            self._first_raised = next(raised, None)
            if self._first_raised is not None:
                self._interrupt([peer for peer in self._peers if peer.answer is None])

    def _interrupt(self, left: Sequence[Peer]) -> None:
        """Interrupt the call on the ranks that are left, and limit the time to wait for them."""
        if self._give_up_at == NEVER:
            now = time.monotonic()
            self._abort_at, self._give_up_at = now + SECONDS_TO_ABORT, now + SECONDS_TO_RETURN
            self._has_interrupted = bool(left)
            for peer in left:
                self._command.control(peer, wire.INTERRUPT, self._number)

    def error(self) -> BaseException | None:
        """Return the exception to raise once all ranks have answered, if any."""
        if self._interrupts:
            return KeyboardInterrupt()
        if self._by_other_thread:
            return JobInterrupted("the call was interrupted", signal.SIGINT)
        return None if self._first_raised is None else self._worker_failed(self._first_raised)

    @property
    def must_reset_groups(self) -> bool:
        """Whether ranks were interrupted, or only some have raised an exception.

        Ranks may then have begun different collectives, so a new collective of one rank would be matched
        with an old one of another.
        """
        kinds = {peer.answer[0] for peer in self._peers if peer.answer is not None}
        return self._has_interrupted or len(kinds) > 1

    def _worker_failed(self, peer: Peer, more: str = "") -> WorkerFailed:
        text, cause = remote_exception(peer)
        report = f"rank {peer.rank} on {peer.host} failed:\n{text}{more}"
        failed = WorkerFailed(report.rstrip("\n"), peer.rank, peer.host)
        failed.__cause__ = cause
        return failed

    def _timeout_error(self, left: Sequence[Peer]) -> BaseException:
        ranks = ", ".join(str(peer.rank) for peer in left)
        named = f"rank {ranks}" if len(left) == 1 else f"ranks {ranks}"
        why = f"{named} did not come back within {SECONDS_TO_RETURN:g} s: all ranks were ended"
        # These ranks react to no other signal. Everything that the command has started is killed with it.
        self._command.kill()
        if self._first_raised is not None:
            return self._worker_failed(self._first_raised, why)
        error = KeyboardInterrupt(why)
        return error if self._interrupts else JobInterrupted(why, signal.SIGINT)

    def _disconnect_error(self) -> Exception:
        """Return the exception for a rank that is gone, or a command that has ended."""
        command = self._command
        began = time.monotonic()
        while not command.has_ended and time.monotonic() < began + SECONDS_TO_REPORT:
            command.poll(SECONDS_TO_DETECT_EXIT)
            gone = next((peer for peer in self._peers if peer.is_gone), None)
            some_live = any(not peer.is_gone for peer in self._peers)
            if gone and some_live and time.monotonic() > began + SECONDS_TO_DETECT_EXIT:
                return _exit_error(gone)
        command.copy_output()
        gone = next((peer for peer in self._peers if peer.is_gone), None)
        if not command.has_ended or (command.report is not None and not command.report.code):
            return _exit_error(gone or self._peers[0])
        return exception_of_job(command.report, command.exit_code(), command.peers)


def _exit_error(peer: Peer) -> WorkerFailed:
    text = f"rank {peer.rank} on {peer.host} exited with code 0: all ranks were ended"
    return WorkerFailed(text, peer.rank, peer.host, exit_code=0)


# Notebooks.


open_workers: "WeakSet[Workers]" = WeakSet()


@atexit.register
def _close_open_workers() -> None:
    """Let the ranks exit with the program, so their exit handlers run, too."""
    for group in list(open_workers):
        group._close_at_exit()  # noqa: SLF001 - not for users


def _renew_locks_in_child() -> None:
    for group in list(open_workers):
        group._renew_lock()  # noqa: SLF001 - not for users


os.register_at_fork(after_in_child=_renew_locks_in_child)


def register_magic() -> None:
    """Register ``%%ranks`` if IPython runs, as in a notebook."""
    ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if ipython is not None:
        load_ipython_extension(ipython)


def load_ipython_extension(ipython: Any) -> None:
    """Register ``%%ranks``, which runs a cell on all ranks of the newest open ``Workers``."""
    ipython.register_magic_function(run_cell_on_ranks, magic_kind="cell", magic_name="ranks")


def run_cell_on_ranks(line: str, cell: str) -> None:
    """Execute a cell on all ranks, or on the rank that follows ``%%ranks``.

    Raises:
        UsageError: no ``Workers`` are open, or the argument is not a rank.

    """
    groups = sorted(open_workers, key=lambda each: each.started_at)
    if not groups:
        raise UsageError("no Workers are open", "workers = clusterrun.Workers(4)")
    rank = line.strip()
    if rank and not rank.isdecimal():
        raise UsageError(f"%%ranks {rank}: give nothing for all ranks, or one rank number")
    groups[-1].exec(cell, int(rank) if rank else None)
