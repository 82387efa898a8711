"""The suspend hook: a program that exits with 0 when the job is to be suspended.

It runs under a process that is forked from the agent, so nothing of the hook outlives the agent: if
the agent is killed, its socket is closed, and that process kills the hook and all orphans of it, as
the fork server does for workers.
"""

import os
import posix
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from clusterrun.errors import shell_line
from clusterrun.loop import Loop
from clusterrun.policy.events import Event, SuspensionRequested
from clusterrun.processes import become_subreaper, end_children, forked, status_of

READY = b"ready\n"
"""Sent to the hook's process: all ranks have saved."""

SECONDS_FOR_READY = 30.0
"""For ``COMMAND ready``: the ranks have saved and exited, but the nodes are still allocated."""

SECONDS_TO_END = 5.0
"""For the hook's process to kill the hook after its socket was closed."""


class SuspendHook:
    """Runs the hook on node 0 until the job ends."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        notice: Callable[[str], object],
        loop: Loop[Event],
    ) -> None:
        """Start it.

        Args:
            command: the hook and its arguments.
            environ: the environment of the hook.
            notice: prints a line for the user.
            loop: the agent's loop.

        """
        self._loop = loop
        self._is_lost = False
        """The hook's process has ended."""
        self._is_waited_for = True
        self._command_line = shell_line(command)
        self._notice = notice
        self._socket, theirs = socket.socketpair()
        self._pid = forked(partial(_run_hook_process, theirs, command, environ))
        theirs.close()
        loop.watch(self._socket.fileno(), self.events)

    def events(self, now: float) -> Iterable[Event]:
        """Return a ``SuspensionRequested`` if the hook has exited with 0; warn if it ended otherwise."""
        for phase, how in self._exits():
            if phase == "wait":
                self._is_waited_for = False
                if how:
                    self._warn(how)
                else:
                    yield SuspensionRequested(f"--suspend-hook {self._command_line}", now)
        if self._is_lost:
            self._loop.forget(self._socket.fileno())
            if self._is_waited_for:
                self._warn("is lost with its process")

    def call_ready(self) -> str:
        """Run ``COMMAND ready`` and wait for it; return what went wrong, "" if nothing did."""
        ready = f"{self._command_line} ready"
        deadline = time.monotonic() + SECONDS_FOR_READY
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        try:
            self._socket.sendall(READY)
        except OSError:
            return f"{ready} can't be run: its process has ended"
        while not self._is_lost and (left := deadline - time.monotonic()) > 0:
            if poll.poll(1000 * left):
                for phase, how in self._exits():
                    if phase == "ready":
                        return f"{ready} {how}" if how else ""
        return f"{ready} gave no answer in {SECONDS_FOR_READY:g} s"

    def close(self) -> None:
        """End the hook and all processes that it has started."""
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        if status_of(self._pid, SECONDS_TO_END) is None:
            os.kill(self._pid, signal.SIGKILL)

    def _warn(self, how: str) -> None:
        self._notice(
            f"warning: the suspend hook {how}; it is not started again: {self._command_line}"
        )

    def _exits(self) -> Iterator[tuple[str, str]]:
        """Yield the phase and the failure, "" or "exited with code 1", of each run that has ended."""
        try:
            data = self._socket.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        # A report is one small write, so it arrives in one piece.
        self._is_lost = not data
        for line in data.decode(errors="replace").splitlines():
            phase, _, how = line.partition(" ")
            yield phase, how


# The hook's process.


def _run_hook_process(
    agent: socket.socket, command: Sequence[str], environ: Mapping[str, str]
) -> NoReturn:
    """Run the hook until the agent closes its socket; never return to the agent's code."""
    try:
        become_subreaper(agent.fileno())
        _HookProcess(agent, command, environ).run()
    finally:
        end_children()
        os._exit(0)


class _HookProcess:
    """Starts the hook, later ``COMMAND ready``, and reports how they end."""

    def __init__(
        self, agent: socket.socket, command: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        self._agent = agent
        self._command = command
        self._environ = {**environ}
        self._running: dict[int, str] = {}
        self._woken, wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def run(self) -> None:
        """Run until the agent closes its socket or dies."""
        poll = select.poll()
        poll.register(self._agent, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        self._start("wait", self._command)
        while True:
            poll.poll()
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
            self._reap()
            try:
                request = self._agent.recv(64, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return
            if not request:
                return
            if request == READY:
                self._start("ready", (*self._command, "ready"))

    def _start(self, phase: str, command: Sequence[str]) -> None:
        """Start the command in a process group of its own, with standard output sent to standard error."""
        try:
            # With posix_spawn, which no debugger of the agent follows (see ``processes``).
            pid = posix.posix_spawnp(
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
                        # End what it has started.
                        os.killpg(ended[0], signal.SIGKILL)
                    self._report(phase, _failure(ended[1]))

    def _report(self, phase: str, how: str) -> None:
        with suppress(OSError):
            self._agent.sendall(f"{phase} {how}\n".encode())


def _failure(status: int) -> str:
    """Return "exited with code 1" or the like for a wait status; "" for success."""
    code = os.waitstatus_to_exitcode(status)
    if not code:
        return ""
    return f"exited with code {code}" if code > 0 else f"was killed by signal {-code}"
