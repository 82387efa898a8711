"""The relay's loop: waits for pipes, outputs and the agent, and never for a reader or a disk.

Bytes that a reader or a disk does not take yet wait in an output. If too many wait, the pipes whose
bytes go there are not read any more: that stops the worker that prints, and nothing else.
"""

import os
import select
import selectors
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from clusterrun.processes import TimeLimited
from clusterrun.workers.fork_server.channel import Channel, Message
from clusterrun.workers.relay.routes import Screen
from clusterrun.workers.relay.stack_collector import StackCollector
from clusterrun.workers.relay.streams import READ_BYTES, Stream
from clusterrun.workers.relay.switchboard import Switchboard

_ORPHANED_SECONDS = 0.4
"""How long pipes are read after the agent has died, while its workers are being killed."""
_LAST_SECONDS = 0.1
"""How long outputs may take to write what was read last."""
_CLOSING_SECONDS = 0.5
"""How long the agent may take to read what was lost: less than it waits for the relay's end."""
_GATHERING_MILLISECONDS = 2
"""A pause after a short read: workers print line by line, and waking for each line costs more."""


class RelayLoop:
    """Serves the agent at the other end of ``channel`` until it closes the relay or dies.

    ``clock`` returns monotonic seconds; ``files`` reads the workers' error files.
    """

    def __init__(
        self, channel: Channel, screen: Screen, clock: Callable[[], float], files: TimeLimited
    ) -> None:
        self._channel = channel
        self._clock = clock
        self._leave_at: float | None = None
        self._largest_read = 0
        self._watched: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stacks = StackCollector(channel.send)
        self._activity = ActivityWatch(channel.send)
        self._prefix = screen.prefix
        wake = partial(os.eventfd_write, self._wakeup, 1)
        self._board = Switchboard(screen, channel.send, wake, files)

    @property
    def sockets(self) -> list[Path]:
        """The agent's sockets, to be removed now that it has ended."""
        return self._board.sockets

    def run(self) -> None:
        """Serve until the agent is gone and all is written, or its time is over."""
        self._watch(self._wakeup, selectors.EVENT_READ, partial(os.eventfd_read, self._wakeup))
        self._serve(lambda: not self._board.streams and self._board.idle)
        self._board.finish()
        self._leave_at = self._clock() + _LAST_SECONDS
        self._serve(lambda: self._board.idle)
        losses = [(loss.name, loss.size, loss.why) for loss in self._board.losses()]
        self._channel.send({"kind": "closed", "losses": losses})
        # Names of many files are more than a socket takes at once.
        self._leave_at = self._clock() + _CLOSING_SECONDS
        self._serve(lambda: not self._channel.wants_write)

    def _serve(self, finished: Callable[[], bool]) -> None:
        while True:
            self._settle()
            if self._leave_at is not None and (finished() or self._clock() >= self._leave_at):
                return
            self._gather()
            ready = [key for key, _ in self._selector.select(self._timeout())]
            # The agent first: the relay must know of it before workers print because of it.
            for key in sorted(ready, key=lambda key: key.fd != self._channel.fileno()):
                key.data()

    def _settle(self) -> None:
        """Write what can be written, and watch exactly the descriptors that may go on."""
        board = self._board
        self._stacks.look(self._clock())
        self._activity.check(self._clock())
        board.print_notes()
        for stream in board.streams:
            stream.show_progress(self._clock())
        self._write()
        board.report_failures()
        for output in board.outputs:
            # A failure may just have been reported there, and /dev/null can't be watched.
            output.flush()
            self._watch(
                output.fileno(), selectors.EVENT_WRITE if output.waiting else 0, output.flush
            )
        for stream in board.streams:
            paused = stream.ended or stream.congested()
            events = 0 if paused else selectors.EVENT_READ
            self._watch(stream.descriptor, events, partial(self._pump, stream))
        board.close_ended()
        self._watch_channel()

    def _write(self) -> None:
        """Write the lines, then the live line below them."""
        for output in self._board.outputs:
            output.flush()
        for display in self._board.displays:
            display.redraw(self._clock())
        for output in self._board.outputs:
            output.flush()

    def _watch_channel(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._channel.wants_write else 0)
        self._watch(self._channel.fileno(), 0 if self._channel.closed else events, self._receive)

    def _watch(self, descriptor: int, events: int, callback: Callable[[], object]) -> None:
        watched = self._watched.get(descriptor, 0)
        if events == watched:
            return
        if not watched:
            self._selector.register(descriptor, events, callback)
        elif events:
            self._selector.modify(descriptor, events, callback)
        else:
            self._selector.unregister(descriptor)
        self._watched[descriptor] = events

    def _timeout(self) -> float | None:
        due = [display.due for display in self._board.displays]
        due += [stream.progress.due for stream in self._board.streams]
        due += [self._leave_at, self._stacks.due, self._activity.due]
        times = [at for at in due if at is not None]
        return max(0.0, min(times) - self._clock()) if times else None

    def _gather(self) -> None:
        """Let the workers print more before it is read, unless they print much or an output waits."""
        if 0 < self._largest_read < READ_BYTES // 2 and not self._board.screen_waits:
            poll = select.poll()
            poll.register(self._channel.fileno(), select.POLLIN)
            poll.poll(_GATHERING_MILLISECONDS)
        self._largest_read = 0

    def _pump(self, stream: Stream) -> None:
        count = stream.pump()
        if count:
            stream.recent.touch(self._clock())
        self._largest_read = max(self._largest_read, count)
        if count and stream.is_active:
            self._activity.note(self._clock())

    def _receive(self) -> None:
        self._channel.flush()
        for message, fds in self._channel.receive():
            self._perform(message, fds)
        if self._channel.closed:
            self._leave_within(_ORPHANED_SECONDS)

    def _perform(self, message: Message, fds: Sequence[int]) -> None:
        match message["kind"]:
            case "close":
                self._leave_within(message["seconds"])
            case "collect_stacks":
                workers = self._board.workers
                shown = not self._prefix and all(it.is_shown for it in workers.values())
                self._stacks.begin(
                    message["number"],
                    workers,
                    self._clock(),
                    patient=message["patient"],
                    shown=shown,
                )
            case "look":
                lines = self._board.last_lines(self._clock())
                self._channel.send({"kind": "lines", "number": message["number"], "lines": lines})
            case "read_output":
                pieces = self._board.read_output(message)
                self._channel.send(
                    {"kind": "output", "number": message["number"], "pieces": pieces}
                )
            case "skip_stacks":
                self._stacks.skip(message["keys"])
            case "watch_activity":
                self._activity.watch(message["seconds"], self._clock())
            case "open" | "finish":
                self._board.handle(message, fds)
                self._activity.note(self._clock())
            case _:
                self._board.handle(message, fds)

    def _leave_within(self, seconds: float) -> None:
        latest = self._clock() + seconds
        self._leave_at = latest if self._leave_at is None else min(latest, self._leave_at)
        self._board.hurry()


class ActivityWatch:
    """Reports to the agent when no worker has been active for some seconds, and when one is again."""

    def __init__(self, report: Callable[[Message], None]) -> None:
        self._report = report
        self._seconds = 0.0
        self._active_at = 0.0
        self._is_idle = False

    @property
    def due(self) -> float | None:
        """When to ``check``; None: the agent does not ask, or knows."""
        return self._active_at + self._seconds if self._seconds and not self._is_idle else None

    def watch(self, seconds: float, now: float) -> None:
        """Watch from now on for ``seconds`` without activity; 0: not at all."""
        self._seconds = seconds
        self.note(now)

    def note(self, now: float) -> None:
        self._active_at = now
        if self._is_idle:
            self._is_idle = False
            self._report({"kind": "active"})

    def check(self, now: float) -> None:
        if self.due is not None and now >= self.due:
            self._is_idle = True
            self._report({"kind": "idle", "seconds": self._seconds})
