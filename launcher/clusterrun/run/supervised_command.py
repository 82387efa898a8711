"""A command of the user that runs under a process of its own.

That process is forked from the agent, so a command that hangs in a driver does not hang the agent. It kills
all that the command has started when the command ends, when the agent closes its socket, and when the agent
dies, as the fork server does for workers.
"""

import os
import posix
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, NoReturn

from clusterrun.job.declarations import Setting
from clusterrun.loop import MAX_POLL_SECONDS, NEVER
from clusterrun.processes import (
    become_subreaper,
    describe_wait_status,
    end_children,
    reap_child,
)
from clusterrun.workers.children import fork

MAX_OUTPUT_BYTES = 1 << 16
"""Of the end of the output, which is kept."""

SECONDS_TO_END = 5.0
"""For the supervising process to kill all processes of the command."""


class CommandStatus(NamedTuple):
    """How a command ended."""

    failure: str
    """For example "exited with code 1"; "" for success."""
    output: str
    """The end of its output; "" if that was not kept."""


class SupervisedCommand:
    """A running command."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        keeps_output: bool = False,
        timeout: Setting[float] | None = None,
    ) -> None:
        """Start it.

        Args:
            command: the program and its arguments.
            environ: the environment of the command.
            keeps_output: the result has the output; otherwise it goes to standard error.
            timeout: the seconds after which the command is killed.

        Raises:
            MachineError: a limit of processes is reached.

        """
        self._received = bytearray()
        self._socket, theirs = socket.socketpair()
        with theirs:
            supervise = partial(_supervise, keeps_output=keeps_output, timeout=timeout)
            self._pid = fork(lambda: supervise(theirs, command, environ))

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when ``result`` is to be called."""
        return self._socket.fileno()

    def result(self) -> CommandStatus | None:
        """Return how the command ended; None while it runs. Does not block."""
        try:
            received = self._socket.recv(MAX_OUTPUT_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            received = b""
        self._received += received
        if received:
            return None
        if not self._received:
            return CommandStatus("is lost with its process", "")
        failure, _, output = bytes(self._received).decode(errors="replace").partition("\n")
        return CommandStatus(failure, output)

    def close(self) -> None:
        """Kill the command if it runs, and all processes that it has started."""
        self._socket.close()
        if reap_child(self._pid, SECONDS_TO_END) is None:
            os.kill(self._pid, signal.SIGKILL)


# The supervising process.


def _supervise(
    agent: socket.socket,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    keeps_output: bool,
    timeout: Setting[float] | None,
) -> NoReturn:
    """Run the command until it ends or the agent closes its socket; send the agent the result."""
    try:
        become_subreaper(agent.fileno())
        failure, output = _run(agent, command, environ, keeps_output=keeps_output, timeout=timeout)
        with suppress(OSError):
            agent.sendall(f"{failure}\n".encode() + output)
            # At once: this process ends late if a child hangs in the kernel.
            agent.shutdown(socket.SHUT_WR)
    finally:
        end_children()
        os._exit(0)


def _run(
    agent: socket.socket,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    keeps_output: bool,
    timeout: Setting[float] | None,
) -> tuple[str, bytes]:
    """Return how the command failed, "" if it succeeded, and the end of its output."""
    woken, wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    output_to = writing if keeps_output else 2
    try:
        # With posix_spawn, which no debugger of the agent follows (see ``processes``).
        pid = posix.posix_spawnp(
            command[0],
            [*command],
            {**environ},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output_to, 1),
                (os.POSIX_SPAWN_DUP2, output_to, 2),
            ],
            setpgroup=0,
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    except OSError as error:
        return f"can't be executed: {error.strerror}", b""
    os.close(writing)
    poll = select.poll()
    for descriptor in (agent.fileno(), woken, reading):
        poll.register(descriptor, select.POLLIN)
    deadline = NEVER if timeout is None else time.monotonic() + timeout.value
    output = bytearray()
    while True:
        left = max(0.0, min(deadline - time.monotonic(), MAX_POLL_SECONDS))
        ready = [each for each, _ in poll.poll(1000 * left)]
        if reading in ready and not _read(reading, output):
            poll.unregister(reading)
        if woken in ready:
            os.read(woken, 4096)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            failure = describe_wait_status(status)[0] if status else ""
            break
        if agent.fileno() in ready:
            failure = "is not needed any more"
            break
        if timeout is not None and time.monotonic() >= deadline:
            failure = f"did not end within {timeout.value:g} s ({timeout.origin})"
            break
    _read(reading, output)
    return failure, bytes(output)


def _read(reading: int, output: bytearray) -> bool:
    """Append to the output, and keep its last bytes; return whether more may follow."""
    try:
        chunk = os.read(reading, MAX_OUTPUT_BYTES)
    except BlockingIOError:
        return True
    output += chunk
    del output[:-MAX_OUTPUT_BYTES]
    return bool(chunk)
