"""The process of the fork server: how it is executed, what it prints first, how it ended."""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from clusterrun.processes.reaping import status_of
from clusterrun.workers.exit_descriptions import how_it_ended, signal_of
from clusterrun.workers.fork_server.system.other_processes import describe
from clusterrun.workers.relay.tail import plain

AGENT_FD = 3
STDERR_FD = 4
"""Where the server finds our standard error; its own is a pipe to us until it is ready."""

SECONDS_TO_EXIT = 1.0
"""From the end of the connection to the end of the process, and once more after SIGKILL."""

_MOST_PRINTED = 64 << 10
_MOST_LINES = 20


class ForkServerProcess:
    """A child of ours, until it has been reaped."""

    def __init__(self, pid: int, printed: int) -> None:
        """Take its process id, and the end of the pipe that it prints its first errors to."""
        self.pid = pid
        self.is_ready = False
        self._printed = printed

    @classmethod
    def execute(cls, command: list[str], environment: Mapping[str, str], socket: int) -> Self:
        """Start it, with its end of the connection to us.

        Raises:
            OSError: the interpreter can't be executed.

        """
        # Pipes, as workers get: Python's streams remember whether what they were made on can seek.
        stdin, stdout = os.pipe2(os.O_CLOEXEC)
        # Nobody reads the errors before it is ready: an interpreter that prints more must not wait.
        printed, stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            pid = os.posix_spawnp(
                command[0],
                command,
                environment,
                # In this order: the socket was made first, so that no pipe has its numbers.
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, socket, AGENT_FD),
                    (os.POSIX_SPAWN_DUP2, stdin, 0),
                    (os.POSIX_SPAWN_DUP2, stdout, 1),
                    (os.POSIX_SPAWN_DUP2, 2, STDERR_FD),
                    (os.POSIX_SPAWN_DUP2, stderr, 2),
                ],
                # A group of its own: the terminal's signals are for the agent.
                setpgroup=0,
            )
        except OSError:
            os.close(printed)
            raise
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        return cls(pid, printed)

    def becomes_ready(self) -> str:
        """Note that it has begun to serve; return what its interpreter has printed until then."""
        self.is_ready = True
        return "\n".join(self._first_lines())

    def end(self) -> tuple[str, int]:
        """Reap it, now that it has hung up: return how it ended, and the signal that ended it or 0.

        One that does not end is killed; it is never waited for without end.
        """
        how, number = self._reap()
        if self.is_ready:
            return how, number
        return f"{how} before it was ready to start workers{_quoted(self._first_lines())}", number

    def _reap(self) -> tuple[str, int]:
        status = status_of(self.pid, SECONDS_TO_EXIT)
        if status is not None:
            return how_it_ended(status), signal_of(status)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        if status_of(self.pid, SECONDS_TO_EXIT) is None:
            return f"closed its connection, and SIGKILL does not end {describe(self.pid)}", 0
        return "closed its connection", 0

    def _first_lines(self) -> list[str]:
        """Return what it has printed so far, and read no more of it."""
        try:
            text = os.read(self._printed, _MOST_PRINTED)
        except BlockingIOError:
            text = b""
        os.close(self._printed)
        return [line for line in plain(text).splitlines() if line.strip()]


def _quoted(lines: list[str]) -> str:
    """Return what was printed, to follow a sentence."""
    if len(lines) < 2:
        return "".join(f": {line}" for line in lines)
    # The last of many lines need not be the one that matters.
    return ":" + "".join(f"\n    {line}" for line in lines[-_MOST_LINES:])
