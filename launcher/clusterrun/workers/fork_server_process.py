"""The fork server's process: its start, what its interpreter prints before it is ready, and its end."""

import errno
import os
import posix
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.processes import blocked, describe_wait_status, python_options, reap_child
from clusterrun.workers.children import process_limit_error
from clusterrun.workers.fork_server import messages
from clusterrun.workers.fork_server.channel import HelperChannel
from clusterrun.workers.fork_server.kernel import (
    SECONDS_BETWEEN_CHECKS,
    SECONDS_TO_CLEAN_UP,
    children_of,
    describe,
    send_signal,
    state_and_parent,
)

SERVER_FILE = Path(__file__).parent / "fork_server" / "__main__.py"

SECONDS_TO_EXIT = 1.0
"""Time to exit after the connection has ended, and again after SIGKILL."""

SECONDS_BETWEEN_KILLS = 0.2

HINT = "give a Python 3.8 or newer with --python"

_MAX_PRINTED = 64 << 10
_MAX_LINES = 20


class ServerCommand(Struct, frozen=True):
    """How the fork server is executed."""

    python: str
    """The workers' interpreter."""
    variables: Mapping[str, str]
    """The job's environment."""
    is_guarded: bool = False
    """Whether a guard process is its parent and kills what it leaves; its imports may hang."""
    shown: tuple[str, ...] = ()
    """Script and arguments for ``ps``, because forked workers have the server's command line."""


class ServerProcess:
    """A child of the agent that executes the fork server, until it has been reaped."""

    def __init__(self, command: ServerCommand) -> None:
        """Start it.

        Raises:
            UsageError: the interpreter can't be executed.
            MachineError: a limit allows no more processes.

        """
        self.command = command
        words = [command.python, python_options("-u"), str(SERVER_FILE), str(os.getpid())]
        words += ["--guarded", "--"] if command.is_guarded else ["--"]
        ours, theirs = socket.socketpair()
        try:
            # A signal to the whole process tree may come before the server ignores signals.
            with blocked(*signal.valid_signals()):
                self.pid, printed = _execute(
                    [*words, *command.shown], command.variables, theirs.fileno()
                )
        except OSError as error:
            ours.close()
            _raise_exec_error(command.python, error)
            raise
        finally:
            theirs.close()
        self._printed: int | None = printed
        """Read end of its standard error; None once read."""
        self.channel = HelperChannel(ours, messages.TO_FORK_SERVER, messages.FROM_FORK_SERVER)
        self.is_ready = False

    def set_ready(self) -> str:
        """Note that it is ready; return what its interpreter has printed so far."""
        self.is_ready = True
        return "\n".join(self._printed_lines())

    def reap(self) -> tuple[str, int]:
        """Reap it after its connection has ended; return how it ended, and the signal or 0.

        A process that does not exit in time is killed.

        Raises:
            UsageError: it exited before it was ready.

        """
        how, number = self._how_it_ended()
        if self.is_ready:
            return how, number
        how = f"{how} before it was ready to start workers{_quoted(self._printed_lines())}"
        if not number:
            raise UsageError(f"{self.command.python} {how}", HINT)
        return how, number

    def _how_it_ended(self) -> tuple[str, int]:
        status = reap_child(self.pid, SECONDS_TO_EXIT)
        if status is not None:
            return describe_wait_status(status)
        if self._kill() is None:
            return f"closed its connection, and SIGKILL does not end {describe(self.pid)}", 0
        return "closed its connection", 0

    def end(self) -> int | None:
        """End it, and return its ``wait`` status; None: it hangs in the kernel."""
        # It may be exiting if it has closed its connection.
        status = reap_child(self.pid, SECONDS_TO_EXIT if self.channel.closed else 0.0)
        if status is None:
            # Before the channel is closed, which it would take for the end of this process.
            status = self._kill()
        self.channel.close()
        if not self.is_ready:
            self._printed_lines()
        return status

    def kill_with_workers(self, server: int) -> None:
        """Kill an unresponsive server and its workers, even if it hangs in the kernel (state D).

        ``server`` is the pid of the server itself, which differs from ``pid`` if that is its guard.
        """
        if server != self.pid:
            self._stop_guard()
            # The stopped guard can't reap the server, so its pid has not been reused.
            if state_and_parent(server)[1] == self.pid:
                send_signal(server, signal.SIGKILL)
        send_signal(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + SECONDS_TO_CLEAN_UP
        while time.monotonic() < deadline:
            # The kernel kills the workers when it ends.
            reap_child(self.pid, SECONDS_BETWEEN_KILLS)
            state, parent = state_and_parent(server)
            if state in "ZX" or parent not in {self.pid, os.getpid()}:
                return
            # The killed server reaps nothing any more, so its children's pids have not been reused.
            for child in children_of(server):
                send_signal(child, signal.SIGKILL)
            time.sleep(SECONDS_BETWEEN_KILLS)

    def _stop_guard(self) -> None:
        send_signal(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + SECONDS_TO_EXIT
        while state_and_parent(self.pid)[0] not in "TtZX" and time.monotonic() < deadline:
            time.sleep(SECONDS_BETWEEN_CHECKS)

    def _kill(self) -> int | None:
        """Kill it; return as ``end`` does."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return reap_child(self.pid, SECONDS_TO_EXIT)

    def _printed_lines(self) -> list[str]:
        """Return what it has printed so far, and close the pipe."""
        if self._printed is None:
            return []
        text = b""
        with suppress(BlockingIOError):
            text = os.read(self._printed, _MAX_PRINTED)
        os.close(self._printed)
        self._printed = None
        if not text:
            return []
        # Most interpreters print nothing.
        from clusterrun.workers.relay.recent_output import plain

        return [line for line in plain(text).splitlines() if line.strip()]


def _execute(
    command: list[str], environment: Mapping[str, str], connection: int
) -> tuple[int, int]:
    """Return the process id, and the read end of the pipe that is its standard error.

    Raises:
        OSError: the interpreter can't be executed.

    """
    # Pipes, as workers get: Python's streams remember whether their file was seekable when opened.
    stdin, stdout = os.pipe2(os.O_CLOEXEC)
    # Non-blocking: it is not read before the server is ready, and an interpreter may print much.
    printed, stderr = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # Not the function of ``os``: a debugger must not follow into the fork server (see ``processes``).
        pid = posix.posix_spawnp(
            command[0],
            command,
            environment,
            # The connection is first: it was made first, so no pipe has the numbers 3 and 4.
            file_actions=[
                (os.POSIX_SPAWN_DUP2, connection, messages.AGENT_FD),
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_DUP2, stdout, 1),
                (os.POSIX_SPAWN_DUP2, 2, messages.STDERR_FD),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ],
            # Its own process group: the terminal's signals are for the agent.
            setpgroup=0,
        )
    except OSError:
        os.close(printed)
        raise
    finally:
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
    return pid, printed


def _raise_exec_error(python: str, error: OSError) -> None:
    """Raise what ``error`` means: a process limit or a bad path; return for a limit of open files."""
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        raise process_limit_error(error) from error
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        raise UsageError(f"{python}: {error.strerror}", HINT) from error


def _quoted(lines: Iterable[str]) -> str:
    """Format printed lines to follow a sentence."""
    lines = list(lines)
    if len(lines) < 2:
        return "".join(f": {line}" for line in lines)
    return ":" + "".join(f"\n    {line}" for line in lines[-_MAX_LINES:])
