"""The starter: what ssh runs on a host. It starts the agent there, and ends it with the connection.

The client speaks frames on standard input, the starter on standard output. Where the connection
ends or falls silent, the agent gets SIGTERM and, after its grace period, SIGKILL.
"""

import os
import selectors
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from clusterrun.domain.signal_names import ENDING_SIGNALS
from clusterrun.errors import LauncherError
from clusterrun.job.resolve import resolve
from clusterrun.job.this_process import this_process
from clusterrun.policy.events import ChildEnded, SignalReceived
from clusterrun.signals import Signals
from clusterrun.ssh.agent_process import AgentProcess
from clusterrun.ssh.frames import Frame, FrameReader, Kind, NotAFrame, frame
from clusterrun.ssh.host_job import HostJob, Refusal, encode, own_version
from clusterrun.ssh.remote_command import STARTER

SECONDS_TO_SEND = 5.0
"""How long the last frames may take."""

MOST_WAITING = 1 << 20
"""Bytes for the client that wait: above this, the agent's output is not read."""

CHUNK = 1 << 16


class Starter:
    """Serves one client: one job, one agent."""

    def __init__(self, environ: Mapping[str, str], output: int) -> None:
        """Take the host's own environment, and the descriptor for frames."""
        self._environ = environ
        self._output = output
        self._waiting = bytearray()
        self._reader = FrameReader()
        self._inbox = Signals()
        self._child_ended = False
        self._job: HostJob | None = None
        self._agent: AgentProcess | None = None
        self._is_connected = True
        self._heard_at = self._beat_at = time.monotonic()

    def run(self) -> None:
        """Serve until the agent has ended or, before it starts, the client has."""
        os.set_blocking(0, False)
        os.set_blocking(self._output, False)
        while self._is_connected if self._agent is None else not self._agent.has_ended:
            self._wait()
            self._take_signals()
            self._receive()
            self._expect_client()
            if self._agent is not None:
                self._serve(self._agent)
            self._send_some()
        if self._agent is not None:
            self._send(Kind.ENDED, encode(self._agent.end()))
        self._send_rest()

    def _wait(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._inbox, selectors.EVENT_READ)
            if self._is_connected:
                selector.register(0, selectors.EVENT_READ)
                if self._waiting:
                    selector.register(self._output, selectors.EVENT_WRITE)
            if self._agent is not None and len(self._waiting) < MOST_WAITING:
                for descriptor in self._agent.descriptors:
                    selector.register(descriptor, selectors.EVENT_READ)
            selector.select(self._pause)

    @property
    def _pause(self) -> float:
        """Seconds between two heartbeats, and between two looks at all deadlines."""
        return min(1.0, self._job.heartbeat_timeout / 4) if self._job else 1.0

    def _take_signals(self) -> None:
        for event in self._inbox.events(time.monotonic()):
            match event:
                case ChildEnded():
                    self._child_ended = True
                case SignalReceived(number) if number in ENDING_SIGNALS:
                    self._disconnect()

    def _receive(self) -> None:
        if not self._is_connected:
            return
        try:
            data = os.read(0, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._disconnect()
            return
        try:
            for each in self._reader.feed(data):
                self._take(each)
        except NotAFrame:
            self._disconnect()
        # After the check of a job, which takes longest: the client was not listened to meanwhile.
        self._heard_at = time.monotonic()

    def _take(self, received: Frame) -> None:
        match received.kind:
            case Kind.JOB:
                self._check(received.content)
            case Kind.START if self._job is not None and self._agent is None:
                self._agent = AgentProcess(self._job, self._job.on_top_of(self._environ))
            case Kind.SIGNAL if self._agent is not None:
                self._agent.signal(int(received.content))
            case _:
                pass

    def _check(self, content: bytes) -> None:
        """Answer whether the job can start here, by what the agent itself would find."""
        refusal = _refusal(content, self._environ)
        if refusal is not None:
            self._send(Kind.REFUSED, encode(refusal))
            return
        self._job = msgspec.json.decode(content, type=HostJob)
        self._send(Kind.READY)

    def _expect_client(self) -> None:
        now = time.monotonic()
        if self._job is None or not self._is_connected:
            return
        if now - self._heard_at > self._job.heartbeat_timeout:
            self._disconnect()
        elif now - self._beat_at >= self._pause and not self._waiting:
            self._beat_at = now
            self._send(Kind.HEARTBEAT)

    def _disconnect(self) -> None:
        self._is_connected = False
        self._waiting.clear()
        if self._agent is not None:
            self._agent.stop()

    def _serve(self, agent: AgentProcess) -> None:
        if len(self._waiting) < MOST_WAITING or not self._is_connected:
            for kind, data in agent.read():
                self._send(kind, data)
        agent.look(child_ended=self._child_ended)
        self._child_ended = False

    def _send(self, kind: Kind, content: bytes = b"") -> None:
        if self._is_connected:
            self._waiting += frame(kind, content)

    def _send_some(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._output, self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._disconnect()

    def _send_rest(self) -> None:
        deadline = time.monotonic() + SECONDS_TO_SEND
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_WRITE)
            while self._waiting and (left := deadline - time.monotonic()) > 0:
                selector.select(left)
                self._send_some()


def _refusal(content: bytes, environ: Mapping[str, str]) -> Refusal | None:
    try:
        job = msgspec.json.decode(content, type=HostJob)
    except msgspec.ValidationError:
        return Refusal(f"another version of clusterrun, {own_version()}, is installed here")
    if job.protocol != own_version():
        return Refusal(
            f"clusterrun is {own_version()} here, and {job.protocol} where it was typed",
            "install the same version on all hosts",
        )
    try:
        os.chdir(job.path)
    except OSError as error:
        return Refusal(
            f"{_user(environ)} can't enter {job.path}: {error.strerror}",
            "start the job in a folder that all hosts have, with the same path",
        )
    try:
        resolve(job.line, job.on_top_of(environ), this_process("clusterrun"))
    except LauncherError as error:
        return Refusal(error.message, error.hint)
    return None


def _user(environ: Mapping[str, str]) -> str:
    return environ.get("USER") or f"user {os.getuid()}"


def main() -> None:
    """Serve the client of this connection."""
    output = os.dup(1)
    with suppress(OSError):
        # Nothing else may print between the frames.
        os.dup2(2, 1)
    os.write(output, STARTER + b"\n")
    Starter(dict(os.environ), output).run()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
