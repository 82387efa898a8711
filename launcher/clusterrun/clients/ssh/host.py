"""One host of a job: its ssh process, its output, and its report."""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO

from clusterrun.clients.ssh.remote import NO_INTERPRETER, SHELL_READY, HostCommand, Stage
from clusterrun.policy.end_report import (
    MAX_REPORT_BYTES,
    RECORD_SEPARATOR,
    EndReport,
    output_shown_line,
    parse_report,
)
from clusterrun.processes import set_parent_death_signal

CHUNK = 1 << 16

MAX_SHELL_OUTPUT = 1 << 14
"""Bytes of output before the agent runs that are kept."""

MAX_LINE_BYTES = 1 << 16
"""A longer line is shown in pieces."""

SECONDS_TO_EXIT = 2.0

OUT, ERR = 1, 2

Output = tuple[int, bytes]
"""A stream, and one or more whole lines or a piece of a long line."""


class Host:
    """A host of a job, which runs one node."""

    def __init__(
        self,
        rank: int,
        name: str,
        command: Sequence[str],
        interpreters: bytes,
        host_command: HostCommand,
    ) -> None:
        """Start nothing yet.

        Args:
            rank: its node rank.
            name: as the user has listed it.
            command: the ssh command.
            interpreters: the lines that the login shell's command reads.
            host_command: what bootstrap runs.

        """
        self.rank = rank
        self.name = name
        self.stage = Stage.CONNECTING
        self.started_at = 0.0
        self.report: EndReport | None = None
        self.shown_count = 0
        """How often the host has answered ``SHOW_OUTPUT``."""
        self.exit_code: int | None = None
        """ssh's exit code, once all of its output is read."""
        self._command = command
        self._marker = secrets.token_hex(8)
        self._to_send = interpreters + host_command.request(self._marker)
        self._unsent = b""
        self._read = {OUT: b"", ERR: b""}
        """Data not shown yet: before the marker everything, then the beginning of a line."""
        self._agent_began = {OUT: False, ERR: False}
        self._errors = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._pipes: dict[int, int] = {}
        """The open output pipes of ssh, by stream."""

    @property
    def is_started(self) -> bool:
        return self._process is not None

    @property
    def is_ready(self) -> bool:
        """Whether the agent runs on the host."""
        return self.stage is Stage.AGENT

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None

    @property
    def is_pending(self) -> bool:
        """Whether the host is neither ready nor has ended."""
        return not (self.is_ready or self.has_ended)

    @property
    def shell_output(self) -> bytes:
        """Standard output of the login shell."""
        return self._read[OUT].partition(b"\n%b\n" % SHELL_READY)[0]

    @property
    def errors(self) -> bytes:
        """Standard error before the agent ran."""
        return self._errors if self._agent_began[ERR] else self._read[ERR]

    def start(self) -> None:
        """Start ssh without a terminal; it is killed if this process dies."""
        client = os.getpid()
        self.started_at = time.monotonic()
        process = self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: set_parent_death_signal(client, signal.SIGTERM),  # noqa: PLW1509 - this process has one thread
        )
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise AssertionError("ssh was started with three pipes")
        _nonblocking(process.stdin)
        self._pipes = {OUT: _nonblocking(process.stdout), ERR: _nonblocking(process.stderr)}

    def cancel(self) -> None:
        """Mark a host that was never started as ended."""
        self.exit_code = 0

    # Sending.

    def signal(self, number: int) -> None:
        """Send the number of a signal, or ``SHOW_OUTPUT``, to the command."""
        if self.is_ready:
            self._send(bytes([number]))

    def close_lifeline(self) -> None:
        """Make the command stop as after SIGTERM, with all its processes."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    @property
    def writing(self) -> list[int]:
        """The descriptor to wait for, if there is unsent data."""
        pipe = self._process.stdin if self._process is not None else None
        return [pipe.fileno()] if pipe is not None and not pipe.closed and self._unsent else []

    def flush(self) -> None:
        for descriptor in self.writing:
            try:
                self._unsent = self._unsent[os.write(descriptor, self._unsent) :]
            except BlockingIOError:
                return
            except OSError:
                # ssh has ended; its exit code says why.
                self._unsent = b""

    def _send(self, data: bytes) -> None:
        self._unsent += data
        self.flush()

    # Receiving.

    @property
    def reading(self) -> list[int]:
        return [*self._pipes.values()]

    def read(self) -> Iterator[Output]:
        """Read available data, and yield what to show; once ssh has ended, set the exit code.

        The end of file alone is not enough: with ControlPersist, ssh's background process keeps standard
        error open.
        """
        ended = self._process.poll() if self._process is not None else None
        for stream in list(self._pipes):
            while data := self._read_chunk(stream):
                self._read[stream] += data
                if not self._agent_began[stream]:
                    self._look_for_agent(stream)
                if self._agent_began[stream]:
                    yield from self._complete_lines(stream)
                if ended is None:
                    break
        if ended is not None:
            for stream, rest in self._read.items():
                if self._agent_began[stream] and rest:
                    yield stream, rest + b"\n"
            self._pipes = {}
            self.exit_code = ended

    def _read_chunk(self, stream: int) -> bytes:
        """Return available data, or b""; at the end of file, forget the pipe."""
        try:
            data = os.read(self._pipes[stream], CHUNK)
        except BlockingIOError:
            return b""
        if not data:
            del self._pipes[stream]
        return data

    def _look_for_agent(self, stream: int) -> None:
        """Look for the lines that say how far the host has come."""
        before, found, after = self._read[stream].partition(
            b"%b%b\n" % (RECORD_SEPARATOR, self._marker.encode())
        )
        if found:
            self._agent_began[stream] = True
            self._read[stream] = after
            if stream == OUT:
                self.stage = Stage.AGENT
            else:
                self._errors = before
            return
        self._read[stream] = before[-MAX_SHELL_OUTPUT:]
        if stream == OUT and self.stage is Stage.CONNECTING and b"\n%b\n" % SHELL_READY in before:
            self.stage = Stage.SHELL
            self._send(self._to_send)
        if stream == OUT and b"\n%b\n" % NO_INTERPRETER in before:
            self.stage = Stage.NO_INTERPRETER

    def _complete_lines(self, stream: int) -> Iterator[Output]:
        *lines, rest = self._read[stream].split(b"\n")
        ours = b"%b%b " % (RECORD_SEPARATOR, self._marker.encode())
        for line in lines:
            if stream == ERR and line + b"\n" == output_shown_line(self._marker):
                self.shown_count += 1
            elif stream == ERR and line.startswith(ours):
                self.report = parse_report(line + b"\n", self._marker)
            else:
                yield stream, line + b"\n"
        is_long = len(rest) > (MAX_REPORT_BYTES if rest.startswith(ours) else MAX_LINE_BYTES)
        if is_long:
            yield stream, rest
        self._read[stream] = b"" if is_long else rest

    # The end.

    def stop(self) -> None:
        """Terminate ssh, if it runs, and close its pipes; the command sees its lifeline close."""
        process = self._process
        if process is None:
            return
        self._pipes = {}
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(SECONDS_TO_EXIT)
        self.exit_code = process.poll() or 0


def _nonblocking(pipe: IO[bytes]) -> int:
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()
