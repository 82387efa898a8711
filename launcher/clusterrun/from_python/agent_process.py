"""The agent's process as its caller sees it: started, listened to, interrupted, and always ended."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from clusterrun.errors import InternalError
from clusterrun.from_python.caller_output import CallerOutput
from clusterrun.from_python.messages import Replies, Reply, Request, send_request

AGENT_FILE = Path(__file__).with_name("agent.py")

INTERRUPTS_TO_KILL = 2
"""The next one after these kills the agent itself."""

_READ_BYTES = 1 << 16


class AgentProcess:
    """A child of this process, in its process group: a terminal's Ctrl-C and Ctrl-Z reach both.

    The agent takes a SIGINT of the terminal's and one of the caller's for one.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, output: CallerOutput
    ) -> None:
        self._process = process
        self._control = control
        self._output = output
        self._replies = Replies()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        for pipe in output.pipes:
            self._selector.register(pipe, selectors.EVENT_READ)
        self.interrupts = 0
        """The number of KeyboardInterrupts: by Ctrl-C, or by a notebook."""

    @classmethod
    def start(cls, environ: Mapping[str, str], output: CallerOutput) -> Self:
        """Execute the agent with the caller's interpreter.

        Raises:
            OSError: it can't be executed.

        """
        ours, theirs = socket.socketpair()
        with theirs:
            # Until the agent has handlers, SIGINT would print the interpreter's own traceback.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process = _execute(environ, output, theirs.fileno(), signal.SIGINT in mask)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        output.started()
        return cls(process, ours, output)

    @property
    def exit_code(self) -> int:
        """The exit code, once ``follow`` has returned; negative: the signal that killed it."""
        return self._process.wait()

    def send(self, request: Request) -> None:
        """Send what to run. An agent that ends before it has read all is noticed by ``follow``."""
        with suppress(BrokenPipeError, ConnectionResetError):
            send_request(self._control, request)

    def answer(self) -> None:
        """Let the agent go on: it waits after ``JobEnded``."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def interrupt(self) -> None:
        """Have the agent end the job in order, if it still runs."""
        self._process.send_signal(signal.SIGINT)

    def follow(self, on_reply: Callable[[Reply], object], seconds: float | None = None) -> bool:
        """Print what the job prints, and pass each reply on; return whether the agent has ended.

        A KeyboardInterrupt ends the job in order, a second one at once; ``interrupts`` counts them.

        Args:
            on_reply: takes each reply.
            seconds: how long to wait for the end; None: no limit.

        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._selector.get_map():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            try:
                self._read_what_is_ready(on_reply, left)
            except KeyboardInterrupt:
                self._take_interrupt()
        self._process.wait()
        return True

    def _take_interrupt(self) -> None:
        self.interrupts += 1
        if self.interrupts > 1:
            # The first may have come while a reply was read, which is lost.
            self.answer()
        if self.interrupts > INTERRUPTS_TO_KILL:
            self._process.kill()
        self.interrupt()

    def close(self) -> None:
        """End the agent, and with it the job, if it still runs; release everything."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._selector.close()
        self._control.close()
        self._output.close()

    def _read_what_is_ready(
        self, on_reply: Callable[[Reply], object], seconds: float | None
    ) -> None:
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._control:
                is_open = self._read_replies(on_reply)
            else:
                is_open = self._output.copy(key.fd)
            if not is_open:
                self._selector.unregister(key.fileobj)

    def _read_replies(self, on_reply: Callable[[Reply], object]) -> bool:
        """Return whether more may come."""
        try:
            data = self._control.recv(_READ_BYTES)
        except ConnectionResetError:
            data = b""
        for reply in self._replies.add(data):
            on_reply(reply)
        if not data and self._replies.rest:
            raise InternalError("the agent has ended in the middle of a message")
        return bool(data)


def _execute(
    environ: Mapping[str, str],
    output: CallerOutput,
    control: int,
    blocks_interrupts: bool,  # noqa: FBT001 - it is an argument of the agent's command
) -> subprocess.Popen[bytes]:
    # -P: no module of the current folder takes the place of one of ours.
    command = [sys.executable, "-P", str(AGENT_FILE), f"{os.getpid()}", f"{blocks_interrupts:d}"]
    return subprocess.Popen(
        command,
        env=dict(environ),
        # In no other place: any number may be a standard stream that the caller has closed.
        stdin=control,
        stdout=output.stdout.for_agent,
        stderr=output.stderr.for_agent,
    )
