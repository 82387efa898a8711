"""What is shown of a submitted job: every change once, all of its output, its end."""

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from tests.submitting.door import (
    BY_NAME,
    Answer,
    JobEnded,
    JobPhase,
    JobState,
    NoSchedulerAnswer,
    Printed,
    StateChanged,
    watch,
)

Turn = tuple[JobState, ...] | str
"""What a scheduler answers when it is asked; a text: why it does not answer."""


def watched(
    *turns: Turn, begin: Callable[[int], None] = lambda _turn: None
) -> tuple[list[StateChanged | Printed | JobEnded], list[float]]:
    """Return what a watch shows, and for how long it has paused."""
    answers = iter(enumerate(turns))

    def states(_job_id: str, _ask: object) -> tuple[JobState, ...]:
        number, turn = next(answers)
        begin(number)
        if isinstance(turn, str):
            raise NoSchedulerAnswer(turn)
        return turn

    pauses: list[float] = []
    scripted = replace(BY_NAME["slurm"], title="Scripted", states=states)
    events = watch(scripted, "7", lambda _words: Answer("", "", 0), pauses.append)
    return list(events), pauses


def state(phase: JobPhase, words: str, code: int = 0, output: Path | None = None) -> JobState:
    return JobState("7", phase, words, code, output)


WAITS = state(JobPhase.WAITING, "PENDING (Resources)")
RUNS = state(JobPhase.RUNNING, "RUNNING")


def test_every_change_is_shown_once() -> None:
    """The end has the job's own exit code."""
    failed = state(JobPhase.ENDED, "FAILED", 9)

    events, _ = watched((WAITS,), (WAITS,), (RUNS,), (RUNS,), (WAITS,), (RUNS,), (failed,))

    shown = ["PENDING (Resources)", "RUNNING", "PENDING (Resources)", "RUNNING", "FAILED"]
    assert events == [
        *(StateChanged(words, words == "RUNNING") for words in shown),
        JobEnded("job 7 has ended: FAILED, exit code 9", 9),
    ]


def test_a_scheduler_that_does_not_answer_is_asked_again() -> None:
    """A controller may restart while the job runs."""
    events, _ = watched((RUNS,), "no route", "no route", (state(JobPhase.ENDED, "COMPLETED"),))

    assert events[1] == StateChanged("Scripted does not answer: no route")
    assert events[-1] == JobEnded("job 7 has ended: COMPLETED, exit code 0", 0)
    assert len(events) == 4


def test_a_forgotten_job_has_not_succeeded() -> None:
    """Without accounting, Slurm forgets a job minutes after its end."""
    events, _ = watched((RUNS,), ())

    assert events == [
        StateChanged("RUNNING", is_running=True),
        JobEnded("Scripted does not know how job 7 has ended", 1),
    ]


def test_questions_become_rare() -> None:
    """The controller serves the whole cluster: one question in 15 s for a long job."""
    _, pauses = watched(*[(RUNS,)] * 40, (state(JobPhase.ENDED, "COMPLETED"),))

    assert max(pauses) == 1
    assert sum(pauses) == sum(range(1, 15)) + 26 * 15


def test_output_is_shown_to_its_last_line(folder: Path) -> None:
    """What is written just before the end, and a file that begins anew."""
    path = folder / "7.out"
    texts = {1: b"first\n", 2: b"first\nsecond\n", 3: b"anew\n", 4: b"anew\nlast"}

    def write(turn: int) -> None:
        if turn in texts:
            path.write_bytes(texts[turn])

    runs = state(JobPhase.RUNNING, "RUNNING", output=path)
    ended = state(JobPhase.ENDED, "COMPLETED", output=path)
    events, _ = watched((runs,), (runs,), (runs,), (runs,), (ended,), begin=write)

    printed = [event.data for event in events if isinstance(event, Printed)]
    assert printed == [b"first\n", b"second\n", b"anew\n", b"last"]


def test_jobs_of_an_array_are_counted() -> None:
    """The highest exit code is that of all."""
    one, two = (
        JobState("7_1", JobPhase.ENDED, "FAILED", 3),
        JobState("7_2", JobPhase.RUNNING, "RUNNING"),
    )
    last = JobState("7_2", JobPhase.ENDED, "COMPLETED")

    events, _ = watched((one, two), (one, last))

    assert events[0] == StateChanged("1 FAILED, 1 RUNNING", is_running=True)
    assert events[-1] == JobEnded("job 7 has ended: FAILED, exit code 3 (7_1)", 3)
