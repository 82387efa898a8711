"""``clusterrun.Workers``: calls one after the other, whose ranks start from one warm fork server."""

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from threading import Lock
from typing import Any, Self, TypeVar
from weakref import WeakSet

from clusterrun.errors import MachineError
from clusterrun.from_python.job import Job
from clusterrun.from_python.keywords import options_of
from clusterrun.from_python.pickled_call import Call
from clusterrun.user_sockets import is_private
from clusterrun.workers.fork_server.channel import Channel
from clusterrun.workers.scratch import own_folder
from clusterrun.workers.warm import connected, end_warm_server

ReturnT = TypeVar("ReturnT")

SECONDS_BETWEEN_JOB_AND_HOLD = 1.0
"""How long the server stays after the first job, until this object holds it: if the caller is killed
before that, the server is gone as soon."""


_numbers = count()
"""Of the objects of this process."""


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
        self._hold: Channel | None = None
        self._held_inode = 0
        _open.add(self)

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
        call = Call(fn, args, kwargs, changed_variables=self._changed_variables())
        job = Job.start(
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
            self._hold, self._held_inode = connected(self._socket), inode
            if self._hold is not None:
                self._hold.send({"kind": "hold"})


_open: "WeakSet[Workers]" = WeakSet()
"""Those of this process."""


def _let_go_in_child() -> None:
    """Close a forked child's copies: it may outlive the caller, with whom the servers end."""
    for workers in _open:
        workers.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)
