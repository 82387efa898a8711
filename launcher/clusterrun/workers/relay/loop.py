"""The relay process: waits for pipes, outputs and the agent, but never blocks on a reader or a disk.

Each output buffers what its reader or disk does not take yet. Above a limit, the pipes that feed the
output are no longer read, which blocks only the workers that print to it.
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
from clusterrun.workers.relay.duplicate_tracebacks import Tracebacks
from clusterrun.workers.relay.files import OutputFiles
from clusterrun.workers.relay.recent_output import plain
from clusterrun.workers.relay.routes import LauncherOutput, WorkerOutput
from clusterrun.workers.relay.screen import Screen
from clusterrun.workers.relay.stacks import StackCollector
from clusterrun.workers.relay.streams import READ_BYTES, RelayedWorker, Stream

_ORPHANED_SECONDS = 0.4
"""For reading pipes after the agent has died, while its workers are being killed."""
_LAST_SECONDS = 0.1
"""For writing what was read last."""
_CLOSING_SECONDS = 0.5
"""For the agent to read the list of losses; less than it waits for the relay's end."""
_GATHERING_MILLISECONDS = 2
"""Pause after a short read: workers print line by line, and a wake-up for each line costs more."""

_READER_GONE = {errno.EPIPE, errno.EIO}
"""EIO: the terminal has hung up; the agent gets SIGHUP then."""

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


def run_relay(control: socket.socket, output: LauncherOutput, scratch: Sequence[Path]) -> NoReturn:
    """Run the relay in a process that was just forked with all signals blocked.

    Args:
        control: the connection to the agent.
        output: where lines are shown.
        scratch: the folders to remove at the end; they have the same parent.

    """
    _detach_from_agent(keep={control.fileno(), output.stdout, output.stderr})
    # In a thread: a large or slow folder must not delay the output.
    sweeper = start_thread(partial(remove_leftovers, scratch[0].parent)) if scratch else None
    file_calls = TimeLimitedCalls(SECONDS_TO_ANSWER)
    channel = HelperChannel(control, messages.FROM_RELAY, messages.TO_RELAY)
    relay = Relay(channel, output, time.monotonic, file_calls)
    relay.run()
    if sweeper:
        sweeper.join(SECONDS_TO_ANSWER)
    # If two threads hang in one folder, not even SIGKILL ends this process. The next launch removes
    # what is left.
    for path in () if sweeper and sweeper.is_alive() else scratch:
        file_calls.run(partial(remove_scratch, path))
    for path in relay.sockets:
        file_calls.run(partial(remove_socket, path))
    os._exit(ExitCode.SUCCESS)


def _detach_from_agent(keep: Collection[int]) -> None:
    # The agent's objects must not be finalized here; their descriptors are closed below.
    gc.freeze()
    gc.enable()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number in _IGNORED:
            # This also drops signals that came since the fork to the agent's process group.
            signal.signal(number, signal.SIG_IGN)
        elif callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Not in the foreground group: Ctrl-C and Ctrl-Z are for the agent.
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0, inheritable=False)
    close_all_but({0, *keep})
    # Each worker needs four descriptors, and the soft limit is often 1024.
    allow_many_open_files()
    with suppress(OSError):
        Path("/proc/self/comm").write_text("clusterrun-relay", encoding="utf-8")


