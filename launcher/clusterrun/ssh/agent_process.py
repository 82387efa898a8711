"""The agent that a starter runs, and its output."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import IO

import msgspec

from clusterrun.errors import exit_code_of_signal
from clusterrun.job.sources import REPORT_VARIABLE
from clusterrun.policy.outcome import Report
from clusterrun.ssh.frames import Kind
from clusterrun.ssh.host_job import AgentEnd, HostJob
from clusterrun.workers.fork_server.this_process import die_with_parent

SECONDS_OF_LAST_OUTPUT = 2.0
"""After the agent's exit, how long what it has started may hold its output open."""

CHUNK = 1 << 16


class AgentProcess:
    """``clusterrun`` as a person would start it on this host, apart from its report."""

    def __init__(self, job: HostJob, environ: Mapping[str, str]) -> None:
        """Start it in the current folder."""
        self._grace = job.grace
        self._report = os.memfd_create("clusterrun-report")
        file = f"/proc/{os.getpid()}/fd/{self._report}"
        starter = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "clusterrun", *job.line.argv()],
            env={**environ, REPORT_VARIABLE: file},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(starter, signal.SIGTERM),  # noqa: PLW1509 - this process has one thread
        )
        self._outputs: dict[IO[bytes], Kind] = {}
        for stream, kind in ((self._process.stdout, Kind.OUT), (self._process.stderr, Kind.ERR)):
            assert stream is not None  # noqa: S101 - both are pipes: for the type checker
            os.set_blocking(stream.fileno(), False)
            self._outputs[stream] = kind
        self._kill_at: float | None = None
        self._exited_at: float | None = None

    @property
    def descriptors(self) -> list[int]:
        """Those of its output that are still open."""
        return [stream.fileno() for stream in self._outputs]

    @property
    def has_ended(self) -> bool:
        """Whether it has exited, and all of its output is read or late."""
        if self._exited_at is None:
            return False
        return not self._outputs or time.monotonic() - self._exited_at > SECONDS_OF_LAST_OUTPUT

    def read(self) -> Iterator[tuple[Kind, bytes]]:
        """Yield what it has printed."""
        for stream, kind in list(self._outputs.items()):
            try:
                data = os.read(stream.fileno(), CHUNK)
            except BlockingIOError:
                continue
            if data:
                yield kind, data
            else:
                del self._outputs[stream]
                stream.close()

    def look(self, *, child_ended: bool) -> None:
        """Reap it if it has exited; kill it if its grace period is over."""
        if self._exited_at is None and (child_ended or self._kill_at is not None):
            if self._process.poll() is not None:
                self._exited_at = time.monotonic()
            elif self._kill_at is not None and time.monotonic() > self._kill_at:
                self._process.kill()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def stop(self) -> None:
        """End it by SIGTERM and, after its grace period, SIGKILL."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace
            self.signal(signal.SIGTERM)

    def end(self) -> AgentEnd:
        """Return how it ended."""
        code = self._process.returncode
        written = os.pread(self._report, os.fstat(self._report).st_size, 0)
        report = msgspec.msgpack.decode(written, type=Report) if written else None
        return AgentEnd(exit_code_of_signal(-code) if code < 0 else code, report)
