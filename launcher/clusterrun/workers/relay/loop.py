"""The relay: waits for pipes, outputs and the agent, and never for a reader or a disk.

Bytes that a reader or a disk does not take yet wait in an output. If too many wait, the pipes whose
bytes go there are not read any more: that stops the worker that prints, and nothing else.
"""

import errno
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn, assert_never

from msgspec import convert

from clusterrun.errors import ExitCode
from clusterrun.loop import NEVER, Loop
from clusterrun.processes import TimeLimitedCalls, close_all_but, start_thread
from clusterrun.scratch import SECONDS_TO_ANSWER, remove_leftovers, remove_scratch
from clusterrun.user_sockets import remove_socket
from clusterrun.workers.fork_server import messages
from clusterrun.workers.fork_server.channel import HelperChannel
from clusterrun.workers.fork_server.kernel import allow_many_open_files
from clusterrun.workers.relay.equal_tracebacks import Tracebacks
from clusterrun.workers.relay.files import OutputFiles
from clusterrun.workers.relay.kept import plain
from clusterrun.workers.relay.routes import LauncherOutput, WorkerOutput
from clusterrun.workers.relay.screen import Screen
from clusterrun.workers.relay.stacks import StackCollector
from clusterrun.workers.relay.streams import READ_BYTES, RelayedWorker, Stream

_ORPHANED_SECONDS = 0.4
"""How long pipes are read after the agent has died, while its workers are being killed."""
_LAST_SECONDS = 0.1
"""How long outputs may take to write what was read last."""
_CLOSING_SECONDS = 0.5
"""How long the agent may take to read what was lost: less than it waits for the relay's end."""
_GATHERING_MILLISECONDS = 2
"""A pause after a short read: workers print line by line, and waking for each line costs more."""

_READER_GONE = {errno.EPIPE, errno.EIO}
"""EIO: a terminal that is gone, of which the agent learns by SIGHUP."""

_IGNORED = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGTTOU,
    signal.SIGTTIN,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
}
"""The relay lives until the agent closes its socket, whatever ends or stops the other processes."""


def run_relay(control: socket.socket, place: LauncherOutput, scratch: Sequence[Path]) -> NoReturn:
    """Be the relay, in a process that was just forked with all signals blocked.

    Args:
        control: the connection to the agent.
        place: where lines are shown.
        scratch: the folders to remove at the end, all in one folder.

    """
    _detach_from_agent(keep={control.fileno(), *place.descriptors})
    # In a thread: a large or slow folder must not delay the output.
    sweeper = start_thread(partial(remove_leftovers, scratch[0].parent)) if scratch else None
    folders = TimeLimitedCalls(SECONDS_TO_ANSWER)
    channel = HelperChannel(control, messages.FROM_RELAY, messages.TO_RELAY)
    relay = Relay(channel, place, time.monotonic, folders)
    relay.run()
    if sweeper:
        sweeper.join(SECONDS_TO_ANSWER)
    # If two threads hang in one folder, not even SIGKILL ends this process. The next launch removes
    # what is left.
    for path in () if sweeper and sweeper.is_alive() else scratch:
        folders.run(partial(remove_scratch, path))
    for path in relay.sockets:
        folders.run(partial(remove_socket, path))
    os._exit(ExitCode.SUCCESS)


def _detach_from_agent(keep: Collection[int]) -> None:
    # The agent's objects are not collected here: their descriptors are closed below.
    gc.freeze()
    gc.enable()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number in _IGNORED:
            # What came since the fork, as part of the agent's group, is dropped.
            signal.signal(number, signal.SIG_IGN)
        elif callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Not in the foreground group: Ctrl-C and Ctrl-Z are for the agent.
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0, inheritable=False)
    close_all_but({0, *keep})
    # Each worker needs four, and the soft limit is often 1024.
    allow_many_open_files()
    with suppress(OSError):
        Path("/proc/self/comm").write_text("clusterrun-relay", encoding="utf-8")


