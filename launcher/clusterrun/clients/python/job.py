"""A job that was started from Python: the agent that was called, and what the job comes to."""

import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Self
from weakref import WeakSet

from clusterrun import errors
from clusterrun.clients.python.call import (
    FunctionCall,
    keywords_of,
    make_folder,
    modules_to_preload,
    options_of,
    pickled,
    write_call,
)
from clusterrun.clients.python.output import JobStreams
from clusterrun.errors import InternalError, MachineError, NodeLostError
from clusterrun.network.caller import (
    FROM_AGENT,
    Call,
    CallerChannel,
    Ended,
    FromAgent,
    Refused,
    Start,
)
from clusterrun.network.handshake import BadFrame
from clusterrun.policy.outcome import (
    Exited,
    Fate,
    Interrupted,
    Killed,
    NodeLost,
    NotSuspended,
    OutputGone,
    Report,
    Succeeded,
    Suspended,
)
from clusterrun.policy.outcome import WorkerFailed as FailedWorker
from clusterrun.processes import python_options
from clusterrun.scratch import remove_scratch

INTERRUPTS_TO_KILL = 2
"""The next one after these kills the agent itself."""

SECONDS_TO_TAKE_A_CALL = 60.0

PACKAGES = str(Path(__file__).parents[3])
"""Where clusterrun is: the caller may have put it on its import path by itself."""

AGENT = (
    f"import sys; sys.path[:0] = () if {PACKAGES!r} in sys.path else ({PACKAGES!r},);"
    " from clusterrun.cli.called import main; main(answers=0, unblocks_interrupts={})"
)
"""What the agent's interpreter runs."""

RANK_PROGRAM = Path(__file__).with_name("rank_program.py")


class WorkerFailed(RuntimeError):
    """A worker failed, and with it the job; the message is the job's report.

    ``__cause__`` is the exception that left the function, if the worker raised one and it could be
    unpickled, else a ``RemoteTraceback``.
    """

    __module__ = "clusterrun"

    def __init__(
        self, report: str, rank: int, host: str, exit_code: int | None, signal: int | None
    ) -> None:
        """Take the report, and how the worker that caused the end of the job ended.

        Args:
            report: what the command would have printed.
            rank: the worker's global rank.
            host: where it ran.
            exit_code: its exit code; None if a signal killed it, or it was never started.
            signal: the number of the signal that killed it; None if none did.

        """
        super().__init__(report, rank, host, exit_code, signal)
        self.report = report
        self.rank = rank
        self.host = host
        self.exit_code = exit_code
        self.signal = signal

    def __str__(self) -> str:
        return self.report


class JobInterrupted(RuntimeError):
    """A signal from outside ended the job; the message is the job's report."""

    __module__ = "clusterrun"

    def __init__(self, report: str, signal: int) -> None:
        """Take the report and the signal's number."""
        super().__init__(report, signal)
        self.report = report
        self.signal = signal

    def __str__(self) -> str:
        return self.report or f"{signal.Signals(self.signal).name} ended the job"


