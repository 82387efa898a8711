"""How a worker that runs its script in place executes its program after all, from the beginning."""

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
    """What a program finds that the worker executes, as it was before the script began."""

    def __init__(
        self,
        remembered: ReexecCache,
        request: StartWorker,
        environment: Mapping[str, str],
        ignored: Collection[int],
    ) -> None:
        """Take what is there.

        Args:
            remembered: what is remembered of the script.
            request: for this worker.
            environment: of a program that is executed.
            ignored: signals that it finds ignored.

        """
        self._remembered = remembered
        self._command, self._blocked = request.command, request.blocked_signals
        self._environment = environment
        self._ignored = ignored
        self._folder = os.getcwd()
        self._cpus = affinity()
        self._umask = os.umask(0o022)
        os.umask(self._umask)
        self._pid = os.getpid()

    def perform(self, changed: str) -> NoReturn:
        """Execute the program anew, and say why; what the script has started is ended.

        Raises:
            ImportError: this is a process that the script has forked.

        """
        script = os.path.basename(self._command[3 if self._command[2] == "-m" else 2])
        why = f"{script}: {changed} before torch is imported"
        is_news = self._remembered.note(why)
        if os.getpid() != self._pid:
            # It would run the whole script.
            raise ImportError(f"{why}: run it again, and each rank imports torch itself")
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        flush_all()
        if is_news:
            text = (
                f"clusterrun: {why}: rank {self._environment['RANK']} begins anew, and later runs"
            )
            write_all(2, f"{text} import torch in each worker\n".encode())
        end_children()
        os.chdir(self._folder)
        os.umask(self._umask)
        try_to_bind(self._cpus)
        try:
            worker_signals.restore(self._ignored)
        except ValueError:  # a thread imports torch, and only the main one may do this
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        os.execvpe(self._command[0], self._command, self._environment)
