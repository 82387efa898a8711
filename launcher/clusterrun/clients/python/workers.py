"""``Workers``: ranks that live on from call to call, and the cell magic ``%%ranks``."""

import atexit
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar
from weakref import WeakSet

from clusterrun.clients.python import wire
from clusterrun.clients.python.call import FunctionCall, cells, command_line, pickled
from clusterrun.clients.python.command import CommandProcess, Peer
from clusterrun.clients.python.failures import JobInterrupted, WorkerFailed
from clusterrun.clients.python.interrupts import DeferredInterrupts
from clusterrun.clients.python.launch import exception_of_job, remote_exception, value_of
from clusterrun.errors import UsageError
from clusterrun.loop import NEVER

ReturnT = TypeVar("ReturnT")

SECONDS_TO_ABORT = 1.0
"""So long an interrupted rank may take to leave Python code; then its collectives are broken."""

SECONDS_TO_RETURN = 5.0
"""Then the group is ended: a rank is in C code that holds Python's lock."""

SECONDS_TO_REPORT = 30.0
"""How long the command may take to end after a rank has."""

SECONDS_TO_SEE_AN_EXIT = 3.0
"""If a rank is gone for so long and others live, it has not failed: it has exited with code 0."""

SECONDS_TO_LEAVE = 5.0

GROUPS_DESTROYED = "process groups were destroyed: ranks had not all ended the same collectives"

_REFUSED = {
    **dict.fromkeys(("max_restarts", "spares"), "call restart() to start failed ranks again"),
    **dict.fromkeys(("hang_timeout", "on_hang"), "ranks that wait for a call do nothing"),
    **dict.fromkeys(("nnodes", "node_rank"), "type hosts, which are reached by ssh"),
}

_FIXED = {"max_restarts": 0, "hang_timeout": 0, "on_hang": "report"}
"""Also against a site's variables."""


