"""The agent's half of the relay: starts it, sends it the workers' pipes, receives their ends."""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, Self, assert_never

from msgspec import to_builtins

from clusterrun.bounds import LocalRank
from clusterrun.descriptor_output import LostOutput
from clusterrun.errors import ExitCode, LauncherError, printable
from clusterrun.policy.events import (
    HelperLost,
    LastLine,
    OutputClosed,
    OutputEnded,
    RelayAnswered,
    WorkersIdle,
    WorkerStacks,
)
from clusterrun.policy.stacks import StackGroup, grouped
from clusterrun.processes import describe_wait_status, status_of
from clusterrun.scratch import Scratch
from clusterrun.workers.children import fork
from clusterrun.workers.fork_server import messages
from clusterrun.workers.fork_server.channel import HelperChannel
from clusterrun.workers.helper_client import HelperClient
from clusterrun.workers.relay.routes import LauncherOutput, WorkerOutput

ReportedEvent = OutputEnded | OutputClosed | WorkersIdle | RelayAnswered
RelayEvent = ReportedEvent | HelperLost

_MARGIN = 1.0
"""Seconds after its deadline at which a relay that has not ended is killed."""


class RelayClient(HelperClient["messages.ToRelay", "messages.FromRelay"]):
    """The relay as the agent uses it. Only ``close`` waits."""

    name = "relay"

    def __init__(
        self,
        channel: "HelperChannel[messages.ToRelay, messages.FromRelay]",
        pid: int,
        scratch: Sequence[Path],
    ) -> None:
        super().__init__(channel, pid)
        self.losses: tuple[LostOutput, ...] | None = None
        """What it could not write; None before its end, and if it ended without reporting."""
        self.output_closed = False
        """Whether the reader of standard output was gone before everything was written."""
        self.describe_wait_status = ""
        """"was killed by SIGKILL"; "" before its end."""
        self._scratch = scratch
        self._is_closed = False

    @classmethod
    def start(cls, place: LauncherOutput, *scratch: Path) -> Self:
        """Fork the relay (the process must have one thread).

        Args:
            place: where lines are shown; the descriptors must stay open for this call only.
            scratch: folders that the relay removes at its own end, however the agent ends.

        Raises:
            MachineError: a limit allows no more processes.

        """
        ours, theirs = socket.socketpair()
        pid = fork(partial(_run_relay, theirs, place, scratch))
        theirs.close()
        return cls(HelperChannel(ours, messages.TO_RELAY, messages.FROM_RELAY), pid, scratch)

    def send(self, message: "messages.ToRelay") -> None:
        """Ask for something; what the relay answers becomes an event."""
        self._send(message)

    def open(self, output: WorkerOutput, pipes: Mapping[str, int]) -> None:
        """Have the relay read a worker's pipes, by "stdout" and "stderr".

        The caller closes its own descriptors. A stream without a pipe is the terminal's own.
        """
        fields = to_builtins(output, enc_hook=str)
        self._send(messages.Open(fields, [*pipes]), [*pipes.values()])

    def say(self, text: str) -> None:
        """Print ``text`` to stderr, between the workers' lines."""
        if text:
            self._send(messages.PrintText(text))

    def notice(self, text: str) -> None:
        """Print one message, whose lines after the first are indented: what it quotes begins none."""
        self.say("\n ".join(map(printable, f"clusterrun: {text}".split("\n "))))

    def _happened(self, now: float) -> Iterator[RelayEvent]:
        yield from self._received(now)
        if self._channel.closed:
            self.lost = True
            yield HelperLost(self.name, *self._reap(), now)

    def _kill(self, how: str) -> None:
        os.kill(self.pid, signal.SIGKILL)
        status_of(self.pid, _MARGIN)
        self.describe_wait_status = how

    def close(self, seconds: float) -> None:
        """Let the relay write what it holds for up to ``seconds``, then end it; only once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._leave_loop()
        if not self.describe_wait_status:
            self._send(messages.Close(seconds))
            self._end_within(seconds + _MARGIN)
        self._channel.close()
        if self._scratch:
            # The relay has done so itself, unless it was killed or the folder was slow.
            Scratch(*self._scratch).remove()

    def _end_within(self, seconds: float) -> None:
        if self._await_end(seconds):
            self._reap()
            return
        os.kill(self.pid, signal.SIGKILL)
        # Not even SIGKILL ends a process that hangs in a file system; init reaps it later.
        if self._await_end(_MARGIN):
            self._reap()
        self.describe_wait_status = "stopped responding"

    def _await_end(self, seconds: float) -> bool:
        """Wait until the relay has closed its socket, which only its end does."""
        deadline = time.monotonic() + seconds
        while not self._channel.closed and (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            writable = select.POLLOUT if self._channel.wants_write else 0
            poll.register(self._channel.fileno(), select.POLLIN | writable)
            poll.poll(left * 1000)
            self._channel.flush()
            for _event in self._received(deadline):
                pass
        return self._channel.closed

    def _received(self, now: float) -> Iterator[ReportedEvent]:
        for message, _ in self._channel.receive():
            match message:
                case messages.StdoutClosed():
                    self.output_closed = True
                    yield OutputClosed(now)
                case messages.Quiet(seconds):
                    yield WorkersIdle(seconds or 0.0, now)
                case messages.LastLines(number, lines):
                    seen = {LocalRank(key): LastLine(*last) for key, last in lines}
                    yield RelayAnswered(number, seen, now)
                case messages.PrintedStacks(number, stacks, shown):
                    groups = [StackGroup((key,), text, found) for key, text, found in stacks]
                    yield RelayAnswered(number, WorkerStacks(grouped(groups), shown), now)
                case messages.OutputDrained(key, tail, error_file):
                    yield OutputEnded(LocalRank(key), tail, error_file or "", now)
                case messages.Closed(losses):
                    self.losses = tuple(LostOutput(*loss) for loss in losses)
                case _:
                    assert_never(message)

    def _reap(self) -> tuple[str, int]:
        """Reap the relay, which has ended; return how, in words and by which signal."""
        try:
            status = os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            # It was reaped before.
            status = 0
        self.describe_wait_status, number = describe_wait_status(status)
        return self.describe_wait_status, number


def _run_relay(control: socket.socket, place: LauncherOutput, scratch: Sequence[Path]) -> NoReturn:
    try:
        # Imported while the agent goes on, which does not need it.
        from clusterrun.workers.relay.loop import run_relay

        run_relay(control, place, scratch)
    except BaseException as error:  # noqa: BLE001 - the user must see it
        # The terminal may be stopped, and the agent waits for the end of this process.
        signal.alarm(1)
        if isinstance(error, LauncherError):
            os.write(2, f"{error.explain()}\n".encode())
        else:
            # Not that of a debugger of the agent.
            sys.__excepthook__(*sys.exc_info())
    finally:
        # Never back into the agent's own code.
        os._exit(ExitCode.INTERNAL)
