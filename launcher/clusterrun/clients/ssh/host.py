"""One host: the ssh that reaches it, what it prints, and how its part of the job has ended."""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO

from clusterrun.clients.ssh.remote import NO_INTERPRETER, REACHED, Call, Reached
from clusterrun.policy.end_report import BEGIN, LONGEST, EndReport, output_shown_line, parse_report
from clusterrun.processes import set_parent_death_signal

CHUNK = 1 << 16

MAX_BEFORE = 1 << 14
"""Bytes that are kept of what is printed before the agent runs: their end."""

MAX_LINE_LENGTH = 1 << 16
"""Bytes; a longer one is shown in pieces."""

SECONDS_TO_EXIT = 2.0

OUT, ERR = 1, 2

Printed = tuple[int, bytes]
"""A stream, and whole lines or a piece of a long one."""


class Host:
    """A host, in the place of its node rank."""

    def __init__(
        self, rank: int, name: str, command: Sequence[str], interpreters: bytes, call: Call
    ) -> None:
        """It is not called yet.

        Args:
            rank: of its node.
            name: as it is listed.
            command: the words that start ssh.
            interpreters: the lines for our command at the other end.
            call: the job, for the far end.

        """
        self.rank = rank
        self.name = name
        self.reached = Reached.NOTHING
        self.began_at = 0.0
        self.report: EndReport | None = None
        self.shown = 0
        """How often it has answered that all is shown (``show``)."""
        self.exit_code: int | None = None
        """That of ssh, once all that it has printed is read; None before."""
        self._command = command
        self._mark = secrets.token_hex(8)
        self._to_send = interpreters + call.message(self._mark)
        self._unsent = b""
        self._read = {OUT: b"", ERR: b""}
        """What has been read and is not shown: before the mark all, then the beginning of a line."""
        self._is_marked = {OUT: False, ERR: False}
        self._errors = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._pipes: dict[int, int] = {}
        """The open outputs of ssh, by stream."""

    # What it does.

    @property
    def is_started(self) -> bool:
        return self._process is not None

    @property
    def is_ready(self) -> bool:
        """Whether the command has begun there."""
        return self.reached is Reached.AGENT

    @property
    def is_over(self) -> bool:
        return self.exit_code is not None

    @property
    def noise(self) -> bytes:
        """What its login shell has printed to standard output."""
        return self._read[OUT].partition(b"\n%b\n" % REACHED)[0]

    @property
    def errors(self) -> bytes:
        """What was printed to standard error before the command has begun."""
        return self._errors if self._is_marked[ERR] else self._read[ERR]

    def open(self) -> None:
        """Start ssh, which has no terminal to ask on, and ends with this process."""
        client = os.getpid()
        self.began_at = time.monotonic()
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
        _descriptor(process.stdin)
        self._pipes = {OUT: _descriptor(process.stdout), ERR: _descriptor(process.stderr)}

    def leave_out(self) -> None:
        """Never call it: the job does not run."""
        self.exit_code = 0

    # What is sent.

    def signal(self, number: int) -> None:
        """Have its command act as if it had got a signal, or show all for ``SHOW_OUTPUT``."""
        if self.is_ready:
            self._send(bytes([number]))

    def close_lifeline(self) -> None:
        """Have its command end as by SIGTERM; what still runs there ends with it."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    @property
    def writing(self) -> list[int]:
        """The descriptor to wait for, if something is to be sent."""
        pipe = self._process.stdin if self._process is not None else None
        return [pipe.fileno()] if pipe is not None and not pipe.closed and self._unsent else []

    def flush(self) -> None:
        for descriptor in self.writing:
            try:
                self._unsent = self._unsent[os.write(descriptor, self._unsent) :]
            except BlockingIOError:
                return
            except OSError:
                # ssh has ended: its exit says why.
                self._unsent = b""

    def _send(self, data: bytes) -> None:
        self._unsent += data
        self.flush()

    # What it prints.

    @property
    def reading(self) -> list[int]:
        return [*self._pipes.values()]

    def read(self) -> Iterator[Printed]:
        """Read what has come; yield what is to be shown. Once ssh has ended, note its exit code.

        A connection that ssh keeps for others (ControlPersist) holds its standard error open.
        """
        ended = self._process.poll() if self._process is not None else None
        for stream in list(self._pipes):
            while data := self._chunk(stream):
                self._read[stream] += data
                yield from self._shown(stream)
                if ended is None:
                    break
        if ended is not None:
            for stream, rest in self._read.items():
                if self._is_marked[stream] and rest:
                    yield stream, rest + b"\n"
            self._pipes = {}
            self.exit_code = ended

    def _chunk(self, stream: int) -> bytes:
        """Return what can be read now; b"" if nothing can, or at the end, after which it is not watched."""
        try:
            data = os.read(self._pipes[stream], CHUNK)
        except BlockingIOError:
            return b""
        if not data:
            del self._pipes[stream]
        return data

    def _shown(self, stream: int) -> Iterator[Printed]:
        if not self._is_marked[stream]:
            self._greet(stream)
        if self._is_marked[stream]:
            yield from self._lines(stream)

    def _greet(self, stream: int) -> None:
        """Look for what ends the login shell's own output."""
        before, found, after = self._read[stream].partition(
            b"%b%b\n" % (BEGIN, self._mark.encode())
        )
        if found:
            self._is_marked[stream] = True
            self._read[stream] = after
            if stream == OUT:
                self.reached = Reached.AGENT
            else:
                self._errors = before
            return
        self._read[stream] = before[-MAX_BEFORE:]
        if stream == OUT and self.reached is Reached.NOTHING and b"\n%b\n" % REACHED in before:
            self.reached = Reached.SHELL
            self._send(self._to_send)
        if stream == OUT and b"\n%b\n" % NO_INTERPRETER in before:
            self.reached = Reached.NO_INTERPRETER

    def _lines(self, stream: int) -> Iterator[Printed]:
        *lines, rest = self._read[stream].split(b"\n")
        ours = b"%b%b " % (BEGIN, self._mark.encode())
        for line in lines:
            if stream == ERR and line + b"\n" == output_shown_line(self._mark):
                self.shown += 1
            elif stream == ERR and line.startswith(ours):
                self.report = parse_report(line + b"\n", self._mark)
            else:
                yield stream, line + b"\n"
        is_long = len(rest) > (LONGEST if rest.startswith(ours) else MAX_LINE_LENGTH)
        if is_long:
            yield stream, rest
        self._read[stream] = b"" if is_long else rest

    # The end.

    def end(self) -> None:
        """End ssh, if it runs, and close its pipes; the command sees the end of its lifeline."""
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


def _descriptor(pipe: IO[bytes]) -> int:
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()
