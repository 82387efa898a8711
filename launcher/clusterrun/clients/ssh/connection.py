"""One process of ssh, and the channel to the agent that runs at its other end."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from clusterrun.clients.ssh.remote import Greeting, Reached
from clusterrun.network.caller import FROM_AGENT, Call, CallerChannel, FromAgent, FromCaller
from clusterrun.processes import end_with

CHUNK = 1 << 16

MOST_OF_STDERR = 1 << 14
"""Bytes of ssh's standard error that are kept: its end."""

SECONDS_TO_EXIT = 2.0


class SshConnection:
    """It begins with the start of ssh, which has no terminal to ask on and ends with this process."""

    def __init__(self, command: Sequence[str], interpreters: bytes, call: Call) -> None:
        """Start ssh.

        Args:
            command: its words.
            interpreters: the lines for our command at the other end.
            call: the agent's.

        """
        self.greeting = Greeting()
        self.errors = bytearray()
        """What ssh, the login shell and the agent print to standard error: the end of it."""
        self.began_at = time.monotonic()
        self._interpreters = interpreters
        self._call = call
        self._channel: CallerChannel[FromAgent] | None = None
        client = os.getpid()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: end_with(client, signal.SIGTERM),  # noqa: PLW1509 - this process has one thread
        )
        self._in, self._out, self._err = map(_descriptor, self._pipes)
        self.reading = {self._out, self._err}
        """The outputs that are not at their end: one that is stays readable."""

    @property
    def heard_at(self) -> float:
        """When something of the agent was read last, by the monotonic clock."""
        return self._channel.heard_at if self._channel else self.began_at

    @property
    def writing(self) -> set[int]:
        """The descriptor to wait for, if something is to be sent."""
        return {self._in} if self._channel is not None and self._channel.wants_write else set()

    def send(self, message: FromCaller) -> None:
        if self._channel is not None:
            self._channel.send(message)

    @property
    def is_idle(self) -> bool:
        """Whether the agent runs, and nothing waits to be sent to it."""
        return self._channel is not None and not self._channel.wants_write

    def flush(self) -> None:
        if self._channel is not None:
            self._channel.flush()

    def receive(self) -> list[FromAgent]:
        """Return the messages that have come.

        Raises:
            BadFrame: something else prints into the connection.

        """
        self.errors += self._read(self._err)
        del self.errors[:-MOST_OF_STDERR]
        while self._channel is None and (data := self._read(self._out)):
            self._take(data)
        if self._channel is None or self._out not in self.reading:
            return []
        messages = self._channel.receive()
        if self._channel.end is not None:
            self.reading.discard(self._out)
        return messages

    def _read(self, descriptor: int) -> bytes:
        """Return a chunk; "" if there is none now, or at the end."""
        if descriptor not in self.reading:
            return b""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return b""
        if not data:
            self.reading.discard(descriptor)
        return data

    def _take(self, data: bytes) -> None:
        before = self.greeting.reached
        begun = self.greeting.feed(data)
        if before is Reached.NOTHING and self.greeting.reached is not Reached.NOTHING:
            # They fit into an empty pipe. If ssh has ended, its exit will say why.
            with suppress(OSError):
                os.write(self._in, self._interpreters)
        if self.greeting.reached is Reached.AGENT:
            self._channel = CallerChannel(FROM_AGENT, self._out, self._in, begun)
            self._channel.send(self._call)

    def exit_code(self) -> int | None:
        """Return ssh's exit code; None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """End ssh, if it runs, and close its pipes; the agent sees its end."""
        for stream in self._pipes:
            with suppress(OSError):
                stream.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(SECONDS_TO_EXIT)

    @property
    def _pipes(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        process = self._process
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise AssertionError("ssh was started with three pipes")
        return process.stdin, process.stdout, process.stderr


def _descriptor(pipe: IO[bytes]) -> int:
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()
