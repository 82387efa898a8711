"""A relay on outputs that a test reads, and the pipes that its workers would print to."""

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clusterrun import processes
from clusterrun.bounds import LocalRank
from clusterrun.loop import NEVER, Loop
from clusterrun.policy import events
from clusterrun.workers.fork_server import messages
from clusterrun.workers.fork_server.channel import HelperChannel
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.loop import Relay
from clusterrun.workers.relay.routes import Destination, LauncherOutput, LineStyle, WorkerOutput

PATIENCE = 10.0
"""Seconds after which a test gives up waiting."""


@dataclass
class Printer:
    """The write ends of a worker's pipes."""

    rank: int
    stdout: int
    stderr: int
    is_open: bool = True

    def close(self) -> None:
        """Close both, once, as a worker's end does."""
        if self.is_open:
            self.is_open = False
            os.close(self.stdout)
            os.close(self.stderr)


class RelayBench:
    """A relay, driven as the agent drives it."""

    def __init__(self, relay: RelayClient, style: LineStyle | None = None) -> None:
        self.relay = relay
        self.loop = Loop[events.Event](lambda: 1.0)
        relay.run_in(self.loop)
        # The clock stands still, so no timer may fire: a turn only waits for messages of the relay.
        self.loop.remove_timer(relay)
        self.style = style or LineStyle()
        self.printers: list[Printer] = []

    def open(
        self,
        rank: int,
        logs: Path | None = None,
        error_file: Path | None = None,
        *,
        stdout_to: Destination | None = None,
        stderr_to: Destination | None = None,
        log_dir: Path | None = None,
    ) -> Printer:
        """Give the relay the pipes of a worker; with ``logs``, files ``rank-R.out`` and ``.err``."""
        out, err = os.pipe(), os.pipe()
        self.relay.open(
            WorkerOutput(
                local_rank=LocalRank(rank),
                label=f"rank {rank}",
                prefix=f"[rank {rank}] ",
                stdout_to=stdout_to or Destination(logs and logs / f"rank-{rank}.out"),
                stderr_to=stderr_to or Destination(logs and logs / f"rank-{rank}.err"),
                error_file=error_file,
                log_dir=log_dir,
                style=self.style,
            ),
            {"stdout": out[0], "stderr": err[0]},
        )
        os.close(out[0])
        os.close(err[0])
        self.printers.append(Printer(rank, out[1], err[1]))
        return self.printers[-1]

    def event(self, seconds: float = PATIENCE) -> events.Event:
        self.loop.turn(until=1.0 + seconds)
        silence = events.OutputClosed(1.0)
        self.loop.at("silence", 1.0, lambda _now: silence)
        event = self.loop.next_event()
        self.loop.at("silence", NEVER, lambda _now: silence)
        assert event is not silence, "the relay sends nothing"
        return event

    def finish(self, rank: int) -> events.OutputEnded:
        """End a worker's output, and return the answer."""
        self.relay.send(messages.DrainOutput(rank))
        event = self.event(PATIENCE)
        assert isinstance(event, events.OutputEnded)
        return event

    def end(self, seconds: float = 5.0) -> None:
        """End all workers and the relay, which has then written all files."""
        for printer in self.printers:
            printer.close()
            self.finish(printer.rank)
        self.relay.close(seconds)


class TimedRelay:
    """A relay in this process; the test sets the time."""

    def __init__(self, output: LauncherOutput) -> None:
        self.now = 100.0
        agent, relay = socket.socketpair()
        self._agent = HelperChannel(agent, messages.TO_RELAY, messages.FROM_RELAY)
        self._channel = HelperChannel(relay, messages.FROM_RELAY, messages.TO_RELAY)
        self.relay = Relay(self._channel, output, lambda: self.now, processes.TimeLimitedCalls(1.0))

    def reports_at(self, now: float) -> "list[messages.FromRelay]":
        """Return the messages to the agent by this time."""
        self.now = now
        self.relay.prepare_to_wait()
        return [message for message, _ in self._agent.receive()]

    def close(self) -> None:
        self._agent.close()
        self._channel.close()


@contextmanager
def relay_on(stdout: int, stderr: int, *, colour: bool = False) -> Iterator[RelayBench]:
    """Start a relay that prints to the two descriptors; end it, and close all pipes."""
    with relay_at(LauncherOutput(stdout, stderr), LineStyle(colour=colour)) as bench:
        yield bench


@contextmanager
def relay_at(output: LauncherOutput, style: LineStyle) -> Iterator[RelayBench]:
    """Start a relay that prints to ``output``; end it, and close all pipes."""
    bench = RelayBench(RelayClient.start(output), style)
    try:
        yield bench
    finally:
        for printer in bench.printers:
            printer.close()
        bench.relay.close(2)


def socket_pair() -> tuple[int, int]:
    """Return the two ends of a connection, which a service manager gives as standard output."""
    left, right = socket.socketpair()
    return left.detach(), right.detach()


def fill(descriptor: int) -> int:
    """Print lines of "y" until the pipe has been full for half a second; return their bytes."""
    written = 0
    os.set_blocking(descriptor, False)
    while select.select([], [descriptor], [], 0.5)[1]:
        with suppress(BlockingIOError):
            written += os.write(descriptor, b"y\n" * 500)
    return written


def read_until(descriptor: int, end: bytes, seconds: float = PATIENCE) -> bytes:
    """Read until the output ends with ``end``."""
    return read_while(descriptor, lambda text: not text.endswith(end), seconds)


def read_while(
    descriptor: int, incomplete: Callable[[bytes], bool], seconds: float = PATIENCE
) -> bytes:
    """Read while the output is ``incomplete``."""
    text = b""
    deadline = time.monotonic() + seconds
    while incomplete(text):
        left = deadline - time.monotonic()
        assert left > 0, f"only {len(text)} bytes came, at the end {text[-1000:]!r}"
        if select.select([descriptor], [], [], left)[0]:
            text += os.read(descriptor, 1 << 16)
    return text
