"""The steps between the fork and the worker's program; a step that fails is reported by its name."""

from __future__ import annotations

import _signal as signal
import os
import resource

from . import worker_signals
from .binding import bind, set_memory_policy
from .channel import frame
from .failure_notes import SIGNAL, VARIABLE
from .kernel import allow_tracing_by, close_descriptors_above, die_with_parent, execute
from .messages import FROM_WORKER, BindingWarnings, StartFailed
from .reexec import Reexecution

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from .failure_notes import FailureNote
    from .messages import FromWorker, StartWorker
    from .script import Script
    from .script_run import ScriptRun
    from .server import Server


class WorkerStart:
    """One worker's start, in the child."""

    def __init__(
        self, request: StartWorker, streams: Sequence[int], status: int, server: Server
    ) -> None:
        """Take what the start needs.

        Args:
            request: of this worker.
            streams: standard input, output and error.
            status: a pipe to the server; end of file means that the program runs.
            server: the state of the parent.

        """
        self._request = request
        self._streams = streams
        self._status = status
        self._server = server

    def run(self, script: Script | None, failure_note: FailureNote) -> ScriptRun:
        """Take every step, then execute the program, or return the run of ``script``."""
        step = ""
        try:
            for step, take in (  # noqa: B007 - the except clause uses it
                ("session", self._enter_session),
                ("signals", self._restore_signals),
                ("die with the fork server", self._die_with_server),
                ("tracing", self._let_agent_trace),
                ("binding", self._bind),
                ("output", self._take_streams),
            ):
                take()
            if script is None:
                step = "execute " + self._request.command[0]
                self._execute()
            step = "run in place " + script.path
            return self._run_in_place(script, failure_note)
        except BaseException as error:  # the child must not continue as a server
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            try:
                self._report(StartFailed(self._request.local_rank, step, why))
            finally:
                os._exit(127)

    def _report(self, message: FromWorker) -> None:
        os.write(self._status, frame(FROM_WORKER, message))

    def _enter_session(self) -> None:
        """Lead a process group: in a new session, or in the foreground of the terminal.

        A shell or another launcher that has taken the terminal meanwhile (``bg``) keeps it.
        """
        foreground, terminal = self._request.foreground_group, self._streams[0]
        if foreground is None:
            os.setsid()
            return
        os.setpgid(0, 0)
        if os.tcgetpgrp(terminal) == foreground:
            # SIGTTOU is still ignored here; otherwise this call would stop the process.
            os.tcsetpgrp(terminal, os.getpid())

    def _restore_signals(self) -> None:
        signal.set_wakeup_fd(-1)
        worker_signals.restore(self._server.ignored)

    def _die_with_server(self) -> None:
        die_with_parent(self._server.pid)

    def _let_agent_trace(self) -> None:
        """Let py-spy read this worker: it is the agent's child, not an ancestor of the worker."""
        allow_tracing_by(self._server.agent_pid)

    def _bind(self) -> None:
        """Set CPU affinity and memory policy; report differences from the plan, which are not errors."""
        cpus, memory = bind(self._request.cpus), set_memory_policy(self._request.memory)
        self._report(BindingWarnings(cpus, memory))

    def _take_streams(self) -> None:
        """Make the streams descriptors 0, 1 and 2."""
        # First move all of them above 2, where they can't be overwritten.
        self._status, *streams = map(_duplicate_above_2, (self._status, *self._streams))
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)

    def _run_in_place(self, script: Script, failure_note: FailureNote) -> ScriptRun:
        reexec = None
        if script.torch is not None:
            environment, ignored = self._environment(), self._server.ignored
            reexec = Reexecution(script.reexec_cache, self._request, environment, ignored).perform
        run = script.prepare_worker(self._request, failure_note, reexec)
        self._server.close_objects()
        # As exec would do. This includes the status pipe.
        close_descriptors_above(2)
        self._restore_limit()
        return run

    def _execute(self) -> NoReturn:
        command, environment = self._request.command, self._environment()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._request.blocked_signals)
        self._restore_limit()
        execute(command, environment)

    def _restore_limit(self) -> None:
        """Set the launcher's own limit of open files; last, because the server may have more files open."""
        resource.setrlimit(resource.RLIMIT_NOFILE, self._request.open_files)

    def _environment(self) -> dict[str, str]:
        """Return the job's environment with the variables of this worker."""
        environment = {**self._server.environment, **self._request.variables}
        startup = self._request.startup_folder
        if startup is not None:
            # Without a trailing separator, which would mean the current folder.
            paths = filter(None, (startup, environment.get("PYTHONPATH")))
            environment["PYTHONPATH"] = os.pathsep.join(paths)
            environment[VARIABLE] = f"{self._server.pid}:{int(SIGNAL)}"
        return environment


def _duplicate_above_2(descriptor: int) -> int:
    while True:
        # A duplicate of 0, 1 or 2 stays open, and keeps the number from being returned again.
        duplicate = os.dup(descriptor)
        if duplicate > 2:
            return duplicate
