"""The agent's side of the relay: starts it, sends it the workers' pipes, receives its reports."""

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
from clusterrun.policy.stacks import StackGroup, group_stacks
from clusterrun.processes import describe_wait_status, reap_child
from clusterrun.scratch import Scratch
from clusterrun.workers.children import fork
from clusterrun.workers.fork_server import messages
from clusterrun.workers.fork_server.channel import HelperChannel
from clusterrun.workers.helper_client import HelperClient
from clusterrun.workers.relay.routes import LauncherOutput, WorkerOutput

ReportedEvent = OutputEnded | OutputClosed | WorkersIdle | RelayAnswered
RelayEvent = ReportedEvent | HelperLost

_MARGIN = 1.0
"""Seconds after its deadline when a relay that has not ended is killed."""


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
        """What it could not write; None until it has reported that."""
        self.output_closed = False
        """Whether the reader of standard output was gone before everything was written."""
        self.exit_description = ""
        """For example "was killed by SIGKILL"; "" while it runs."""
        self._scratch = scratch

    @classmethod
    def start(cls, output: LauncherOutput, *scratch: Path) -> Self:
        """Fork the relay; the process must have one thread.

        Args:
            output: where lines are shown; the descriptors may be closed after this call.
            scratch: folders that the relay removes when it ends, however the agent ends.

        Raises:
            MachineError: a limit allows no more processes.

        """
        ours, theirs = socket.socketpair()
        pid = fork(partial(_run_relay, theirs, output, scratch))
        theirs.close()
        return cls(HelperChannel(ours, messages.TO_RELAY, messages.FROM_RELAY), pid, scratch)

    def open(self, output: WorkerOutput, pipes: Mapping[str, int]) -> None:
        """Have the relay read a worker's pipes, by "stdout" and "stderr".

        The caller may close its descriptors at once. A stream that the worker writes to the terminal
        itself has no pipe.
        """
        fields = to_builtins(output, enc_hook=str)
        self.send(messages.Open(fields, [*pipes]), [*pipes.values()])

    def print_text(self, text: str) -> None:
        """Print text to stderr between the workers' lines."""
        if text:
            self.send(messages.PrintText(text))

    def notice(self, text: str) -> None:
        """Print one message. Continuation lines are indented, so quoted text can't begin a line."""
        self.print_text("\n ".join(map(printable, f"clusterrun: {text}".split("\n "))))

    def _handle(self, now: float) -> Iterator[RelayEvent]:
        yield from self._received(now)
        if self._channel.closed:
            self.lost = True
            yield HelperLost(self.name, *self._reap(), now)

    def _kill(self, how: str) -> None:
        os.kill(self.pid, signal.SIGKILL)
        reap_child(self.pid, _MARGIN)
        self.exit_description = how

    def close(self, seconds: float) -> None:
        """Let the relay write what is left for at most ``seconds``, then end it."""
        self._leave_loop()
        if not self.exit_description:
            self.send(messages.Close(seconds))
            if self._await_end(seconds + _MARGIN):
                self._reap()
            else:
                os.kill(self.pid, signal.SIGKILL)
                # SIGKILL does not end a process that hangs in a file system; init reaps it later.
                if self._await_end(_MARGIN):
                    self._reap()
                self.exit_description = "stopped responding"
        self._channel.close()
        if self._scratch:
            # The relay has removed it unless it was killed or the folder was slow.
            Scratch(*self._scratch).remove()

    def _await_end(self, seconds: float) -> bool:
        """Wait until the relay ends, which closes its socket."""
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
                    yield RelayAnswered(number, WorkerStacks(group_stacks(groups), shown), now)
                case messages.OutputDrained(key, tail, error_file):
                    yield OutputEnded(LocalRank(key), tail, error_file or "", now)
                case messages.Closed(losses):
                    self.losses = tuple(LostOutput(*loss) for loss in losses)
                case _:
                    assert_never(message)

    def _reap(self) -> tuple[str, int]:
        """Reap the ended relay; return how it ended, and the signal or 0."""
        try:
            status = os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            # It was reaped before.
            status = 0
        self.exit_description, number = describe_wait_status(status)
        return self.exit_description, number


def _run_relay(control: socket.socket, output: LauncherOutput, scratch: Sequence[Path]) -> NoReturn:
    try:
        # Imported after the fork, while the agent continues without it.
        from clusterrun.workers.relay.loop import run_relay

        run_relay(control, output, scratch)
    except BaseException as error:  # noqa: BLE001 - the user must see it
        # The agent waits for the end of this process, which a stopped terminal could block.
        signal.alarm(1)
        if isinstance(error, LauncherError):
            os.write(2, f"{error.explain()}\n".encode())
        else:
            # ``sys.excepthook`` may be that of the agent's debugger.
            sys.__excepthook__(*sys.exc_info())
    finally:
        # Never return into the agent's code.
        os._exit(ExitCode.INTERNAL)