class Relay:
    """Serves the agent at the other end of ``channel`` until it closes the relay or dies.

    Args:
        channel: the connection to the agent.
        output: where lines are shown.
        clock: returns monotonic seconds.
        file_calls: limits the time for reading the workers' error files.

    """

    def __init__(
        self,
        channel: "HelperChannel[messages.FromRelay, messages.ToRelay]",
        output: LauncherOutput,
        clock: Callable[[], float],
        file_calls: TimeLimitedCalls,
    ) -> None:
        self.sockets: list[Path] = []
        """The agent's sockets, to be removed at the end."""
        self._channel = channel
        self._clock = clock
        self._file_calls = file_calls
        self._loop = Loop[None](clock)
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._printed_errors: set[str] = set()
        self._files = OutputFiles(partial(os.eventfd_write, self._wakeup, 1))
        self._screen = Screen(output, self._files.opened)
        self._tracebacks = Tracebacks(clock)
        self._stacks = StackCollector(channel.send)
        self._workers: dict[int, RelayedWorker] = {}
        """The last worker of each local rank, also if it has ended."""
        self._streams: list[Stream] = []
        """Streams whose pipes are open."""
        self._readable: list[Stream] = []
        self._largest_read = 0
        self._flush_requests: list[int] = []
        """Numbers of unanswered ``FlushOutput`` messages."""
        self._idle_seconds: float | None = None
        """Time after which idle workers are reported; None: never."""
        self._active_at = 0.0
        self._is_idle = False
        self._end_at = NEVER

    def run(self) -> None:
        """Serve until the agent is gone and all is written, or the time for that is over."""
        self._loop.watch(self._wakeup, self._on_wakeup)
        self._serve(lambda: not self._streams and self._is_written)
        for stream in self._streams:
            stream.close(self._clock())
        self._tracebacks.report_duplicates()
        self._screen.finish()
        self._end_at = self._clock() + _LAST_SECONDS
        self._serve(lambda: self._is_written)
        self._report_losses()

    def _serve(self, finished: Callable[[], bool]) -> None:
        while True:
            self.prepare_to_wait()
            if self._end_at < NEVER and (finished() or self._clock() >= self._end_at):
                return
            self._pause_after_short_read()
            self._loop.turn(self._due)
            # After the agent's messages: a request to take stacks precedes the stacks.
            readable, self._readable = self._readable, []
            for stream in readable:
                self._read(stream)

    def prepare_to_wait(self) -> None:
        """Do what is due, write what can be written, and watch what can be read or written."""
        self._stacks.update(self._clock())
        self._check_activity()
        for error in self._files.errors():
            if error not in self._printed_errors:
                self._printed_errors.add(error)
                self._screen.print_text(error)
            for worker in self._workers.values():
                for stream in worker.streams.values():
                    stream.show_unwritten()
        for stream in self._streams:
            stream.show_due(self._clock())
        self._tracebacks.update(self._clock())
        self._screen.draw(self._clock())
        self._report_failures()
        # Failures may just have been reported there, and /dev/null can't be watched.
        self._screen.flush()
        self._report_flushed()
        for output in self._screen.outputs:
            self._watch(output.fileno(), self._on_writable, writes=bool(output.waiting))
        for stream in self._streams:
            reads = not (stream.ended or stream.congested())
            self._watch(stream.descriptor, partial(self._on_readable, stream), reads=reads)
            if stream.ended:
                # No longer watched.
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
            self._end_at,
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

    def _on_wakeup(self, _now: float) -> Iterable[None]:
        os.eventfd_read(self._wakeup)
        return ()

    def _on_writable(self, _now: float) -> Iterable[None]:
        # ``prepare_to_wait`` writes.
        return ()

    def _on_readable(self, stream: Stream, _now: float) -> Iterable[None]:
        self._readable.append(stream)
        return ()

    def _pause_after_short_read(self) -> None:
        """Let workers print more before the next read, unless they print much or a reader is behind."""
        if 0 < self._largest_read < READ_BYTES // 2 and not self._screen.waits:
            poll = select.poll()
            poll.register(self._channel.fileno(), select.POLLIN)
            poll.poll(_GATHERING_MILLISECONDS)
        self._largest_read = 0

    def _read(self, stream: Stream) -> None:
        count = stream.read(self._clock())
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
        """Handle a message of the agent; ``pipes`` are the descriptors that came with it."""
        match message:
            case messages.Open():
                self._open(message, pipes)
            case messages.DrainOutput(key):
                self._drain(key)
            case messages.PrintText(text):
                # Nothing may follow the job's report.
                self._tracebacks.report_duplicates()
                self._screen.print_text(text)
            case messages.Append(path, line, top):
                self._files.append(Path(path), line, None if top is None else Path(top))
            case messages.Link(path, target):
                self._files.link(Path(path), target)
            case messages.RemoveAtEnd(path):
                self.sockets.append(Path(path))
            case messages.QueryLastLines(number):
                self._report_lines(number)
            case messages.FlushOutput(number):
                self._flush_output(number)
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
            self._streams.append(stream)
        self._workers[key] = worker
        self._note_activity()

    def _close_streams(self, key: int) -> None:
        """Close the pipes of an ended worker, even if a descendant still has them open."""
        worker = self._workers.get(key)
        if worker is not None and worker.has_ended:
            for stream in worker.streams.values():
                stream.close(self._clock())

    def _drain(self, key: int) -> None:
        """Read what an ended worker has printed, and report it; descendants may still print."""
        tail, error = "", None
        worker = self._workers.get(key)
        if worker is not None and not worker.has_ended:
            worker.has_ended = True
            for stream in worker.streams.values():
                stream.drain(self._clock())
            tail, error = worker.tail.text(), self._file_calls.run(worker.error) or None
        self._channel.send(messages.OutputDrained(key, tail, error))
        self._note_activity()

    def _collect_stacks(self, number: int, seconds: float) -> None:
        """Collect the stacks that running workers will print on SIGQUIT."""
        running = {key: worker for key, worker in self._workers.items() if not worker.has_ended}
        is_raw = any(worker.output.style.raw for worker in self._workers.values())
        shown = is_raw and all(worker.is_shown for worker in running.values())
        self._stacks.begin(number, running, self._clock(), seconds, shown=shown)

    def _report_lines(self, number: int) -> None:
        """Report each printing worker's last line, its age in seconds, and its number of lines."""
        now = self._clock()
        lines = [
            (key, (_last_line(worker), worker.recent.quiet_for(now), worker.recent.lines))
            for key, worker in self._workers.items()
            if worker.recent.has_printed
        ]
        self._channel.send(messages.LastLines(number, lines))

    def _flush_output(self, number: int) -> None:
        """Show what has been printed by now, also unfinished lines; ``LastLines`` follows."""
        for stream in self._streams:
            stream.drain(self._clock())
        self._tracebacks.report_duplicates()
        self._flush_requests.append(number)

    def _report_flushed(self) -> None:
        if not self._screen.waits:
            for number in self._flush_requests:
                self._channel.send(messages.LastLines(number, []))
            self._flush_requests.clear()

    def _close(self, seconds: float) -> None:
        """End once all is written, within ``seconds``."""
        for key in self._workers:
            self._close_streams(key)
        self._end_at = min(self._end_at, self._clock() + seconds)
        self._files.wake_when_idle()

    # Activity.

    @property
    def _idle_at(self) -> float:
        """When to report idle workers; NEVER if the agent has not asked, or knows."""
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
        """Report once that an output of the launcher can't be written any more."""
        for display, failure in self._screen.failed():
            is_stdout = display is self._screen.stdout
            if failure.errno == errno.EPIPE:
                if is_stdout and (display.has_unlogged_lines or not self._is_all_logged):
                    self._channel.send(messages.StdoutClosed())
            elif failure.errno not in _READER_GONE:
                name = "standard output" if is_stdout else "standard error"
                self._screen.print_text(
                    f"clusterrun: {name}: {failure.strerror}; what the workers print there is lost"
                )

    @property
    def _is_all_logged(self) -> bool:
        """Whether all that is printed to standard output is in log files as well."""
        shown = (it for it in self._streams if it.display is self._screen.stdout and it.shown)
        return all(stream.log for stream in shown)

    def _report_losses(self) -> None:
        """Report the workers' output that was written neither to the screen nor to a log file."""
        unlogged = [it.output for it in self._screen.displays if it.has_unlogged_lines]
        # It is not a loss if the reader or the terminal is gone.
        outputs = [
            it for it in unlogged if it.failure is None or it.failure.errno not in _READER_GONE
        ]
        losses = filter(None, (output.loss() for output in (*outputs, *self._files.logs)))
        described = [(loss.name, loss.size, loss.why) for loss in losses]
        self._channel.send(messages.Closed(described))
        # The names of many files may be more than a socket takes at once.
        deadline = self._clock() + _CLOSING_SECONDS
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLOUT)
        while self._channel.wants_write and (left := deadline - self._clock()) > 0:
            poll.poll(1000 * left)
            self._channel.flush()


def _last_line(worker: RelayedWorker) -> str:
    return plain(worker.unfinished or worker.recent.last_line()).strip()


def _path(_kind: type, text: str) -> Path:
    return Path(text)
