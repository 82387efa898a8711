"""``--follow``: state changes, output and exit code of a job."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusterrun.clients.slurm_job import QueuedJob, follow
from clusterrun.job.this_process import CommandResult

JOB = QueuedJob("7")


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """Restore signal handlers, which following replaces."""
    before = {
        each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def state(name: str, code: int = 0, *, reason: str = "None", more: str = "") -> str:
    return f"JobId=7 JobState={name} Reason={reason} ExitCode={code}:0 {more}\n"


WAITS, RUNS, ENDED = state("PENDING", reason="Resources"), state("RUNNING"), state("COMPLETED")


def followed(
    *answers_of_scontrol: str, begin: Callable[[int], None] = lambda _turn: None
) -> tuple[int, list[float]]:
    """Follow a job with these answers of scontrol; return the exit code and all pauses.

    An answer that begins with an exclamation mark is an error.
    """
    answers = iter(enumerate(answers_of_scontrol))

    def ask(_words: object) -> CommandResult:
        number, call = next(answers)
        begin(number)
        return (
            CommandResult("", call[1:], 1) if call.startswith("!") else CommandResult(call, "", 0)
        )

    pauses: list[float] = []
    return follow(JOB, ask, pauses.append), pauses


def test_each_state_change_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is the job's own."""
    code, _ = followed(WAITS, WAITS, RUNS, RUNS, WAITS, RUNS, state("FAILED", 9))

    words = ["PENDING (Resources)", "RUNNING", "PENDING (Resources)", "RUNNING", "FAILED"]
    assert capsys.readouterr().err.splitlines() == [
        *(f"clusterrun: job 7: {each}" for each in words),
        "clusterrun: job 7 has ended: FAILED, exit code 9",
    ]
    assert code == 9


def test_unavailable_controller_is_queried_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _ = followed(RUNS, "!no route", "!no route", ENDED)

    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "clusterrun: job 7: Slurm does not answer: no route"
    assert lines[-1] == "clusterrun: job 7 has ended: COMPLETED, exit code 0"
    assert (len(lines), code) == (4, 0)


def test_unknown_job_is_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """Slurm forgets a job some minutes after its end."""
    code, _ = followed(RUNS, "!Invalid job id specified")

    assert "clusterrun: Slurm does not know how job 7 has ended\n" in capsys.readouterr().err
    assert code == 1


def test_pauses_between_queries_grow() -> None:
    """A long job causes one query in 15 s."""
    _, pauses = followed(*[RUNS] * 40, ENDED)

    assert max(pauses) == 1
    assert sum(pauses) == sum(range(1, 15)) + 26 * 15


def test_output_is_shown_to_last_line(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Output just before the end, and a truncated file."""
    path = folder / "7.out"
    texts = {1: b"first\n", 2: b"first\nsecond\n", 3: b"anew\n", 4: b"anew\nlast"}

    def write(call: int) -> None:
        if call in texts:
            path.write_bytes(texts[call])

    more = f"StdOut={path} StdErr={path}"
    runs, ended = state("RUNNING", more=more), state("COMPLETED", more=more)
    followed(runs, runs, runs, runs, ended, begin=write)

    assert capfdbinary.readouterr().out == b"first\nsecond\nanew\nlast"
