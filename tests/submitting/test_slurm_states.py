"""Parsing of job states, exit codes and output files."""

from pathlib import Path

import pytest
from clusterrun.clients.slurm_job import JobState, QueuedJob, parse_job_state

RUNNING = (
    "JobId=12 JobName=train UserId=me(1000) JobState=RUNNING Reason=None Dependency=(null)"
    " Requeue=1 Restarts=0 ExitCode=0:0 StdErr=/home/me/12.out StdIn=/dev/null"
    " StdOut=/home/me/12.out Power=\n"
)


def test_state_of_running_job() -> None:
    """If both streams have one file, it is read once."""
    assert parse_job_state(RUNNING) == JobState("RUNNING", None, Path("/home/me/12.out"))


def test_output_path_with_blanks() -> None:
    """For example with ``--directive='--output=my logs/%j'``."""
    found = parse_job_state(RUNNING.replace("/home/me", "/home/me/my logs"))

    assert found.output == Path("/home/me/my logs/12.out")


def test_separate_error_file() -> None:
    """A pending job has no files, and /dev/null is not a file to read."""
    ended = "JobId=12 JobState=COMPLETED ExitCode=0:0 StdErr=/x/12.err StdOut=/x/12.out\n"

    assert parse_job_state(ended) == JobState("COMPLETED", 0, Path("/x/12.out"), Path("/x/12.err"))
    assert parse_job_state(ended.replace("/x/12.out", "/dev/null")).output is None
    assert parse_job_state(ended.replace("COMPLETED", "PENDING Reason=Priority")) == (
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
def test_exit_code_of_final_state(state: str, code: str, expected: int | None) -> None:
    """The job's own exit code, or one for the reason of its end; None for a requeued job."""
    found = parse_job_state(f"JobId=12 JobState={state} Reason=None ExitCode={code}\n")

    assert (found.words, found.exit_code) == (state, expected)


def test_commands_for_job_of_another_cluster() -> None:
    job = QueuedJob("12", ("--clusters=east",))

    assert job.line("scontrol show job") == "scontrol --clusters=east show job 12"
    assert job.line("scancel") == "scancel --clusters=east 12"
