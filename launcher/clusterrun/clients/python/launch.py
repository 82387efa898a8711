"""What a Python program calls: ``launch``, ``spawn``, and ``Workers`` for many calls.

launch    a function runs on every rank of this node, and returns to the caller
spawn     ``torch.multiprocessing.spawn``, with the launcher behind it
Workers   calls one after the other, whose ranks start from one warm fork server
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from threading import Lock
from typing import Any, Self, TypeVar

from clusterrun.clients.python.call import FunctionCall, options_of
from clusterrun.clients.python.job import CalledJob, open_here
from clusterrun.errors import MachineError
from clusterrun.scratch import own_folder
from clusterrun.user_sockets import is_private
from clusterrun.workers.warm import end_warm_server, hold_warm_server

ReturnT = TypeVar("ReturnT")

SECONDS_BETWEEN_JOB_AND_HOLD = 1.0
"""How long the server stays after the first job, until this object holds it: if the caller is killed
before that, the server is gone as soon."""


_numbers = count()
"""Of the objects of this process."""


def launch(
    fn: Callable[..., ReturnT],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    **options: Any,
) -> list[ReturnT]:
    """Run ``fn(*args, **kwargs)`` on every rank, and return what it returns, by rank.

    Args:
        fn: any function, of a notebook or ``__main__`` too; each rank gets a copy of its own, with
            copies of the arguments and of the global variables that it uses.
        args: its arguments.
        kwargs: its arguments by name.
        options: the options of the command by their names in Python, such as ``nproc_per_node=4``,
            ``numa_binding="none"``, ``max_restarts=1``, ``env={"NCCL_DEBUG": "INFO"}``, ``nnodes=2``.

    Returns:
        The results of this node's ranks, in the order of their ranks. Tensors of GPUs are on the CPU.

    Raises:
        WorkerFailed: a rank failed; its exception is the ``__cause__``.
        JobInterrupted: a signal from outside ended the job.
        KeyboardInterrupt: Ctrl-C, or a notebook's interrupt, has ended the job.
        LauncherError: an option has an impossible value, an argument can't be pickled, the nodes did
            not join, or a node was lost.
        TypeError: an option is unknown.

    """
    job = CalledJob.start(FunctionCall(fn, args, kwargs or {}), options, called="launch")
    try:
        job.wait()
        return job.results()
    finally:
        job.close()


class SpawnContext:
    """A job that runs beside its caller, as ``spawn(..., join=False)`` returns it."""

    def __init__(self, job: CalledJob) -> None:
        self._job = job
        self._has_ended = False

    def join(self, timeout: float | None = None) -> bool:
        """Wait until all ranks have ended; print what they print.

        Args:
            timeout: the longest wait in seconds; None: no limit.

        Returns:
            Whether they have ended.

        Raises:
            as ``clusterrun.launch``.

        """
        if self._has_ended:
            return True
        try:
            self._has_ended = self._job.wait(timeout)
            if self._has_ended:
                self._job.results()
        except BaseException:
            self._has_ended = True
            raise
        finally:
            if self._has_ended:
                self._job.close()
        return self._has_ended

    def interrupt(self) -> None:
        """End the job in order, as Ctrl-C does; ``join`` then raises ``JobInterrupted``.

        For any thread, also while another one waits in ``join``. A job that has ended stays as it is.
        """
        self._job.interrupt()

    def __del__(self) -> None:
        self._job.close()


def spawn(  # noqa: PLR0913, PLR0917 - torch's arguments, in torch's order
    fn: Callable[..., object],
    args: Sequence[object] = (),
    nprocs: int | None = None,
    join: bool = True,  # noqa: FBT001, FBT002 - as above
    daemon: bool = False,  # noqa: FBT001, FBT002 - as above
    start_method: str = "spawn",
    *,
    bind_numa: bool = True,
    **options: Any,
) -> SpawnContext | None:
    """Call ``fn(local_rank, *args)`` in ``nprocs`` processes, as ``torch.multiprocessing.spawn`` does.

    Args:
        fn: the function.
        args: its arguments after the local rank.
        nprocs: the number of processes; None: one for each GPU.
        join: whether to wait until all have ended.
        daemon: accepted for torch's sake: the processes never outlive the caller.
        start_method: accepted for torch's sake; ``clusterrun`` chooses (``--start-method``).
        bind_numa: whether each process is bound to the NUMA node of its GPU.
        options: those of ``clusterrun.launch``.

    Returns:
        None, or the job if ``join`` is False.

    Raises:
        as ``clusterrun.launch``.

    """
    del daemon, start_method
    if "nproc_per_node" in options:
        raise TypeError("spawn() takes no nproc_per_node: type nprocs")
    options.setdefault("numa_binding", None if bind_numa else "none")
    options["nproc_per_node"] = nprocs
    call = FunctionCall(fn, args, {}, local_rank_first=True)
    context = SpawnContext(CalledJob.start(call, options, called="spawn"))
    if not join:
        return context
    context.join()
    return None


class Workers:
    """Runs functions on ranks: fresh processes for each call, forked from one that stays.

    That process has imported what the caller has imported, or ``preload`` names. It ends with this
    object, and with the caller however that ends. The ranks have the caller's variables of the time
    of the call; what was imported before has seen those of the time when this object was made. If a
    file that was imported has changed since the last call, or something else that a process
    inherits, that process is replaced.

    Example::

        with clusterrun.Workers(4, preload=["torch"]) as workers:
            losses = [workers.run(train, rate) for rate in (0.1, 0.01)]
    """

    def __init__(
        self,
        nproc_per_node: int | str | None = None,
        **options: Any,
    ) -> None:
        """Take the number of ranks, and the options of ``clusterrun.launch``."""
        if "keep_warm" in options:
            raise TypeError("Workers() takes no keep_warm: its process stays until it is closed")
        self._options = {**options, "nproc_per_node": nproc_per_node}
        options_of("Workers", self._options)
        self._options["keep_warm"] = SECONDS_BETWEEN_JOB_AND_HOLD
        self._environ = dict(os.environ)
        self._pid = os.getpid()
        self._lock = Lock()
        # By its name, the next launch removes what a killed caller may have left.
        self._socket = own_folder(os.environ) / f"server-{next(_numbers)}"
        self._is_closed = False
        self._hold: socket.socket | None = None
        self._held_inode = 0
        open_here.add(self)

    def run(self, fn: Callable[..., ReturnT], *args: object, **kwargs: object) -> list[ReturnT]:
        """Run ``fn(*args, **kwargs)`` on every rank, and return what it returns, by rank.

        Raises:
            as ``clusterrun.launch``.
            ValueError: this object is closed.

        """
        if self._is_closed:
            raise ValueError("these Workers are closed")
        if not is_private(self._socket.parent):
            raise MachineError(
                f"{self._socket.parent} can't be made, or is another user's",
                "set TMPDIR to a folder that you may write to",
            )
        call = FunctionCall(fn, args, kwargs, changed_variables=self._changed_variables())
        job = CalledJob.start(
            call, self._options, called="Workers", environ=self._environ, warm_socket=self._socket
        )
        try:
            job.wait()
            # Before the results are read, which may take long.
            self._hold_server()
            return job.results()
        finally:
            job.close()

    def close(self) -> None:
        """End the process that stays."""
        if os.getpid() != self._pid:
            # In a forked child: the process that stays is the caller's.
            return
        self._is_closed = True
        end_warm_server(self._socket)
        self.let_go()
        with suppress(OSError):
            self._socket.parent.rmdir()

    def let_go(self) -> None:
        """Close this process's connection to the server."""
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Not made, if an argument was wrong; closed, perhaps, when Python takes its modules apart.
        if hasattr(self, "_hold") and not self._is_closed:
            self.close()

    def _changed_variables(self) -> dict[str, tuple[str | None, str | None]]:
        """Return what has changed since this object was made: each variable before and now."""
        names = self._environ.keys() | os.environ.keys()
        both = {name: (self._environ.get(name), os.environ.get(name)) for name in names}
        return {name: (before, now) for name, (before, now) in both.items() if before != now}

    def _hold_server(self) -> None:
        """Have the server stay until this process closes the connection, or ends."""
        with self._lock:
            try:
                inode = self._socket.stat().st_ino
            except OSError:
                # The one that it held ends.
                self.let_go()
                return
            if self._hold is not None and inode == self._held_inode:
                return
            # The first, or one that has replaced another.
            self.let_go()
            self._hold, self._held_inode = hold_warm_server(self._socket), inode
