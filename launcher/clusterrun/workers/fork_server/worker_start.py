"""The steps of a forked child on its way to its program; a step that fails is reported by its name."""

from __future__ import annotations

import _signal as signal
import os
import resource

from . import worker_signals
from .binding import bind, set_memory_policy
from .channel import frame
from .failure_notes import SIGNAL, VARIABLE
from .kernel import allow_tracing_by, close_descriptors_above, describe_exec_error, die_with_parent
from .messages import FROM_WORKER, Bound, StartFailed
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
    """One worker's start, in the child.

    ``streams`` are its standard input, output and error; ``status`` is the pipe to the server: its end
    of file means that the program runs.
    """

    def __init__(
        self, request: StartWorker, streams: Sequence[int], status: int, server: Server
    ) -> None:
        self._request = request
        self._streams = streams
        self._status = status
        self._server = server

    def run(self, script: Script | None, end: FailureNote) -> ScriptRun:
        """Take every step, then execute the program, or return the run of ``script``."""
        program = self._request.command[0]
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
                step = "execute " + program
                self._execute()
            step = "run in place " + script.path
            return self._run_in_place(script, end)
        except BaseException as error:  # the child must not go on as a server
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            try:
                self._report(StartFailed(self._request.local_rank, step, why))
            finally:
                os._exit(127)

    def _report(self, message: FromWorker) -> None:
        os.write(self._status, frame(FROM_WORKER, message))

    def _enter_session(self) -> None:
        """Lead a group: in a new session, or as the terminal's foreground.

        Where a shell (``bg``) or another launcher has the terminal by now, it keeps it.
        """
        foreground, terminal = self._request.foreground_group, self._streams[0]
        if foreground is None:
            os.setsid()
            return
        os.setpgid(0, 0)
        if os.tcgetpgrp(terminal) == foreground:
            # SIGTTOU is still ignored here, or this call would stop us.
            os.tcsetpgrp(terminal, os.getpid())

    def _restore_signals(self) -> None:
        signal.set_wakeup_fd(-1)
        worker_signals.restore(self._server.ignored)

    def _die_with_server(self) -> None:
        die_with_parent(self._server.pid)

    def _let_agent_trace(self) -> None:
        """Let py-spy read this worker: a descendant of the agent, but not an ancestor of the worker."""
        allow_tracing_by(self._server.agent_pid)

    def _bind(self) -> None:
        """Bind to the planned CPUs and memory; report what differs, which is not a failure."""
        # Checked at once: later the program may bind itself.
        cpus = bind(self._request.cpus)
        self._report(Bound(cpus or None, set_memory_policy(self._request.memory) or None))

    def _take_streams(self) -> None:
        """Make the streams descriptors 0, 1 and 2, after everything else has made room."""
        self._status, *streams = map(_above, (self._status, *self._streams))
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)

    def _run_in_place(self, script: Script, end: FailureNote) -> ScriptRun:
        reexec = None
        if script.torch is not None:
            environment, ignored = self._environment(), self._server.ignored
            reexec = Reexecution(script.reexec_cache, self._request, environment, ignored).perform
        run = script.prepare_worker(self._request, end, reexec)
        self._server.close_objects()
        # What exec would close, the status pipe included.
        close_descriptors_above(2)
        self._restore_limit()
        return run

    def _execute(self) -> NoReturn:
        command, environment = self._request.command, self._environment()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._request.blocked_signals)
        # It imports a module for that, the first time; with the limit no file might be opened.
        folders = os.get_exec_path(environment)
        self._restore_limit()
        try:
            os.execvpe(command[0], command, environment)
        except OSError as error:
            why = describe_exec_error(command[0], folders, error)
            raise OSError(error.errno, why) from None

    def _restore_limit(self) -> None:
        """Have the launcher's own limit of open files: last, as the server may have more of them open."""
        resource.setrlimit(resource.RLIMIT_NOFILE, self._request.open_files)

    def _environment(self) -> dict[str, str]:
        """Return the job's environment, which is the server's, with this worker's variables."""
        environment = {**os.environ, **self._request.variables}
        startup = self._request.startup_folder
        if startup is not None:
            # An empty PYTHONPATH counts as none; "startup:" would mean the current folder, too.
            users_own = [environment["PYTHONPATH"]] if environment.get("PYTHONPATH") else []
            environment["PYTHONPATH"] = os.pathsep.join([startup, *users_own])
            environment[VARIABLE] = f"{self._server.pid}:{int(SIGNAL)}"
        return environment


def _above(descriptor: int) -> int:
    """Return a duplicate that is not 0, 1 or 2: of these, those that are free are taken meanwhile."""
    while True:
        duplicate = os.dup(descriptor)
        if duplicate > 2:
            return duplicate
