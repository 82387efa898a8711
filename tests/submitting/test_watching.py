"""What is shown of a submitted job: every change once, all of its output, its end."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusterrun.clients.submit import QueuedJob, follow
from clusterrun.job.this_process import CommandResult

JOB = QueuedJob("7")


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """Following takes the signals by which a user leaves a job."""
    before = {
        each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def state(name: str, code: int = 0, *, reason: str = "None", more: str = "") -> str:
    """Return a line of ``scontrol show job``."""
    return f"JobId=7 JobState={name} Reason={reason} ExitCode={code}:0 {more}\n"


WAITS, RUNS, ENDED = state("PENDING", reason="Resources"), state("RUNNING"), state("COMPLETED")


def followed(
    *turns: str, begin: Callable[[int], None] = lambda _turn: None
) -> tuple[int, list[float]]:
    """Return the exit code of a job of which Slurm says this, and all pauses.

    A turn that begins with an exclamation mark is an error.
    """
    answers = iter(enumerate(turns))

    def ask(_words: object) -> CommandResult:
        number, turn = next(answers)
        begin(number)
        return (
            CommandResult("", turn[1:], 1) if turn.startswith("!") else CommandResult(turn, "", 0)
        )

    pauses: list[float] = []
    return follow(JOB, ask, pauses.append), pauses


def test_every_change_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The end has the job's own exit code."""
    code, _ = followed(WAITS, WAITS, RUNS, RUNS, WAITS, RUNS, state("FAILED", 9))

    words = ["PENDING (Resources)", "RUNNING", "PENDING (Resources)", "RUNNING", "FAILED"]
    assert capsys.readouterr().err.splitlines() == [
        *(f"clusterrun: job 7: {each}" for each in words),
        "clusterrun: job 7 has ended: FAILED, exit code 9",
    ]
    assert code == 9


def test_a_controller_that_does_not_answer_is_asked_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It may restart while the job runs."""
    code, _ = followed(RUNS, "!no route", "!no route", ENDED)

    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "clusterrun: job 7: Slurm does not answer: no route"
    assert lines[-1] == "clusterrun: job 7 has ended: COMPLETED, exit code 0"
    assert (len(lines), code) == (4, 0)


def test_a_forgotten_job_has_not_succeeded(capsys: pytest.CaptureFixture[str]) -> None:
    """Slurm forgets a job minutes after its end."""
    code, _ = followed(RUNS, "!Invalid job id specified")

    assert "clusterrun: Slurm does not know how job 7 has ended\n" in capsys.readouterr().err
    assert code == 1


def test_questions_become_rare() -> None:
    """The controller serves the whole cluster: one question in 15 s for a long job."""
    _, pauses = followed(*[RUNS] * 40, ENDED)

    assert max(pauses) == 1
    assert sum(pauses) == sum(range(1, 15)) + 26 * 15


def test_output_is_shown_to_its_last_line(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What is written just before the end, and a file that begins anew."""
    path = folder / "7.out"
    texts = {1: b"first\n", 2: b"first\nsecond\n", 3: b"anew\n", 4: b"anew\nlast"}

    def write(turn: int) -> None:
        if turn in texts:
            path.write_bytes(texts[turn])

    more = f"StdOut={path} StdErr={path}"
    runs, ended = state("RUNNING", more=more), state("COMPLETED", more=more)
    followed(runs, runs, runs, runs, ended, begin=write)

    assert capfdbinary.readouterr().out == b"first\nsecond\nanew\nlast"
