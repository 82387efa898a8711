"""The process that runs the suspend hook, so that nothing of the hook outlives the agent.

It is forked from the agent, which may be killed: then its socket is closed, and this process kills
the hook and all that re-parented to it, as the fork server does for workers.
"""

import ctypes
import os
import selectors
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from clusterrun.processes import close_all_but

READY = b"ready\n"
"""From the agent: all ranks have saved."""

PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""


def live_as_hook_process(
    agent: socket.socket, command: Sequence[str], environ: Mapping[str, str]
) -> NoReturn:
    """Run the hook until the agent closes its socket; never return to the agent's code."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        close_all_but({0, 1, 2, agent.fileno()})
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        HookProcess(agent, command, environ).run()
    finally:
        _kill_all()
        os._exit(0)


class HookProcess:
    """Starts the hook, reports how it ends, and starts it again as ``COMMAND ready``."""

    def __init__(
        self, agent: socket.socket, command: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        self._agent = agent
        self._command = command
        self._environ = {**environ}
        self._running: dict[int, str] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(agent, selectors.EVENT_READ)
        self._woken, wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._woken, selectors.EVENT_READ)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def run(self) -> None:
        """Return once the agent has closed its socket or is dead."""
        self._start("wait", self._command)
        while True:
            self._selector.select()
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
            self._reap()
            try:
                order = self._agent.recv(64, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return
            if not order:
                return
            if order == READY:
                self._start("ready", (*self._command, "ready"))

    def _start(self, phase: str, command: Sequence[str]) -> None:
        """Start the command in a session of its own; what it prints goes to standard error."""
        try:
            pid = os.posix_spawnp(
                command[0],
                [*command],
                self._environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, 2, 1),
                ],
                setpgroup=0,
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        except OSError as error:
            self._report(phase, f"can't be executed: {error.strerror}")
            return
        self._running[pid] = phase

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                phase = self._running.pop(ended[0], "")
                if phase:
                    with suppress(ProcessLookupError):
                        # What it has started ends with it.
                        os.killpg(ended[0], signal.SIGKILL)
                    self._report(phase, _how_it_ended(ended[1]))

    def _report(self, phase: str, how: str) -> None:
        with suppress(OSError):
            self._agent.sendall(f"{phase} {how}\n".encode())


def _how_it_ended(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if not code:
        return ""
    return f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"


def _kill_all() -> None:
    """Kill the hook and all that re-parented to this process."""
    # At the start it would delay the first worker.
    import psutil

    # What a killed process has started becomes a child of this one.
    while children := psutil.Process().children():
        for child in children:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