class Relay:
    """Serves the agent at the other end of ``channel`` until it closes the relay or dies.

    Args:
        channel: the connection to the agent.
        place: where lines are shown.
        clock: returns monotonic seconds.
        folders: reads the workers' error files.

    """

    def __init__(
        self,
        channel: "HelperChannel[messages.FromRelay, messages.ToRelay]",
        place: LauncherOutput,
        clock: Callable[[], float],
        folders: TimeLimitedCalls,
    ) -> None:
        self.sockets: list[Path] = []
        """The agent's, which do not outlive it."""
        self._channel = channel
        self._clock = clock
        self._folders = folders
        self._loop = Loop[None](clock)
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._noted: set[str] = set()
        self._files = OutputFiles(partial(os.eventfd_write, self._wakeup, 1))
        self._screen = Screen(place, self._files.opened)
        self._tracebacks = Tracebacks(clock)
        self._stacks = StackCollector(channel.send)
        self._workers: dict[int, RelayedWorker] = {}
        """By local rank, the last one of each; those that have ended are still looked at."""
        self._streams: list[Stream] = []
        """Those whose pipes are open."""
        self._only_in_files: dict[tuple[int, str], Stream] = {}
        self._readable: list[Stream] = []
        self._largest_read = 0
        self._to_show: list[int] = []
        """Numbers of what asks whether all is shown."""
        self._idle_seconds: float | None = None
        """After which idle workers are reported; None: never."""
        self._active_at = 0.0
        self._is_idle = False
        self._leave_at = NEVER

    def run(self) -> None:
        """Serve until the agent is gone and all is written, or its time is over."""
        self._loop.watch(self._wakeup, self._woken)
        self._serve(lambda: not self._streams and self._is_written)
        for stream in self._streams:
            stream.close(self._clock())
        self._tracebacks.say()
        self._screen.finish()
        self._leave_at = self._clock() + _LAST_SECONDS
        self._serve(lambda: self._is_written)
        self._report_losses()

    def _serve(self, finished: Callable[[], bool]) -> None:
        while True:
            self.settle()
            if self._leave_at < NEVER and (finished() or self._clock() >= self._leave_at):
                return
            self._gather()
            self._loop.turn(self._due)
            # Only now: the relay must know what the agent asks before workers print because of it.
            readable, self._readable = self._readable, []
            for stream in readable:
                self._pump(stream)

    def settle(self) -> None:
        """Do what is due, write what can be written, and watch exactly what may go on."""
        self._stacks.look(self._clock())
        self._check_activity()
        for note in self._files.notes():
            if note not in self._noted:
                self._noted.add(note)
                self._screen.say(note)
            for stream in self._only_in_files.values():
                stream.show_unwritten()
        for stream in self._streams:
            stream.show_due(self._clock())
        self._tracebacks.look(self._clock())
        self._screen.draw(self._clock())
        self._report_failures()
        # A failure may just have been reported there, and /dev/null can't be watched.
        self._screen.flush()
        self._report_shown()
        for output in self._screen.outputs:
            self._watch(output.fileno(), self._writable, writes=bool(output.waiting))
        for stream in self._streams:
            reads = not (stream.ended or stream.congested())
            self._watch(stream.descriptor, partial(self._note_readable, stream), reads=reads)
            if stream.ended:
                # Not watched any more.
                os.close(stream.descriptor)
        self._streams = [stream for stream in self._streams if not stream.ended]
        is_open = not self._channel.closed
        writes = is_open and self._channel.wants_write
        self._watch(self._channel.fileno(), self._receive, reads=is_open, writes=writes)

    @property
    def _due(self) -> float:
        due = [
            self._screen.due,
            self._stacks.due,
            self._tracebacks.due,
            self._idle_at,
            self._leave_at,
        ]
        return min([*due, *(stream.due for stream in self._streams)])

    @property
    def _is_written(self) -> bool:
        """Whether all that was read is also written."""
        return not self._screen.waits and self._files.is_idle

    def _watch(
        self,
        descriptor: int,
        ready: Callable[[float], Iterable[None]],
        *,
        reads: bool = False,
        writes: bool = False,
    ) -> None:
        if reads or writes:
            self._loop.watch(descriptor, ready, reads=reads, writes=writes)
        else:
            self._loop.forget(descriptor)

    def _woken(self, _now: float) -> Iterable[None]:
        os.eventfd_read(self._wakeup)
        return ()

    def _writable(self, _now: float) -> Iterable[None]:
        # ``settle`` writes.
        return ()

    def _note_readable(self, stream: Stream, _now: float) -> Iterable[None]:
        self._readable.append(stream)
        return ()

    def _gather(self) -> None:
        """Let the workers print more before it is read, unless they print much or a reader is behind."""
        if 0 < self._largest_read < READ_BYTES // 2 and not self._screen.waits:
            poll = select.poll()
            poll.register(self._channel.fileno(), select.POLLIN)
            poll.poll(_GATHERING_MILLISECONDS)
        self._largest_read = 0

    def _pump(self, stream: Stream) -> None:
        count = stream.pump(self._clock())
        self._largest_read = max(self._largest_read, count)
        if count and stream.is_active:
            self._note_activity()

    # The agent.

    def _receive(self, _now: float) -> Iterable[None]:
        self._channel.flush()
        for message, pipes in self._channel.receive():
            self.perform(message, pipes)
        if self._channel.closed:
            self._close(_ORPHANED_SECONDS)
        return ()

    def perform(self, message: "messages.ToRelay", pipes: Sequence[int] = ()) -> None:
        """Do what the agent asks for; ``pipes``: the descriptors that have come with it."""
        match message:
            case messages.Open():
                self._open(message, pipes)
            case messages.DrainOutput(key):
                self._drain(key)
            case messages.PrintText(text):
                # The report of the job is the last thing that is said.
                self._tracebacks.say()
                self._screen.say(text)
            case messages.Append(path, line, top):
                self._files.append(Path(path), line, None if top is None else Path(top))
            case messages.Link(path, target):
                self._files.link(Path(path), target)
            case messages.RemoveAtEnd(path):
                self.sockets.append(Path(path))
            case messages.QueryLastLines(number):
                self._report_lines(number)
            case messages.FlushOutput(number):
                self._show(number)
            case messages.WatchOutput(seconds):
                self._idle_seconds = seconds
                self._note_activity()
            case messages.CaptureStacks(number, seconds):
                self._collect_stacks(number, seconds)
            case messages.SkipStacks(keys):
                self._stacks.skip(keys)
            case messages.Close(seconds):
                self._close(seconds)
            case _:
                assert_never(message)

    def _open(self, message: messages.Open, pipes: Sequence[int]) -> None:
        worker = RelayedWorker(
            convert(message.output, WorkerOutput, dec_hook=_path), self._tracebacks
        )
        key = worker.output.local_rank
        self._close_streams(key)
        self._tracebacks.forget()
        for name, descriptor in zip(message.streams, pipes, strict=True):
            display = self._screen.stdout if name == "stdout" else self._screen.stderr
            stream = Stream(descriptor, name, worker, display, self._files)
            worker.streams[name] = stream
            if stream.shown_if_log_fails:
                self._only_in_files[key, name] = stream
            self._streams.append(stream)
        self._workers[key] = worker
        self._note_activity()

    def _close_streams(self, key: int) -> None:
        """Read no more of a worker that has ended; what it has left running has ended, or is given up."""
        worker = self._workers.get(key)
        if worker is not None and worker.has_ended:
            for stream in worker.streams.values():
                stream.close(self._clock())

    def _drain(self, key: int) -> None:
        """Read what an ended worker has printed, and report it; its pipes may have other writers."""
        tail, error = "", None
        worker = self._workers.get(key)
        if worker is not None and not worker.has_ended:
            worker.has_ended = True
            for stream in worker.streams.values():
                stream.drain(self._clock())
            tail, error = worker.tail.text(), self._folders.run(worker.error) or None
        self._channel.send(messages.OutputDrained(key, tail, error))
        self._note_activity()

    def _collect_stacks(self, number: int, seconds: float) -> None:
        """Collect the stacks that workers will print on SIGQUIT."""
        running = {key: worker for key, worker in self._workers.items() if not worker.has_ended}
        is_raw = any(worker.output.style.raw for worker in self._workers.values())
        shown = is_raw and all(worker.is_shown for worker in running.values())
        self._stacks.begin(number, running, self._clock(), seconds, shown=shown)

    def _report_lines(self, number: int) -> None:
        """Report of each worker that has printed: last line, its age in seconds, all lines."""
        now = self._clock()
        lines = [
            (key, (_last_line(worker), worker.recent.quiet_for(now), worker.recent.lines))
            for key, worker in self._workers.items()
            if worker.recent.has_printed
        ]
        self._channel.send(messages.LastLines(number, lines))

    def _show(self, number: int) -> None:
        """Show what has been printed by now, unfinished lines, too; then report that."""
        for stream in self._streams:
            stream.drain(self._clock())
        self._tracebacks.say()
        self._to_show.append(number)

    def _report_shown(self) -> None:
        if not self._screen.waits:
            for number in self._to_show:
                self._channel.send(messages.LastLines(number, []))
            self._to_show.clear()

    def _close(self, seconds: float) -> None:
        """Leave once all is written, within some seconds."""
        for key in self._workers:
            self._close_streams(key)
        self._leave_at = min(self._leave_at, self._clock() + seconds)
        self._files.hurry()

    # Activity.

    @property
    def _idle_at(self) -> float:
        """When to report idle workers; NEVER: the agent does not ask, or knows."""
        if self._idle_seconds is None or self._is_idle:
            return NEVER
        return self._active_at + self._idle_seconds

    def _note_activity(self) -> None:
        self._active_at = self._clock()
        if self._is_idle:
            self._is_idle = False
            self._channel.send(messages.Quiet(None))

    def _check_activity(self) -> None:
        if self._clock() >= self._idle_at:
            self._is_idle = True
            self._channel.send(messages.Quiet(self._idle_seconds))

    # What could not be written.

    def _report_failures(self) -> None:
        """Report, once, that an output of ours can't be written any more."""
        for display, failure in self._screen.failed():
            is_stdout = display is self._screen.stdout
            if failure.errno == errno.EPIPE:
                if is_stdout and (display.has_unlogged_lines or not self._is_all_logged):
                    self._channel.send(messages.StdoutClosed())
            elif failure.errno not in _READER_GONE:
                name = "standard output" if is_stdout else "standard error"
                self._screen.say(
                    f"clusterrun: {name}: {failure.strerror}; what the workers print there is lost"
                )

    @property
    def _is_all_logged(self) -> bool:
        """Whether all that goes to standard output is in files as well."""
        shown = (it for it in self._streams if it.display is self._screen.stdout and it.shown)
        return all(stream.log for stream in shown)

    def _report_losses(self) -> None:
        """Report the workers' output that could not be written, and is in no other place."""
        needed = [display for display in self._screen.displays if display.has_unlogged_lines]
        # Output that has no reader, or no terminal, is not a loss.
        outputs = [it.output for it in needed if not _reader_is_gone(it.output.failure)]
        losses = filter(None, (output.loss() for output in (*outputs, *self._files.logs)))
        described = [(loss.name, loss.size, loss.why) for loss in losses]
        self._channel.send(messages.Closed(described))
        # Names of many files are more than a socket takes at once.
        deadline = self._clock() + _CLOSING_SECONDS
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLOUT)
        while self._channel.wants_write and (left := deadline - self._clock()) > 0:
            poll.poll(1000 * left)
            self._channel.flush()


def _reader_is_gone(failure: OSError | None) -> bool:
    return failure is not None and failure.errno in _READER_GONE


def _last_line(worker: RelayedWorker) -> str:
    return plain(worker.unfinished or worker.recent.last_line()).strip()


def _path(_kind: type, text: str) -> Path:
    return Path(text)
