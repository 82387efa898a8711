"""The fork server's process: how it is executed, what it prints before it is ready, how it ended."""

import errno
import os
import signal
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from clusterrun.errors import UsageError
from clusterrun.processes import blocked, how_it_ended, status_of
from clusterrun.workers.children import no_process
from clusterrun.workers.fork_server.channel import Channel
from clusterrun.workers.fork_server.other_processes import describe

SERVER_FILE = Path(__file__).parent / "fork_server" / "__main__.py"

AGENT_FD = 3
STDERR_FD = 4
"""The agent's standard error in the server; the server's own is a pipe to the agent until it is ready."""

SECONDS_TO_EXIT = 1.0
"""From the end of the connection to the end of the process, and once more after SIGKILL."""

_MOST_PRINTED = 64 << 10
_MOST_LINES = 20


class ForkServerProcess:
    """A child of the agent, until it has been reaped.

    ``channel`` is the connection to it, ``printed`` the pipe that it prints its first errors to,
    ``mask`` the signals that the launcher was started with as blocked.
    """

    def __init__(
        self, pid: int, channel: Channel, printed: int, python: str, mask: Iterable[int]
    ) -> None:
        self.pid = pid
        self.channel = channel
        self.python = python
        self.mask = sorted(int(number) for number in mask)
        self.is_ready = False
        self._printed = printed

    @classmethod
    def start(
        cls,
        python: str,
        environment: Mapping[str, str],
        *,
        contain: bool = False,
        shown: Iterable[str] = (),
        stays: bool = False,
    ) -> Self:
        """Execute the fork server.

        Args:
            python: its interpreter.
            environment: the job's.
            contain: whether it and all that it starts live in a PID namespace of their own.
            shown: script and arguments, for ``ps``: forked workers have the server's command line.
            stays: whether it may stay after the job: then it does not hold our standard error open.

        Raises:
            UsageError: ``python`` can't be executed.
            MachineError: a limit allows no more processes.

        """
        ours, theirs = socket.socketpair()
        flags = [*(["--contain"] if contain else []), *(["--warm"] if stays else [])]
        command = [python, "-u", str(SERVER_FILE), *flags, "--"]
        # Until the server ignores them: a signal to the whole process tree may come at any time.
        try:
            with blocked(*signal.valid_signals()) as mask:
                pid, printed = _execute(
                    [*command, *shown], environment, theirs.fileno(), has_our_stderr=not stays
                )
        except OSError as error:
            ours.close()
            _explain_not_executed(python, error)
            raise
        finally:
            theirs.close()
        return cls(pid, Channel(ours), printed, python, mask)

    def close(self) -> None:
        """Close the connection: the server ends whatever it has started, and then itself."""
        self.channel.close()

    def becomes_ready(self) -> str:
        """Note that it serves; return what its interpreter has printed before that."""
        self.is_ready = True
        return "\n".join(self._first_lines())

    def end(self) -> tuple[str, int]:
        """Reap it after its end of the connection; return how it ended, and the signal or 0.

        It is killed if it does not end, and the wait is limited.
        """
        how, number = self._reap()
        if self.is_ready:
            return how, number
        return f"{how} before it was ready to start workers{_quoted(self._first_lines())}", number

    def _reap(self) -> tuple[str, int]:
        status = status_of(self.pid, SECONDS_TO_EXIT)
        if status is not None:
            return how_it_ended(status)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        if status_of(self.pid, SECONDS_TO_EXIT) is None:
            return f"closed its connection, and SIGKILL does not end {describe(self.pid)}", 0
        return "closed its connection", 0

    def _first_lines(self) -> list[str]:
        """Return what it has printed so far, and close the pipe."""
        # Imported only now, after the server has been started.
        from clusterrun.workers.relay.kept import plain

        try:
            text = os.read(self._printed, _MOST_PRINTED)
        except BlockingIOError:
            text = b""
        os.close(self._printed)
        return [line for line in plain(text).splitlines() if line.strip()]


def _execute(
    command: list[str], environment: Mapping[str, str], connection: int, *, has_our_stderr: bool
) -> tuple[int, int]:
    """Return the process id, and the end of the pipe that it prints its first errors to.

    Raises:
        OSError: the interpreter can't be executed.

    """
    # Pipes, as workers get: Python's streams remember whether what they were made on can seek.
    stdin, stdout = os.pipe2(os.O_CLOEXEC)
    # Not read before the server is ready: an interpreter that prints more must not wait.
    printed, stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        pid = os.posix_spawnp(
            command[0],
            command,
            environment,
            # In this order: the connection was made first, so that no pipe has its numbers.
            file_actions=[
                (os.POSIX_SPAWN_DUP2, connection, AGENT_FD),
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_DUP2, stdout, 1),
                (os.POSIX_SPAWN_DUP2, 2 if has_our_stderr else nowhere, STDERR_FD),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ],
            # A group of its own: the terminal's signals are for the agent.
            setpgroup=0,
        )
    except OSError:
        os.close(printed)
        raise
    finally:
        for descriptor in (stdin, stdout, stderr, nowhere):
            os.close(descriptor)
    return pid, printed


def _explain_not_executed(python: str, error: OSError) -> None:
    """Raise what ``error`` means: a limit of processes, or a wrong path; nothing for open files."""
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        raise no_process(error) from error
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        raise UsageError(
            f"{python}: {error.strerror}", "name a Python 3.8 or newer with --python"
        ) from error


def _quoted(lines: list[str]) -> str:
    """Return what was printed, to be put after a sentence."""
    if len(lines) < 2:
        return "".join(f": {line}" for line in lines)
    return ":" + "".join(f"\n    {line}" for line in lines[-_MOST_LINES:])
