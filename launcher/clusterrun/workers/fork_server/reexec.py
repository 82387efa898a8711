"""How a worker that runs its script in place executes its program after all: the script starts again."""

from __future__ import annotations

import _signal as signal
import os
import sys

from . import worker_signals
from .binding import try_to_bind
from .kernel import affinity, end_children, flush_all
from .script_run import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import NoReturn

    from .messages import StartWorker
    from .preloading.reexec_cache import ReexecCache


class Reexecution:
    """The state of a worker before its script begins, for a later execution of its program."""

    def __init__(
        self,
        cache: ReexecCache,
        request: StartWorker,
        environment: Mapping[str, str],
        ignored: Collection[int],
    ) -> None:
        """Save the state of this process.

        Args:
            cache: of the script.
            request: of this worker.
            environment: for the executed program.
            ignored: signals that it finds ignored.

        """
        self._cache = cache
        self._command, self._blocked = request.command, request.blocked_signals
        self._environment = environment
        self._ignored = ignored
        self._folder = os.getcwd()
        self._cpus = affinity()
        self._umask = os.umask(0o022)
        os.umask(self._umask)
        self._pid = os.getpid()

    def perform(self, changed: str) -> NoReturn:
        """Kill the processes that the script has started, and execute the program; print why.

        ``changed`` names what the script has changed before it imports torch.

        Raises:
            ImportError: the script has forked this process, which would run the whole script.

        """
        script = os.path.basename(self._command[3 if self._command[2] == "-m" else 2])
        why = f"{script}: {changed} before torch is imported"
        is_new = self._cache.store(why)
        if self._cache.why() is not None:
            later = "later runs import torch in each worker"
            again = "again, and each rank imports torch itself"
        else:
            later = "later runs do the same, because nothing can be cached: give --preload none"
            again = "with --preload none"
        if os.getpid() != self._pid:
            raise ImportError(f"{why}: run it {again}")
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        flush_all()
        if is_new:
            rank = self._environment["RANK"]
            write_all(2, f"clusterrun: {why}: rank {rank} starts over, and {later}\n".encode())
        end_children()
        os.chdir(self._folder)
        os.umask(self._umask)
        try_to_bind(self._cpus)
        try:
            worker_signals.restore(self._ignored)
        except ValueError:  # only the main thread may do this
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        os.execvpe(self._command[0], self._command, self._environment)
