"""One host's connection: a process of ssh, and its phase."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum

from clusterrun.ssh.frames import Frame, FrameReader, Kind, frame
from clusterrun.ssh.host_job import AgentEnd
from clusterrun.ssh.remote_command import Greeting, Reached
from clusterrun.workers.fork_server.this_process import PR_SET_PDEATHSIG, prctl

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

    def open(self, command: Sequence[str]) -> None:
        """Start ssh. It has no terminal to ask on, and ends with this process."""
        client = os.getpid()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: _end_with(client),  # noqa: PLW1509 - this process has one thread
        )
        for descriptor in self._pipes:
            os.set_blocking(descriptor, False)
        self.opened_at = self.heard_at = time.monotonic()

    @property
    def is_open(self) -> bool:
        """Whether ssh runs, as far as is known."""
        return self._process is not None

    @property
    def readable(self) -> tuple[int, ...]:
        """The descriptors to wait for."""
        return self._pipes[1:]

    @property
    def writable(self) -> tuple[int, ...]:
        """The descriptor to wait for, if something is to be sent."""
        return self._pipes[:1] if self._waiting else ()

    @property
    def _pipes(self) -> tuple[int, ...]:
        process = self._process
        if process is None or not (process.stdin and process.stdout and process.stderr):
            return ()
        streams = (process.stdin, process.stdout, process.stderr)
        return tuple(stream.fileno() for stream in streams if not stream.closed)

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

    def receive(self) -> Iterator[Frame]:
        """Yield the frames that have arrived.

        Raises:
            NotAFrame: something else prints into the connection.

        """
        process = self._process
        if process is None or process.stdout is None or process.stderr is None:
            return
        self.error_text += _read(process.stderr.fileno())
        del self.error_text[:-MOST_OF_STDERR]
        if not (data := _read(process.stdout.fileno())):
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


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return b""


def _end_with(client: int) -> None:
    """Have the kernel end this process, ssh, when the client ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != client:
        os._exit(127)