class Workers:
    """Ranks that live on: calls one after the other find what earlier ones have left.

    Example::

        with clusterrun.Workers(4) as workers:
            workers.run(build_model)
            losses = workers.run(train_epoch, 0)
    """

    def __init__(self, nproc_per_node: int | str | None = None, **options: Any) -> None:
        """Start the ranks; return when all can be called.

        Args:
            nproc_per_node: the number of ranks; None: one for each GPU.
            options: those of ``clusterrun.launch``.

        Raises:
            TypeError: an option is unknown, or has no meaning here.
            LauncherError: as ``clusterrun.launch``.
            WorkerFailed: a rank could not be started.

        """
        for name, why in _REFUSED.items():
            if name in options:
                raise TypeError(f"Workers() takes no {name}: {why}")
        self._options = {**options, **_FIXED, "nproc_per_node": nproc_per_node}
        self._lock = threading.Lock()
        self._number = 0
        self._interrupts_call = 0
        """The call that ``interrupt`` is to end."""
        self._environ: dict[str, str] = {}
        """What ranks set before a call."""
        self._known_cells: set[str] = set()
        self._command: CommandProcess | None = None
        self._start()
        register_magic()

    def _start(self) -> None:
        words, on_other_hosts = command_line("Workers", self._options)
        # Ctrl-C must not reach the ranks: the caller interrupts a call, not the group.
        self._command = command = CommandProcess(
            words, own_group=True, on_other_hosts=on_other_hosts
        )
        self.opened = time.monotonic()
        """Of several groups, ``%%ranks`` takes the newest one."""
        open_workers.add(self)
        self._environ, self._known_cells = {}, set()
        try:
            while not (command.has_ended or command.are_complete):
                command.turn(None)
                self._check_ranks(command)
            self._check_start(command)
        except BaseException:
            self._end()
            raise

    def _check_start(self, command: CommandProcess) -> None:
        if command.has_ended:
            command.copy_output()
            raise exception_of_job(command.report, command.exit_code(), command.peers)

    def _check_ranks(self, command: CommandProcess) -> None:
        if command.fault is not None:
            raise command.fault
        for peer in command.peers.values():
            if peer.size != peer.local_size and not command.on_other_hosts:
                raise UsageError(
                    f"Workers() has the ranks of one node, and this is one of several"
                    f" (WORLD_SIZE is {peer.size})",
                    'run the program once, and name the others: hosts="a,b" reaches them by ssh;'
                    " or type launch(), which each node may call",
                )

    @property
    def world_size(self) -> int:
        """How many ranks there are; 0: these workers are closed."""
        return len(self._command.peers) if self._command is not None else 0

    # Calls.

    def run(self, fn: Callable[..., ReturnT], *args: object, **kwargs: object) -> list[ReturnT]:
        """Run ``fn(*args, **kwargs)`` on every rank, and return what it returns, by rank.

        What functions of ``__main__`` or of a notebook assign to global variables stays, in each rank's
        own ``__main__``; a global variable that the caller has too is the caller's again in each call.

        Raises:
            WorkerFailed: a rank has raised an exception, then the group lives; or a rank has ended.
            KeyboardInterrupt: Ctrl-C, or a notebook's interrupt, has ended the call.
            JobInterrupted: ``interrupt`` has ended the call.
            UsageError: a part of the call can't be pickled.
            ValueError: these workers are closed.

        """
        with self._lock:
            return self._run(FunctionCall(fn, args, kwargs), None)

    def exec(self, source: str, rank: int | None = None) -> None:
        """Execute Python code in ``__main__`` of every rank, or of one; print the value of its last line.

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
        lines = cells(self._known_cells)
        parts = pickled(call, self._environ, lines)
        self._known_cells |= lines.keys()
        self._number += 1
        chosen = [peer for _, peer in sorted(command.peers.items()) if rank in {None, peer.rank}]
        running = GroupCall(command, chosen, self._number)
        with DeferredInterrupts(command.wake) as held:
            try:
                running.make(parts, held, lambda: self._interrupts_call == self._number)
            except BaseException:
                # Ranks are gone, or don't come back.
                self._end()
                raise
            command.show_output()
            error = running.error()
            if error is not None:
                if running.is_uneven and self._renew_groups(command, held):
                    error.add_note(GROUPS_DESTROYED)
                raise error
        return [value_of(peer) for peer in chosen]

    def _renew_groups(self, command: CommandProcess, held: DeferredInterrupts) -> bool:
        """Have all ranks drop their process groups, and meet at another port from now on.

        Returns:
            Whether there were some.

        """
        self._number += 1
        everyone = [peer for _, peer in sorted(command.peers.items())]
        kept = [peer.answer for peer in everyone]
        renewal = GroupCall(command, everyone, self._number, kind=wire.BREAK)
        try:
            renewal.make([b""], held, lambda: False)
            renewed = [value_of(peer) for peer in everyone]
        except BaseException:
            self._end()
            raise
        for peer, answer in zip(everyone, kept, strict=True):
            peer.answer = answer
        self._environ["MASTER_PORT"] = str(renewed[0][1])
        return any(had_some for had_some, _ in renewed)

    def interrupt(self) -> None:
        """End the call that runs, if one does; ``run`` then raises ``JobInterrupted``. For any thread."""
        self._interrupts_call = self._number
        if self._command is not None:
            self._command.wake()

    # The group.

    def restart(self) -> None:
        """End the ranks, and start new ones: changed files are read again.

        Raises:
            as the constructor.

        """
        with self._lock:
            self._leave()
            self._start()

    def close(self) -> None:
        """Let the ranks end: their exit handlers run. Closed workers make no more calls."""
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        command = self._command
        if command is None or command.is_forked_copy:
            return
        for peer in command.peers.values():
            command.send(peer, wire.LEAVE, 0, [b""])
        deadline = time.monotonic() + SECONDS_TO_LEAVE
        while not command.has_ended and (left := deadline - time.monotonic()) > 0:
            command.turn(left)
        command.copy_output()
        self._end()

    def _end(self) -> None:
        command, self._command = self._command, None
        open_workers.discard(self)
        if command is not None:
            command.close()

    def _open_command(self) -> CommandProcess:
        if self._command is None:
            raise ValueError("these Workers are closed")
        if self._command.is_forked_copy:
            raise RuntimeError("these Workers belong to the process of which this one is a fork")
        return self._command

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self.close()


class GroupCall:
    """One call of ranks that live on, until each has answered."""

    def __init__(
        self, command: CommandProcess, peers: Sequence[Peer], number: int, kind: int = wire.CALL
    ) -> None:
        self._command = command
        self._peers = peers
        self._number = number
        self._kind = kind
        self._breaks_at = self._gives_up_at = NEVER
        self._interrupts = 0
        self._by_other_thread = False
        self._has_interrupted = False
        self._first: Peer | None = None
        """The rank that has raised first."""

    def make(
        self, parts: list[Any], held: DeferredInterrupts, is_interrupted: Callable[[], bool]
    ) -> None:
        """Make the call; end it for all ranks if one raises, or the user interrupts it.

        Args:
            parts: of the frame.
            held: how Ctrl-C comes.
            is_interrupted: whether another thread wants the call to end.

        Raises:
            WorkerFailed: a rank is gone, or does not come back.
            JobInterrupted: the command was ended.
            KeyboardInterrupt: a second one, or ranks do not come back after the first.

        """
        for peer in self._peers:
            peer.answer = None
        for peer in self._peers:
            self._command.send(peer, self._kind, self._number, parts)
        while left := [peer for peer in self._peers if peer.answer is None]:
            try:
                held.deliver()
                if is_interrupted() and not self._by_other_thread:
                    self._by_other_thread = True
                    self._interrupt(left)
                self._go_on(left)
            except KeyboardInterrupt:
                self._interrupts += 1
                if self._interrupts > 1:
                    raise
                self._interrupt(left)

    def _go_on(self, left: Sequence[Peer]) -> None:
        """Do what is due, and wait for what happens next."""
        if self._command.has_ended or any(peer.is_gone for peer in self._peers):
            raise self._loss()
        now = time.monotonic()
        if now >= self._gives_up_at:
            raise self._stuck(left)
        if now >= self._breaks_at:
            self._breaks_at = NEVER
            for peer in left:
                self._command.control(peer, wire.BREAK, self._number)
        due = min(self._breaks_at, self._gives_up_at)
        self._command.turn(None if due == NEVER else max(0.0, due - now))
        self._note_first()

    def _note_first(self) -> None:
        # What a call raises that is being ended is not a cause.
        if self._gives_up_at == NEVER:
            raised = (it for it in self._peers if it.answer and it.answer[0] == wire.RAISED)
            self._first = next(raised, None)
            if self._first is not None:
                self._interrupt([peer for peer in self._peers if peer.answer is None])

    def _interrupt(self, left: Sequence[Peer]) -> None:
        """End the call on the other ranks; those that don't come back are waited for, but not for long."""
        if self._gives_up_at == NEVER:
            now = time.monotonic()
            self._breaks_at, self._gives_up_at = now + SECONDS_TO_ABORT, now + SECONDS_TO_RETURN
            self._has_interrupted = bool(left)
            for peer in left:
                self._command.control(peer, wire.INTERRUPT, self._number)

    def error(self) -> BaseException | None:
        """Return what the call raises, now that all have answered; None: it has returned."""
        if self._interrupts:
            return KeyboardInterrupt()
        if self._by_other_thread:
            return JobInterrupted("the call was interrupted", signal.SIGINT)
        return None if self._first is None else self._raised(self._first)

    @property
    def is_uneven(self) -> bool:
        """Whether ranks were interrupted, or some have raised and others not.

        They may have begun different collectives, which are of no use any more: a new one would be taken
        for an old one of another rank.
        """
        kinds = {peer.answer[0] for peer in self._peers if peer.answer is not None}
        return self._has_interrupted or len(kinds) > 1

    def _raised(self, peer: Peer, more: str = "") -> WorkerFailed:
        text, cause = remote_exception(peer)
        report = f"rank {peer.rank} on {peer.host} failed:\n{text}{more}"
        failed = WorkerFailed(report.rstrip("\n"), peer.rank, peer.host)
        failed.__cause__ = cause
        return failed

    def _stuck(self, left: Sequence[Peer]) -> BaseException:
        ranks = ", ".join(str(peer.rank) for peer in left)
        named = f"rank {ranks}" if len(left) == 1 else f"ranks {ranks}"
        why = f"{named} did not come back within {SECONDS_TO_RETURN:g} s: all ranks were ended"
        # They hear no other signal, and all that the command has started ends with it.
        self._command.kill()
        if self._first is not None:
            return self._raised(self._first, why)
        error = KeyboardInterrupt(why)
        return error if self._interrupts else JobInterrupted(why, signal.SIGINT)

    def _loss(self) -> Exception:
        """Return what it means that a rank, or the command, is gone."""
        command = self._command
        began = time.monotonic()
        while not command.has_ended and time.monotonic() < began + SECONDS_TO_REPORT:
            command.turn(SECONDS_TO_SEE_AN_EXIT)
            gone = next((peer for peer in self._peers if peer.is_gone), None)
            some_live = any(not peer.is_gone for peer in self._peers)
            if gone and some_live and time.monotonic() > began + SECONDS_TO_SEE_AN_EXIT:
                return _left_early(gone)
        command.copy_output()
        gone = next((peer for peer in self._peers if peer.is_gone), None)
        if not command.has_ended or (command.report is not None and not command.report.code):
            return _left_early(gone or self._peers[0])
        return exception_of_job(command.report, command.exit_code(), command.peers)


