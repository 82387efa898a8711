"""The suspend hook as the agent uses it: a program that exits with 0 when a suspension is wanted."""

import os
import select
import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from clusterrun.loop import Loop
from clusterrun.policy.events import Event, SuspensionWanted
from clusterrun.processes import forked, status_of

SECONDS_FOR_READY = 30.0
"""How long ``COMMAND ready`` may take: the ranks have saved and ended, and nodes are still held."""

SECONDS_TO_END = 5.0
"""For the hook's process to kill the hook, once its socket is closed."""


class SuspendHook:
    """Runs the hook in a process of its own, on node 0, until the job ends."""

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
            environ: the job's environment.
            notice: prints a line for people.
            loop: the agent's.

        """
        self._loop = loop
        self.lost = False
        self._is_waited_for = True
        self._words = shlex.join(command)
        self._notice = notice
        self._socket, theirs = socket.socketpair()
        self._pid = forked(partial(_live_as_hook_process, self._socket, theirs, command, environ))
        theirs.close()
        loop.watch(self._socket.fileno(), self.events)

    def events(self, now: float) -> Iterable[Event]:
        """Return a ``SuspensionWanted`` once the hook has exited with 0; print any other end."""
        for phase, how in self._ends():
            if phase == "wait":
                self._is_waited_for = False
                if how:
                    self._warn(how)
                else:
                    yield SuspensionWanted(f"--suspend-hook {self._words}", now)
        if self.lost:
            self._loop.forget(self._socket.fileno())
            if self._is_waited_for:
                self._warn("is lost with its process")

    def call_ready(self) -> str:
        """Run ``COMMAND ready`` to its end; return what went wrong, "" if nothing did."""
        from clusterrun.network.hook_process import READY

        problem = f"gave no answer in {SECONDS_FOR_READY:g} s"
        deadline = time.monotonic() + SECONDS_FOR_READY
        try:
            self._socket.sendall(READY)
        except OSError:
            return f"{self._words} ready can't be run: its process has ended"
        while not self.lost and (left := deadline - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left)[0]:
                for phase, how in self._ends():
                    if phase == "ready":
                        return f"{self._words} ready {how}" if how else ""
        return f"{self._words} ready {problem}"

    def close(self) -> None:
        """End the hook, and all that it has started."""
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        if status_of(self._pid, SECONDS_TO_END) is None:
            os.kill(self._pid, signal.SIGKILL)

    def _warn(self, how: str) -> None:
        self._notice(f"warning: the suspend hook {how}; it is not started again: {self._words}")

    def _ends(self) -> Iterator[tuple[str, str]]:
        """Yield the phase and "" or "exited with code 1" of each run that has ended."""
        try:
            data = self._socket.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        # A report is one write of some bytes, so that it arrives whole.
        self.lost = not data
        for line in data.decode(errors="replace").splitlines():
            phase, _, how = line.partition(" ")
            yield phase, how


def _live_as_hook_process(
    ours: socket.socket, agent: socket.socket, command: Sequence[str], environ: Mapping[str, str]
) -> None:
    ours.close()
    # Imported in the child only.
    from clusterrun.network.hook_process import live_as_hook_process

    live_as_hook_process(agent, command, environ)