class RemoteTraceback(Exception):
    """The traceback of a worker's exception that could not be unpickled."""

    __module__ = "clusterrun"

    def __init__(self, text: str) -> None:
        """Take the traceback's text."""
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class CalledJob:
    """A call that runs on every rank of this node; ``close`` ends it if it still runs.

    Its agent is a child of this process, in its process group. A terminal's Ctrl-C and Ctrl-Z reach
    both; the agent takes a SIGINT of the terminal's and one of the caller's for one. It ends the job
    when this process's end of the channel closes.
    """

    def __init__(self) -> None:
        """Execute the agent with this interpreter; it waits for its call.

        Raises:
            OSError: it can't be executed.

        """
        self._pid = os.getpid()
        self._folder: Path | None = None
        """Has the call and what the ranks leave."""
        self._received: list[FromAgent] = []
        self._interrupts = 0
        """The number of KeyboardInterrupts: by Ctrl-C, or by a notebook."""
        self._output = JobStreams()
        self._selector = selectors.DefaultSelector()
        ours, theirs = socket.socketpair()
        number = ours.detach()
        self._channel: CallerChannel[FromAgent] = CallerChannel(FROM_AGENT, number, number)
        open_here.add(self)
        with theirs:
            # Until the agent has handlers, SIGINT would print the interpreter's own traceback.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._agent = subprocess.Popen(
                    # -P: no module of the current folder takes the place of one of ours.
                    [
                        sys.executable,
                        python_options("-P"),
                        "-c",
                        AGENT.format(signal.SIGINT not in mask),
                    ],
                    # In no other place: any number may be a standard stream that the caller has closed.
                    stdin=theirs.fileno(),
                    stdout=self._output.stdout.for_agent,
                    stderr=self._output.stderr.for_agent,
                )
            except BaseException:
                self.let_go()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._output.started()
        self._selector.register(self._channel, selectors.EVENT_READ)
        for pipe in self._output.pipes:
            self._selector.register(pipe, selectors.EVENT_READ)

    @classmethod
    def start(
        cls,
        call: FunctionCall,
        options: Mapping[str, object],
        *,
        called: str,
    ) -> Self:
        """Start the agent, and send it the call.

        Args:
            call: what each rank calls.
            options: the job's, by name.
            called: the public function that has been called, for messages.

        Raises:
            UsageError: a part of the call can't be pickled.
            MachineError: the call can't be written.
            TypeError: an option is unknown.

        """
        found = modules_to_preload(options, os.environ)
        keywords = keywords_of(options_of(called, {**found, **options}))
        # It imports its modules while the call is pickled.
        job = cls()
        try:
            body = pickled(call)
            job._folder = folder = make_folder(os.environ)
            write_call(body, folder)
            job._channel.send(
                Call(
                    (os.fsencode(RANK_PROGRAM), os.fsencode(folder)),
                    keywords=keywords,
                    remove_if_lost=os.fsencode(folder),
                    draws_bars=job._output.draws_bars,
                )
            )
            job._channel.send(Start())
            # An agent that has ended meanwhile is noticed by ``wait``.
            job._channel.drain(SECONDS_TO_TAKE_A_CALL)
        except BaseException:
            job.close()
            raise
        return job

    def wait(self, seconds: float | None = None) -> bool:
        """Print what the job prints until it has ended; return whether it has.

        A KeyboardInterrupt ends the job in order, a second one at once.

        Args:
            seconds: the longest wait; None: no limit.

        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._selector.get_map():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            try:
                for key, _ in self._selector.select(left):
                    if key.fileobj is self._channel:
                        self._receive()
                        is_open = self._channel.end is None
                    else:
                        is_open = self._output.copy(key.fd)
                    if not is_open:
                        self._selector.unregister(key.fileobj)
            except KeyboardInterrupt:
                self._interrupts += 1
                if self._interrupts > INTERRUPTS_TO_KILL:
                    self._agent.kill()
                self.interrupt()
        self._agent.wait()
        return True

    def _receive(self) -> None:
        try:
            self._received += self._channel.receive()
        except BadFrame as error:
            raise InternalError(f"the agent {error}") from error
        if self._channel.end is not None and self._channel.has_unfinished_input:
            raise InternalError("the agent has ended in the middle of a message")

    def interrupt(self) -> None:
        """Have the agent end the job in order, if it still runs; for any thread."""
        self._agent.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End the job if it still runs, and remove its files; nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        if self._agent.poll() is None:
            self._agent.kill()
        self._agent.wait()
        self.let_go()
        if self._folder is not None:
            remove_scratch(self._folder)

    def let_go(self) -> None:
        """Close this process's descriptors."""
        if self not in open_here:
            return
        open_here.discard(self)
        self._selector.close()
        self._channel.close()
        self._output.close()

    def results(self) -> list[Any]:
        """Return the results of this node's ranks, by rank, once the job has ended.

        Raises:
            as ``launch``.

        """
        if self._interrupts:
            raise KeyboardInterrupt
        ended = None
        for message in self._received:
            match message:
                case Refused():
                    raise message.error
                case Ended():
                    ended = message
        if ended is None or self._folder is None:
            raise _ended_early(self._agent.wait())
        report = ended.report
        if not isinstance(report.outcome.reason, Succeeded):
            _raise_failure(report, self._folder)
        if ended.code != errors.ExitCode.SUCCESS:
            raise MachineError(ended.unprinted)
        return [_returned(fate, self._folder) for fate in report.outcome.fates]


def _raise_failure(report: Report, folder: Path) -> NoReturn:
    # Most jobs succeed.
    from clusterrun.report.ending import report_text

    text = report_text(report)
    match report.outcome.reason:
        case FailedWorker(cause):
            raise _failed(text, cause) from _raised(cause, folder)
        case Interrupted(number):
            raise JobInterrupted(text, number)
        case OutputGone():
            raise JobInterrupted(text, signal.SIGPIPE)
        case Suspended() | NotSuspended():
            # As the caller sees it, something from outside has stopped the call.
            raise JobInterrupted(text, signal.SIGTERM)
        case NodeLost():
            raise NodeLostError(text)
        case _:
            raise InternalError(text)


def _failed(report: str, fate: Fate) -> WorkerFailed:
    ending = fate.ending
    return WorkerFailed(
        report,
        rank=fate.rank,
        host=fate.host,
        exit_code=ending.code if isinstance(ending, Exited) else None,
        signal=ending.number if isinstance(ending, Killed) else None,
    )


def _returned(fate: Fate, folder: Path) -> Any:
    """Return what the function returned on a rank.

    Raises:
        WorkerFailed: it has left the function without a result.
        Exception: what unpickling raises, with a note that names the rank.

    """
    try:
        with _result(fate, folder).open("rb") as file:
            pickle.load(file)
            return pickle.load(file)
    except FileNotFoundError:
        text = f"rank {fate.rank} exited with code 0 inside the function"
        raise _failed(text, fate) from None
    except Exception as error:
        error.add_note(f"while clusterrun unpickled the result of rank {fate.rank}")
        raise


def _raised(fate: Fate, folder: Path) -> BaseException | None:
    """Return the exception that left the function on a rank; None if none did.

    Its traceback instead, if the exception could not be pickled or unpickled.
    """
    try:
        file = _result(fate, folder).open("rb")
    except OSError:
        return None
    with file:
        how, text = pickle.load(file)
        if how != "raised":
            return None
        try:
            error = pickle.load(file)
        except Exception:  # noqa: BLE001 - a class may need more arguments than it has pickled
            error = None
    return error if isinstance(error, BaseException) else RemoteTraceback(text)


def _result(fate: Fate, folder: Path) -> Path:
    return folder / f"result-{fate.rank}"


def _ended_early(exit_code: int) -> Exception:
    """Return what it means that an agent has ended without a message."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number > 0:
        name = signal.Signals(number).name
        return JobInterrupted(f"clusterrun: {name} ended the agent of the job", number)
    return InternalError(f"the agent of the job exited with code {exit_code}; its error is above")


open_here: "WeakSet[CalledJob]" = WeakSet()
"""The jobs of this process whose descriptors are open: an agent ends when they close."""


def _let_go_in_child() -> None:
    """Close a forked child's copies: it may outlive the caller, with whom those agents end."""
    for each in list(open_here):
        each.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)
