"""What Slurm says of jobs: phases, exit codes and files."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.submitting.door import (
    BY_NAME,
    Answer,
    JobPhase,
    JobState,
    NoSchedulerAnswer,
    UsageError,
    cancel,
    expect_known,
    read_sacct,
    read_scontrol,
)

SLURM = BY_NAME["slurm"]

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


def test_a_running_job() -> None:
    """One file for both streams is one file."""
    output = Path("/home/me/12.out")

    assert read_scontrol(RUNNING) == (JobState("12", JobPhase.RUNNING, "RUNNING", 0, output),)


def test_a_path_with_blanks() -> None:
    """As `--directive='--output=my logs/%j'` has it."""
    (found,) = read_scontrol(RUNNING.replace("/home/me", "/home/me/my logs"))

    assert found.output == Path("/home/me/my logs/12.out")


def test_jobs_of_an_array() -> None:
    """Those that wait share a line, and have no files yet."""
    assert read_scontrol(ARRAY) == (
        JobState("14_1-2%1", JobPhase.WAITING, "PENDING (JobArrayTaskLimit)"),
        JobState("14_0", JobPhase.ENDED, "COMPLETED", 0, Path("/x/14_0.out"), Path("/x/14_0.err")),
    )


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "9:0", 9),
        ("FAILED", "0:11", 139),
        ("FAILED", "0:0", 1),
        ("CANCELLED by 1000", "0:15", 143),
        ("CANCELLED", "0:0", 143),
        ("TIMEOUT", "0:15", 124),
        ("OUT_OF_MEMORY", "0:125", 137),
        ("NODE_FAIL", "1:0", 5),
    ],
)
def test_ends(state: str, code: str, expected: int) -> None:
    """The job's own exit code, or one for the reason of its end; never 0 unless it succeeded."""
    (found,) = read_sacct(f"12|{state}|{code}\n")

    assert (found.phase, found.exit_code) == (JobPhase.ENDED, expected)


@pytest.mark.parametrize("state", ["REQUEUED", "REQUEUE_HOLD", "PENDING", "CONFIGURING"])
def test_a_job_that_waits(state: str) -> None:
    """Also for its next turn."""
    assert read_sacct(f"12|{state}|0:0\n")[0].phase is JobPhase.WAITING


def test_an_old_job_is_looked_up() -> None:
    """By sacct; without accounting nothing is known of it."""
    forgotten = Answer("", "slurm_load_jobs error: Invalid job id specified", 1)
    answers = {"scontrol": forgotten, "sacct": Answer("12|FAILED|3:0\n", "", 0)}

    assert SLURM.states
    (found,) = SLURM.states("12", lambda words: answers[words[0]])
    unknown = SLURM.states("12", lambda words: answers.get("x" + words[0], forgotten))

    assert (found.exit_code, unknown) == (3, ())


def test_a_job_of_another_cluster() -> None:
    """Each command asks that cluster, by the number that the job has there."""
    forgotten = Answer("", "slurm_load_jobs error: Invalid job id specified", 1)
    asked = []

    def ask(words: Sequence[str]) -> Answer:
        asked.append(" ".join(words))
        return forgotten if words[0] == "scontrol" else Answer("12|RUNNING|0:0\n", "", 0)

    assert cancel(SLURM, "12@east", ask) == "Slurm ends job 12@east"
    scontrol, sacct, scancel = asked
    assert scontrol == "scontrol --oneliner --clusters=east show job 12"
    assert sacct.endswith(" --clusters=east --jobs=12")
    assert scancel == "scancel --clusters=east 12"


def test_a_controller_that_is_down() -> None:
    """Says nothing about the job."""
    down = Answer("", "no news\nslurm_load_jobs error: Unable to contact slurm controller\n", 1)

    assert SLURM.states
    with pytest.raises(NoSchedulerAnswer, match="Unable to contact"):
        SLURM.states("12", lambda _words: down)
    with pytest.raises(UsageError, match="Slurm does not answer: no news slurm_load_jobs"):
        expect_known(SLURM, "12", lambda _words: down)


def test_a_job_of_somebody_else_stays() -> None:
    """Slurm's refusal is an error."""
    denied = Answer("", "scancel: error: Kill job error on job id 12: Access denied", 1)
    answers = {"scontrol": Answer(RUNNING, "", 0), "scancel": denied}

    with pytest.raises(UsageError, match=r"Slurm does not end job 12: .*Access denied"):
        cancel(SLURM, "12", lambda words: answers[words[0]])


def test_the_state_of_a_heterogeneous_job_is_that_of_its_script() -> None:
    """It runs in the first group; those of other groups have no exit code of their own."""
    first = "JobId=7 HetJobId=7 HetJobOffset=0 JobState=FAILED ExitCode=9:0 StdOut=/x/7.out"
    other = "JobId=8 HetJobId=7 HetJobOffset=1 JobState=CANCELLED ExitCode=0:0 StdOut=/x/8.out"

    (running,) = read_scontrol(f"{first}\n{other}\n")
    (old,) = read_sacct("7+0|FAILED|9:0\n7+1|CANCELLED by 0|0:0\n")

    assert (running.job_id, running.exit_code) == ("7", 9)
    assert (old.job_id, old.exit_code) == ("7", 9)
