"""All connections of a job on one loop: what has arrived, who is lost, heartbeats."""

import selectors
import time
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from clusterrun.policy.events import ChildEnded, SignalReceived
from clusterrun.signals import Signals
from clusterrun.ssh.connection import Connection, Phase
from clusterrun.ssh.frames import Frame, Kind, NotAFrame
from clusterrun.ssh.merged_output import MergedOutput
from clusterrun.ssh.remote_command import Reached


class Received(Struct, frozen=True):
    """A frame has arrived."""

    connection: Connection
    frame: Frame


class Gone(Struct, frozen=True):
    """A connection has ended, or can't go on."""

    connection: Connection
    exit_code: int | None
    """ssh's; None if it still runs."""
    how: str
    """"has been silent for 15 s"; "" if ssh has ended."""


Happening = Received | Gone | SignalReceived


class Connections:
    """The hosts, this process's outputs and its signals."""

    def __init__(
        self, hosts: Sequence[Connection], output: MergedOutput, heartbeat_timeout: float
    ) -> None:
        """Arm the signals; from here on none ends this process."""
        self.hosts = hosts
        self.output = output
        self._timeout = heartbeat_timeout
        self._pause = min(1.0, heartbeat_timeout / 4)
        self._inbox = Signals()
        self._beat_at = 0.0

    def open_ones(self, phase: Phase) -> list[Connection]:
        """Return the hosts in this phase whose ssh runs."""
        return [each for each in self.hosts if each.is_open and each.phase is phase]

    def wait(self, seconds: float) -> Iterator[Happening]:
        """Wait for at most so long; yield what happens."""
        is_read = not self.output.is_congested
        self._select(min(seconds, self._pause), is_read=is_read)
        signals = list(self._inbox.events(time.monotonic()))
        yield from (it for it in signals if isinstance(it, SignalReceived))
        child_ended = any(isinstance(it, ChildEnded) for it in signals)
        for each in [it for it in self.hosts if it.is_open]:
            each.flush()
            # First the exit, then the pipes: what was printed before it is not lost.
            code = each.exit_code() if child_ended else None
            if is_read or code is not None:
                yield from self._arrived(each, until_end=code is not None)
            if code is not None and each.is_open:
                yield Gone(each, code, "")
        self.output.flush()
        if not is_read:
            self._forgive_silence()
        yield from self._silent()
        self._beat()

    def close(self) -> None:
        """End all connections; what their hosts still run ends with them."""
        for each in self.hosts:
            each.close()

    def _select(self, seconds: float, *, is_read: bool) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._inbox, selectors.EVENT_READ)
            for output in self.output.waiting:
                selector.register(output, selectors.EVENT_WRITE)
            for each in self.hosts:
                for descriptor in each.writable:
                    selector.register(descriptor, selectors.EVENT_WRITE)
                for descriptor in each.readable if is_read else ():
                    selector.register(descriptor, selectors.EVENT_READ)
            selector.select(max(0.0, seconds))

    def _arrived(self, connection: Connection, *, until_end: bool) -> Iterable[Happening]:
        try:
            frames = list(connection.receive(all_of_it=until_end))
        except NotAFrame:
            yield Gone(connection, None, "prints something else into the connection")
            return
        for frame in frames:
            if frame.kind is not Kind.HEARTBEAT:
                yield Received(connection, frame)

    def _silent(self) -> Iterator[Gone]:
        now = time.monotonic()
        for each in [*self.open_ones(Phase.READY), *self.open_ones(Phase.RUNNING)]:
            if now - each.heard_at > self._timeout:
                yield Gone(each, None, f"has been silent for {self._timeout:g} s")

    def _forgive_silence(self) -> None:
        """What is not read because our own reader is slow says nothing of its sender."""
        for each in self.hosts:
            each.heard_at = time.monotonic()

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beat_at < self._pause:
            return
        self._beat_at = now
        for each in self.hosts:
            if each.is_open and each.greeting.reached is Reached.STARTER:
                each.send(Kind.HEARTBEAT)
