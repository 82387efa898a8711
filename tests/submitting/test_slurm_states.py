"""What Slurm says of jobs: states, exit codes and files."""

from pathlib import Path

import pytest
from clusterrun.clients.submit import JobState, QueuedJob, state_of

RUNNING = (
    "JobId=12 JobName=train UserId=me(1000) JobState=RUNNING Reason=None Dependency=(null)"
    " Requeue=1 Restarts=0 ExitCode=0:0 StdErr=/home/me/12.out StdIn=/dev/null"
    " StdOut=/home/me/12.out Power=\n"
)


def test_a_running_job() -> None:
    """One file for both streams is one file."""
    assert state_of(RUNNING) == JobState("RUNNING", None, Path("/home/me/12.out"))


def test_a_path_with_blanks() -> None:
    """As `--directive='--output=my logs/%j'` has it."""
    found = state_of(RUNNING.replace("/home/me", "/home/me/my logs"))

    assert found.output == Path("/home/me/my logs/12.out")


def test_files_of_their_own() -> None:
    """A job that waits has none yet, and what Slurm throws away is none."""
    ended = "JobId=12 JobState=COMPLETED ExitCode=0:0 StdErr=/x/12.err StdOut=/x/12.out\n"

    assert state_of(ended) == JobState("COMPLETED", 0, Path("/x/12.out"), Path("/x/12.err"))
    assert state_of(ended.replace("/x/12.out", "/dev/null")).output is None
    assert state_of(ended.replace("COMPLETED", "PENDING Reason=Priority")) == (
        JobState("PENDING (Priority)")
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
    found = state_of(f"JobId=12 JobState={state} Reason=None ExitCode={code}\n")

    assert (found.words, found.exit_code) == (state, expected)


def test_a_job_of_another_cluster() -> None:
    """That cluster is asked, by the number that the job has there."""
    job = QueuedJob("12", ("--clusters=east",))

    assert job.line("scontrol show job") == "scontrol --clusters=east show job 12"
    assert job.line("scancel") == "scancel --clusters=east 12"
