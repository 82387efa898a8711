"""Follows a submitted job to its end, or until the user leaves it: its states, and what it prints."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path
from types import FrameType

from msgspec import Struct

from clusterrun.cli.printing import complain
from clusterrun.clients.submit.scheduler import (
    Ask,
    JobPhase,
    JobState,
    NoSchedulerAnswer,
    Scheduler,
    asking,
)
from clusterrun.errors import MachineError, exit_code_of_signal

SECONDS_BETWEEN_READS = 1.0
"""How late a line of the job may be."""

LONGEST_PAUSE = 15
"""Seconds between two questions to the scheduler, which serves others, too."""

MOST_BYTES = 1 << 20
"""At once, of each file."""

SECONDS_TO_SHOW_REST = 10.0
"""For a command that shows what a job has printed, after the end of the job."""

UNKNOWN_END = 1
"""The exit code of a job whose end no command of the scheduler has kept."""


class StateChanged(Struct, frozen=True):
    """The state of the job has changed."""

    text: str
    is_running: bool = False
    """All of it runs, or the part of an array that does."""


class Printed(Struct, frozen=True):
    """The job, or one of an array, has printed something."""

    data: bytes
    is_error: bool = False


class JobEnded(Struct, frozen=True):
    """The job has ended."""

    text: str
    exit_code: int
    """Of the jobs of an array the highest, as ``sbatch --wait`` has it."""


class GrowingFile:
    """A file that is written by another host; it need not exist yet."""

    def __init__(self, path: Path, *, is_error: bool) -> None:
        self._path = path
        self._is_error = is_error
        self._read = 0

    def printed(self) -> Iterator[Printed]:
        """Yield what was added; a file that has become shorter begins anew."""
        while data := self._more():
            yield Printed(data, self._is_error)

    def _more(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._read:
                    self._read = 0
                file.seek(self._read)
                data = file.read(MOST_BYTES)
        except OSError:
            return b""
        self._read += len(data)
        return data


def watch(
    scheduler: Scheduler, job_id: str, ask: Ask, pause: Callable[[float], None]
) -> Iterator[StateChanged | Printed | JobEnded]:
    """Yield what happens to a job from now on; the last is its end.

    ``ask`` runs a command of the scheduler, and ``pause`` waits for some seconds.
    """
    files: dict[tuple[str, bool], GrowingFile] = {}

    def printed() -> Iterator[Printed]:
        return chain.from_iterable(file.printed() for file in files.values())

    shown = ""
    # Short at first, for jobs that start or fail at once.
    for seconds in chain(range(1, LONGEST_PAUSE), repeat(LONGEST_PAUSE)):
        states: Sequence[JobState] = ()
        try:
            states = scheduler.states(job_id, ask) if scheduler.states else ()
            text, is_over = _summary(states), all(each.phase is JobPhase.ENDED for each in states)
        except NoSchedulerAnswer as error:
            # A controller that restarts or is busy answers later.
            text, is_over = f"{scheduler.title} does not answer: {error}", False
        if text not in {shown, ""}:
            shown = text
            yield StateChanged(text, any(each.phase is JobPhase.RUNNING for each in states))
        for state in states:
            for is_error, path in ((False, state.output), (True, state.error)):
                if path is not None:
                    files.setdefault((state.job_id, is_error), GrowingFile(path, is_error=is_error))
        yield from printed()
        if is_over:
            yield _end(scheduler, job_id, states)
            return
        for _ in range(seconds):
            pause(SECONDS_BETWEEN_READS)
            yield from printed()


def _summary(states: Sequence[JobState]) -> str:
    """Return ``RUNNING``, or for an array ``2 RUNNING, 1 PENDING (Resources)``."""
    if len(states) == 1:
        return states[0].words
    counts = Counter(state.words for state in states)
    return ", ".join(f"{number} {words}" for words, number in counts.items())


def _end(scheduler: Scheduler, job_id: str, states: Sequence[JobState]) -> JobEnded:
    if not states:
        return JobEnded(f"{scheduler.title} does not know how job {job_id} has ended", UNKNOWN_END)
    worst = max(states, key=lambda state: state.exit_code)
    which = f" ({worst.job_id})" if len(states) > 1 else ""
    return JobEnded(
        f"job {job_id} has ended: {worst.words}, exit code {worst.exit_code}{which}",
        worst.exit_code,
    )


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""By which a user leaves a job that goes on."""


class _Left(Exception):
    """The user has had enough; the argument is the signal's number."""


def follow(scheduler: Scheduler, job_id: str, environ: Mapping[str, str]) -> int:
    """Show a job to its end, and return its exit code; that of a signal if one came first.

    What it prints goes to standard output and standard error as it does there; its states go to
    standard error.

    Raises:
        MachineError: what it prints cannot be written.

    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    try:
        return _show(scheduler, job_id, environ)
    except _Left as left:
        complain(
            f"\nclusterrun: job {job_id} goes on; to see it again: clusterrun logs {job_id}"
            f"; to end it: clusterrun cancel {job_id}"
        )
        return exit_code_of_signal(left.args[0])


def _leave(number: int, _frame: FrameType | None) -> None:
    # The next one does not keep the last line from being printed.
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise _Left(number)


def _show(scheduler: Scheduler, job_id: str, environ: Mapping[str, str]) -> int:
    shower = _Shower(scheduler.show(job_id), environ)
    try:
        for event in watch(scheduler, job_id, asking(environ), time.sleep):
            match event:
                case Printed(data, is_error):
                    _pass_on(data, job_id, is_error=is_error)
                case StateChanged(text, is_running):
                    complain(f"clusterrun: job {job_id}: {text}")
                    if is_running:
                        shower.show()
                case JobEnded(text, exit_code):
                    shower.show_rest()
                    complain(f"clusterrun: {text}")
                    return exit_code
    finally:
        shower.end()
    raise AssertionError("a watch ends with the end of the job")


def _pass_on(data: bytes, job_id: str, *, is_error: bool) -> None:
    stream = sys.stderr if is_error else sys.stdout
    # It may have been closed by who has started us.
    if stream is None:
        return
    try:
        stream.buffer.write(data)
        stream.flush()
    except BrokenPipeError:
        # The reader has seen enough.
        raise _Left(signal.SIGPIPE) from None
    except OSError as error:
        name = "standard error" if is_error else "standard output"
        raise MachineError(
            f"{name} can't be written: {error.strerror}",
            f"job {job_id} goes on; to see it again, type clusterrun logs {job_id}",
        ) from None


class _Shower:
    """The command that shows what a job prints, if it is not written to files."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        self._words = words
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None

    def show(self) -> None:
        """Start the command, unless it runs."""
        if self._words and (self._process is None or self._process.poll() is not None):
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, env=dict(self._environ)
            )

    def show_rest(self) -> None:
        """Let the command show what is left of a job that has ended."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_TO_SHOW_REST)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
