"""One host's connection: a process of ssh, and its phase."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import IO

from clusterrun.ssh.frames import Frame, FrameReader, Kind, frame
from clusterrun.ssh.host_job import AgentEnd
from clusterrun.ssh.remote_command import Greeting, Reached
from clusterrun.workers.fork_server.this_process import die_with_parent

CHUNK = 1 << 16

MOST_OF_STDERR = 1 << 14
"""Bytes of ssh's standard error that are kept: its end."""

SECONDS_TO_EXIT = 2.0


class Phase(Enum):
    """What a host does."""

    OPENING = "opening"
    READY = "ready"
    RUNNING = "running"
    OVER = "over"
    """Its agent has ended, its connection is lost, or it refused the job."""


class Connection:
    """A host, and the ssh that reaches it."""

    def __init__(self, rank: int, host: str, interpreters: bytes, job: bytes) -> None:
        """Take what the host is sent: the lines for our command, and the job as a frame."""
        self.rank = rank
        self.host = host
        self.phase = Phase.OPENING
        self.greeting = Greeting()
        self.end: AgentEnd | None = None
        """How its agent ended; None: unknown, or not yet."""
        self.error_text = bytearray()
        """What ssh, the login shell and the starter print to standard error."""
        self.opened_at = 0.0
        self.heard_at = 0.0
        self._interpreters = interpreters
        self._job = job
        self._reader = FrameReader()
        self._waiting = bytearray()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: set[IO[bytes]] = set()
        """Its outputs that are at their end."""

    def open(self, command: Sequence[str]) -> None:
        """Start ssh. It has no terminal to ask on, and ends with this process."""
        client = os.getpid()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(client, signal.SIGTERM),  # noqa: PLW1509 - this process has one thread
        )
        for stream in self._pipes:
            os.set_blocking(stream.fileno(), False)
        self.opened_at = self.heard_at = time.monotonic()

    @property
    def is_open(self) -> bool:
        """Whether ssh runs, as far as is known."""
        return self._process is not None

    @property
    def readable(self) -> list[int]:
        """The descriptors to wait for."""
        return [stream.fileno() for stream in self._pipes[1:] if stream not in self._ended]

    @property
    def writable(self) -> list[int]:
        """The descriptor to wait for, if something is to be sent."""
        return [stream.fileno() for stream in self._pipes[:1] if self._waiting]

    @property
    def _pipes(self) -> tuple[IO[bytes], ...]:
        process = self._process
        if process is None or not (process.stdin and process.stdout and process.stderr):
            return ()
        return (process.stdin, process.stdout, process.stderr)

    def send(self, kind: Kind, content: bytes = b"") -> None:
        """Send a frame; a heartbeat only if nothing else waits."""
        if kind is not Kind.HEARTBEAT or not self._waiting:
            self._waiting += frame(kind, content)
            self.flush()

    def flush(self) -> None:
        """Write what fits now."""
        process = self._process
        if process is None or process.stdin is None:
            return
        try:
            while self._waiting:
                del self._waiting[: os.write(process.stdin.fileno(), self._waiting)]
        except BlockingIOError:
            return
        except OSError:
            # Its exit will say why.
            self._waiting.clear()

    def receive(self, *, all_of_it: bool = False) -> Iterator[Frame]:
        """Yield the frames of one chunk that has arrived, or of all that have.

        Raises:
            NotAFrame: something else prints into the connection.

        """
        while (out := self._read_some()) is not None:
            yield from self._take(out)
            if not all_of_it:
                return

    def _read_some(self) -> bytes | None:
        """Return a chunk of standard output, None if there is none; keep one of standard error."""
        process = self._process
        if process is None or process.stdout is None or process.stderr is None:
            return None
        out, err = self._read(process.stdout), self._read(process.stderr)
        self.error_text += err or b""
        del self.error_text[:-MOST_OF_STDERR]
        return out if out is not None else (err and b"")

    def _read(self, stream: IO[bytes]) -> bytes | None:
        """Return a chunk; None if there is none now, or at the end."""
        if stream in self._ended:
            return None
        try:
            data = os.read(stream.fileno(), CHUNK)
        except BlockingIOError:
            return None
        if not data:
            # It stays readable: waiting for it would never end.
            self._ended.add(stream)
        return data or None

    def _take(self, data: bytes) -> Iterator[Frame]:
        if not data:
            return
        self.heard_at = time.monotonic()
        before = self.greeting.reached
        data = self.greeting.feed(data)
        after = self.greeting.reached
        if before is Reached.NOTHING and after is not Reached.NOTHING:
            self._waiting += self._interpreters
            self.flush()
        if after is Reached.STARTER and before is not Reached.STARTER:
            self._waiting += self._job
            self.flush()
        yield from self._reader.feed(data)

    def exit_code(self) -> int | None:
        """Return ssh's exit code; None while it runs."""
        return self._process.poll() if self._process else None

    def close(self) -> None:
        """End ssh, if it runs, and close its pipes; the starter sees its end."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(SECONDS_TO_EXIT)
