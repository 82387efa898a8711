"""What Slurm says of jobs: states, exit codes and files."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.submitting.door import Answer, JobState, NoSlurmAnswer, QueuedJob, states_of

RUNNING = (
    "JobId=12 JobName=train UserId=me(1000) JobState=RUNNING Reason=None Dependency=(null)"
    " Requeue=1 Restarts=0 ExitCode=0:0 StdErr=/home/me/12.out StdIn=/dev/null"
    " StdOut=/home/me/12.out Power=\n"
)
ARRAY = (
    "JobId=14 ArrayJobId=14 ArrayTaskId=1-2%1 JobState=PENDING Reason=JobArrayTaskLimit"
    " ExitCode=0:0 StdOut=/x/14_4294967294.out\n"
    "JobId=15 ArrayJobId=14 ArrayTaskId=0 JobState=COMPLETED Reason=None ExitCode=0:0"
    " StdErr=/x/14_0.err StdOut=/x/14_0.out\n"
)


def states(text: str) -> tuple[JobState, ...]:
    """Return the states of what scontrol prints."""
    return states_of(QueuedJob("12"), lambda _words: Answer(text, "", 0))


def test_a_running_job() -> None:
    """One file for both streams is one file."""
    assert states(RUNNING) == (JobState("12", "RUNNING", None, Path("/home/me/12.out")),)


def test_a_path_with_blanks() -> None:
    """As `--directive='--output=my logs/%j'` has it."""
    (found,) = states(RUNNING.replace("/home/me", "/home/me/my logs"))

    assert found.output == Path("/home/me/my logs/12.out")


def test_jobs_of_an_array() -> None:
    """Those that wait share a line, and have no files yet."""
    assert states(ARRAY) == (
        JobState("14_1-2%1", "PENDING (JobArrayTaskLimit)"),
        JobState("14_0", "COMPLETED", 0, Path("/x/14_0.out"), Path("/x/14_0.err")),
    )


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "9:0", 9),
        ("FAILED", "0:11", 139),
        ("FAILED", "0:0", 1),
        ("CANCELLED", "0:15", 143),
        ("CANCELLED", "0:0", 143),
        ("TIMEOUT", "0:15", 124),
        ("OUT_OF_MEMORY", "0:125", 137),
        ("NODE_FAIL", "1:0", 5),
        ("REQUEUED", "0:0", None),
        ("REQUEUE_HOLD", "0:0", None),
        ("PENDING", "0:0", None),
        ("CONFIGURING", "0:0", None),
    ],
)
def test_ends(state: str, code: str, expected: int | None) -> None:
    """The job's own exit code, or one for the reason of its end; none while it waits for its next turn."""
    (found,) = states(f"JobId=12 JobState={state} Reason=None ExitCode={code}\n")

    assert (found.words, found.exit_code) == (state, expected)


def test_a_job_of_another_cluster() -> None:
    """That cluster is asked, by the number that the job has there; it may have forgotten the job."""
    asked = []

    def ask(words: Sequence[str]) -> Answer:
        asked.append(" ".join(words))
        return Answer("", "slurm_load_jobs error: Invalid job id specified", 1)

    job = QueuedJob("12", ("--clusters=east",))
    assert states_of(job, ask) == ()
    assert asked == ["scontrol --oneliner --clusters=east show job 12"]
    assert job.typed("scancel") == "scancel --clusters=east 12"


def test_a_controller_that_is_down() -> None:
    """Says nothing about the job."""
    down = Answer("", "no news\nslurm_load_jobs error: Unable to contact slurm controller\n", 1)

    with pytest.raises(NoSlurmAnswer, match="Unable to contact"):
        states_of(QueuedJob("12"), lambda _words: down)
