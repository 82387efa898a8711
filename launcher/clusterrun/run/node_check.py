"""``--check COMMAND``: a shell command of the user that decides whether this node may be in the job.

It runs under a process of its own, like the suspend hook: a driver that hangs must not hang the job, and
no process of the command outlives the command or the agent.
"""

import os
import posix
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import NoReturn

from clusterrun.bounds import as_line
from clusterrun.loop import Loop
from clusterrun.policy.events import Event, NodeChecked
from clusterrun.policy.tracebacks import plain_lines
from clusterrun.processes import become_subreaper, describe_wait_status, end_children, status_of
from clusterrun.run.node import LocalNode
from clusterrun.workers.children import fork

VARIABLE = "CLUSTERRUN_CHECK"
"""Removed from the command's environment, because the command may be a clusterrun itself."""

LAST_LINES = 20
"""Of the output, printed if the command fails."""

MAX_KEPT = 1 << 16
"""Bytes of the output, from its end."""

MAX_POLL_SECONDS = 3600.0
"""``poll`` takes milliseconds as a C int, which limits its timeout."""

SECONDS_TO_END = 5.0
"""For the command's process to kill all processes of the command."""


class NodeCheck:
    """Runs the command before this node joins, and after one of its workers has failed first."""

    def __init__(self, node: LocalNode, say: Callable[[str], object], loop: Loop[Event]) -> None:
        """``say`` prints text for the user."""
        joining = node.job.join
        self._command = joining.check
        self._environ = {name: each for name, each in node.environment.items() if name != VARIABLE}
        self._seconds = joining.rdzv_timeout
        self._say = say
        self._loop = loop
        self._socket: socket.socket | None = None
        self._pid = 0
        self._result = bytearray()

    def start(self) -> None:
        """Start the command unless it is running; a ``NodeChecked`` follows.

        Raises:
            MachineError: a limit of processes is reached.

        """
        if self._socket is not None:
            return
        self._result.clear()
        self._socket, theirs = socket.socketpair()
        run = partial(_run_check, theirs, self._command, self._environ, self._seconds)
        self._pid = fork(run)
        theirs.close()
        self._loop.watch(self._socket.fileno(), self.events)

    def close(self) -> None:
        """End the command if it runs, and all processes that it has started."""
        if self._socket is None:
            return
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        self._socket = None
        if status_of(self._pid, SECONDS_TO_END) is None:
            os.kill(self._pid, signal.SIGKILL)

    def events(self, now: float) -> Iterable[Event]:
        """Return a ``NodeChecked`` once the command has ended; print its last lines if it failed."""
        if self._socket is None:
            return
        try:
            received = self._socket.recv(MAX_KEPT, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionResetError:
            received = b""
        self._result += received
        if not received:
            self.close()
            yield NodeChecked(self._fault(), now)

    def _fault(self) -> str:
        how, _, output = bytes(self._result).decode(errors="replace").partition("\n")
        if self._result and not how:
            return ""
        what = f'"{" ".join(self._command.split())}" {how or "is lost with its process"}'
        lines = [line for line in plain_lines(output) if line.strip()][-LAST_LINES:]
        shown = ["; its last lines:", "", *(f"    {line}" for line in lines)] if lines else [""]
        self._say(f"clusterrun: this node fails its check (--check): {what}" + "\n".join(shown))
        return as_line(": ".join((what, *(line.strip() for line in lines[-1:]))))


# The process of the command.


def _run_check(
    agent: socket.socket, command: str, environ: Mapping[str, str], seconds: float
) -> NoReturn:
    """Run the command until it ends or the agent closes its socket; send the agent the result."""
    try:
        become_subreaper(agent.fileno())
        how, output = _run(agent, command, environ, seconds)
        with suppress(OSError):
            agent.sendall(f"{how}\n".encode() + output)
            # At once: this process ends late if a child hangs in the kernel.
            agent.shutdown(socket.SHUT_WR)
    finally:
        end_children()
        os._exit(0)


def _run(
    agent: socket.socket, command: str, environ: Mapping[str, str], seconds: float
) -> tuple[str, bytes]:
    """Return how the command failed, "" if it succeeded, and the end of its output."""
    woken, wakeup = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    try:
        # With posix_spawn, which no debugger of the agent follows (see ``processes``).
        pid = posix.posix_spawn(
            "/bin/sh",
            ["/bin/sh", "-c", command],
            {**environ},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writing, 1),
                (os.POSIX_SPAWN_DUP2, writing, 2),
            ],
            setpgroup=0,
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    except OSError as error:
        return f"can't be executed: /bin/sh: {error.strerror}", b""
    os.close(writing)
    poll = select.poll()
    for descriptor in (agent.fileno(), woken, reading):
        poll.register(descriptor, select.POLLIN)
    deadline, output, how = time.monotonic() + seconds, bytearray(), None
    while how is None:
        left = max(0.0, min(deadline - time.monotonic(), MAX_POLL_SECONDS))
        ready = [each for each, _ in poll.poll(1000 * left)]
        if reading in ready and not _read(reading, output):
            poll.unregister(reading)
        if woken in ready:
            os.read(woken, 4096)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            how = describe_wait_status(status)[0] if status else ""
        elif agent.fileno() in ready:
            how = "is not needed any more"
        elif time.monotonic() >= deadline:
            how = f"did not end within {seconds:g} s (--rdzv-timeout)"
    _read(reading, output)
    return how, bytes(output)


def _read(reading: int, output: bytearray) -> bool:
    """Append output, and keep its last ``MAX_KEPT`` bytes; return whether more may follow."""
    try:
        chunk = os.read(reading, MAX_KEPT)
    except BlockingIOError:
        return True
    output += chunk
    del output[:-MAX_KEPT]
    return bool(chunk)
