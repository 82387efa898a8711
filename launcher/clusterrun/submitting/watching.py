"""Follows a submitted job to its end: its states, and what it prints."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path

from msgspec import Struct

from clusterrun.domain.submissions.job_state import JobState, Phase
from clusterrun.submitting.scheduler import Ask, NoAnswer, Scheduler

SECONDS_BETWEEN_READS = 1.0
"""How late a line of the job may be."""

LONGEST_PAUSE = 15
"""Seconds between two questions to the scheduler, which serves others, too."""

MOST_BYTES = 1 << 20
"""At once, of each file."""


class Notice(Struct, frozen=True):
    """The state of the job has changed."""

    text: str
    is_running: bool = False
    """All of it runs, or the part of an array that does."""


class Printed(Struct, frozen=True):
    """The job, or one of an array, has printed something."""

    job_id: str
    is_error: bool
    data: bytes


class End(Struct, frozen=True):
    """The job has ended."""

    text: str
    exit_code: int
    """Of the jobs of an array the highest, as ``sbatch --wait`` has it."""


Event = Notice | Printed | End

UNKNOWN_END = 1
"""The exit code of a job whose end no command of the scheduler has kept."""


class _GrowingFile:
    """A file that is written by another host; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def more(self) -> bytes:
        """Return what was added; a file that has become shorter begins anew."""
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


class Watch:
    """One job, from now to its end."""

    def __init__(
        self,
        scheduler: Scheduler,
        job_id: str,
        ask: Ask,
        pause: Callable[[float], None],
        *,
        with_output: bool,
    ) -> None:
        """Take what asks the scheduler, and ``pause``, which waits for some seconds."""
        self._scheduler = scheduler
        self._job_id = job_id
        self._ask = ask
        self._pause = pause
        self._with_output = with_output
        self._files: dict[tuple[str, bool], _GrowingFile] = {}
        self._shown = ""

    def events(self) -> Iterator[Event]:
        """Yield what happens; the last one is the end."""
        for seconds in _pauses():
            try:
                states = self._scheduler.states(self._job_id, self._ask)
            except NoAnswer as error:
                # A controller that restarts or is busy answers later.
                yield from self._notice(f"{self._scheduler.title} does not answer: {error}")
            else:
                yield from self._changes(states)
                if all(state.phase is Phase.ENDED for state in states):
                    yield from self._printed()
                    yield self._end(states)
                    return
            yield from self._wait(seconds)

    def _changes(self, states: Sequence[JobState]) -> Iterator[Event]:
        is_running = any(state.phase is Phase.RUNNING for state in states)
        yield from self._notice(_summary(states), is_running=is_running)
        for state in states if self._with_output else ():
            for is_error, path in ((False, state.output), (True, state.error)):
                if path is not None:
                    self._files.setdefault((state.job_id, is_error), _GrowingFile(path))
        yield from self._printed()

    def _wait(self, seconds: float) -> Iterator[Event]:
        """Wait, and yield meanwhile what the job prints."""
        while seconds > 0:
            self._pause(min(seconds, SECONDS_BETWEEN_READS))
            seconds -= SECONDS_BETWEEN_READS
            yield from self._printed()

    def _printed(self) -> Iterator[Event]:
        for (job_id, is_error), file in self._files.items():
            while data := file.more():
                yield Printed(job_id, is_error, data)

    def _notice(self, text: str, *, is_running: bool = False) -> Iterator[Event]:
        if text != self._shown:
            self._shown = text
            yield Notice(text, is_running)

    def _end(self, states: Sequence[JobState]) -> End:
        if not states:
            title = self._scheduler.title
            return End(f"{title} does not know how job {self._job_id} has ended", UNKNOWN_END)
        worst = max(states, key=lambda state: state.exit_code)
        which = f" ({worst.job_id})" if len(states) > 1 else ""
        return End(
            f"job {self._job_id} has ended: {worst.words}, exit code {worst.exit_code}{which}",
            worst.exit_code,
        )


def _pauses() -> Iterator[float]:
    """Yield the seconds between questions: short at first, for jobs that start or fail at once."""
    return chain(range(1, LONGEST_PAUSE), repeat(LONGEST_PAUSE))


def _summary(states: Sequence[JobState]) -> str:
    """Return ``RUNNING``, or for an array ``2 RUNNING, 1 PENDING (Resources)``."""
    if len(states) == 1:
        return states[0].words
    counts = Counter(state.words for state in states)
    return ", ".join(f"{number} {words}" for words, number in counts.items())