def _left_early(peer: Peer) -> WorkerFailed:
    text = f"rank {peer.rank} on {peer.host} exited with code 0: all ranks were ended"
    return WorkerFailed(text, peer.rank, peer.host, exit_code=0)


# Notebooks.


open_workers: "WeakSet[Workers]" = WeakSet()


@atexit.register
def _close_all() -> None:
    """Let the ranks end as the program does: their exit handlers run, too."""
    for group in list(open_workers):
        group.close()


def register_magic() -> None:
    """Register ``%%ranks`` if this is a notebook, or another IPython."""
    ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if ipython is not None:
        load_ipython_extension(ipython)


def load_ipython_extension(ipython: Any) -> None:
    """Register ``%%ranks``: a cell that runs on all ranks of the newest open ``Workers``."""
    ipython.register_magic_function(run_cell_on_ranks, magic_kind="cell", magic_name="ranks")


def run_cell_on_ranks(line: str, cell: str) -> None:
    """Execute a cell on all ranks, or on the one that follows ``%%ranks``.

    Raises:
        UsageError: no ``Workers`` are open, or what follows is not a rank.

    """
    groups = sorted(open_workers, key=lambda each: each.opened)
    if not groups:
        raise UsageError("no Workers are open", "workers = clusterrun.Workers(4)")
    rank = line.strip()
    if rank and not rank.isdecimal():
        raise UsageError(f"%%ranks {rank}: give nothing for all ranks, or one rank number")
    groups[-1].exec(cell, int(rank) if rank else None)
