"""The agent's half of the relay: starts it, sends it the workers' pipes, receives their ends."""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, Self

from msgspec import to_builtins

from clusterrun.bounds import LocalRank
from clusterrun.descriptor_output import LostOutput
from clusterrun.errors import ExitCode, LauncherError, printable
from clusterrun.policy.events import (
    HelperLost,
    LastLine,
    OutputClosed,
    OutputEnded,
    RelaySaw,
    WorkersIdle,
    WorkerStacks,
)
from clusterrun.policy.stacks import StackGroup, grouped
from clusterrun.processes import how_it_ended, status_of
from clusterrun.scratch import Scratch
from clusterrun.workers.children import fork
from clusterrun.workers.fork_server.channel import HelperChannel, Message
from clusterrun.workers.helper_client import HelperClient
from clusterrun.workers.relay.routes import OwnOutput, WorkerOutput

ReportedEvent = OutputEnded | OutputClosed | WorkersIdle | RelaySaw
RelayEvent = ReportedEvent | HelperLost

_MARGIN = 1.0
"""Seconds after its deadline at which a relay that has not ended is killed."""


class RelayClient(HelperClient):
    """The relay as the agent uses it. Only ``close`` waits."""

    name = "relay"

    def __init__(self, channel: HelperChannel, pid: int, scratch: Sequence[Path]) -> None:
        super().__init__(channel, pid)
        self.losses: tuple[LostOutput, ...] | None = None
        """What it could not write; None before its end, and if it ended without reporting."""
        self.output_closed = False
        """Whether the reader of standard output was gone before everything was written."""
        self.how_it_ended = ""
        """"was killed by SIGKILL"; "" before its end."""
        self._scratch = scratch
        self._is_closed = False

    @classmethod
    def start(cls, place: OwnOutput, *scratch: Path) -> Self:
        """Fork the relay (the process must have one thread).

        Args:
            place: where lines are shown; the descriptors must stay open for this call only.
            scratch: folders that the relay removes at its own end, however the agent ends.

        Raises:
            MachineError: a limit allows no more processes.

        """
        ours, theirs = socket.socketpair()
        pid = fork(partial(_live_as_relay, theirs, place, scratch))
        theirs.close()
        return cls(HelperChannel(ours), pid, scratch)

    def open(self, output: WorkerOutput, pipes: Mapping[str, int]) -> None:
        """Have the relay read a worker's pipes, by "stdout" and "stderr".

        The caller closes its own descriptors. A stream without a pipe is the terminal's own.
        """
        fields = to_builtins(output, enc_hook=str)
        self._send("open", [*pipes.values()], output=fields, streams=[*pipes])

    def finish(self, local_rank: LocalRank) -> None:
        """Have the output of a worker that has ended read; an ``OutputEnded`` answers.

        What it has left running may print on.
        """
        self._send("finish", key=local_rank)

    def say(self, text: str) -> None:
        """Print ``text`` to stderr, between the workers' lines."""
        if text:
            self._send("say", text=text)

    def notice(self, text: str) -> None:
        """Print one message, whose lines after the first are indented: what it quotes begins none."""
        self.say("\n ".join(map(printable, f"clusterrun: {text}".split("\n "))))

    def link(self, path: Path, target: str) -> None:
        """Make ``path`` a symbolic link to ``target``, in place of another link."""
        self._send("link", path=str(path), target=target)

    def remove_at_end(self, path: Path) -> None:
        """Have a socket of the agent's removed, however the agent ends."""
        self._send("remove_at_end", path=str(path))

    def append(self, path: Path, line: str, top: Path | None = None) -> None:
        """Append a line to a file; ``top``: it is a log file, below this folder of the user's."""
        self._send("append", path=str(path), line=line, top=None if top is None else str(top))

    def watch_activity(self, seconds: float) -> None:
        """Report once when no worker has printed or ended for ``seconds``; 0: never."""
        self._send("watch_activity", seconds=seconds)

    def look_at_lines(self, number: int) -> None:
        """Ask for the last line of each worker; a ``RelaySaw`` with this number answers."""
        self._send("look_at_lines", number=number)

    def show(self, number: int) -> None:
        """Show what workers have printed by now; a ``RelaySaw`` with this number answers."""
        self._send("show", number=number)

    def look_at_stacks(self, number: int, seconds: float) -> None:
        """Take Python's stacks out of what workers print within that time; a ``RelaySaw`` has them."""
        self._send("look_at_stacks", number=number, seconds=seconds)

    def expect_no_stacks(self, local_ranks: Iterable[LocalRank]) -> None:
        """Expect no stacks of these workers, which got no signal."""
        self._send("expect_no_stacks", keys=list(local_ranks))

    def _happened(self, now: float) -> Iterator[RelayEvent]:
        for message in self._received():
            yield event_of(message, now)
        if self._channel.closed:
            self.lost = True
            yield HelperLost(self.name, *self._reap(), now)

    def _kill(self, how: str) -> None:
        os.kill(self.pid, signal.SIGKILL)
        status_of(self.pid, _MARGIN)
        self.how_it_ended = how

    def close(self, seconds: float) -> None:
        """Let the relay write what it holds for up to ``seconds``, then end it; only once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._leave_loop()
        if not self.how_it_ended:
            self._send("close", seconds=seconds)
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
        self.how_it_ended = "stopped responding"

    def _await_end(self, seconds: float) -> bool:
        """Wait until the relay has closed its socket, which only its end does."""
        deadline = time.monotonic() + seconds
        while not self._channel.closed and (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            writable = select.POLLOUT if self._channel.wants_write else 0
            poll.register(self._channel.fileno(), select.POLLIN | writable)
            poll.poll(left * 1000)
            self._channel.flush()
            for message in self._received():
                if message["kind"] == "closed":
                    self.losses = tuple(LostOutput(*loss) for loss in message["losses"])
        return self._channel.closed

    def _received(self) -> list[Message]:
        messages = [message for message, _ in self._channel.receive()]
        self.output_closed |= any(message["kind"] == "output_closed" for message in messages)
        return messages

    def _reap(self) -> tuple[str, int]:
        """Reap the relay, which has ended; return how, in words and by which signal."""
        try:
            status = os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            # It was reaped before.
            status = 0
        self.how_it_ended, number = how_it_ended(status)
        return self.how_it_ended, number


def _live_as_relay(control: socket.socket, place: OwnOutput, scratch: Sequence[Path]) -> NoReturn:
    try:
        # Imported while the agent goes on, which does not need it.
        from clusterrun.workers.relay.loop import live_as_relay

        live_as_relay(control, place, scratch)
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


def event_of(message: Message, now: float) -> ReportedEvent:
    match message["kind"]:
        case "output_closed":
            return OutputClosed(now)
        case "idle":
            return WorkersIdle(message["seconds"], now)
        case "active":
            return WorkersIdle(0.0, now)
        case "lines":
            lines = {LocalRank(key): LastLine(*seen) for key, *seen in message["lines"]}
            return RelaySaw(message["number"], lines, now)
        case "stacks":
            stacks = [StackGroup((key,), text, found) for key, text, found in message["stacks"]]
            seen = WorkerStacks(grouped(stacks), message["shown"])
            return RelaySaw(message["number"], seen, now)
        case _:
            key, tail, error_file = message["key"], message["tail"], message["error_file"]
            return OutputEnded(LocalRank(key), tail, error_file, now)
