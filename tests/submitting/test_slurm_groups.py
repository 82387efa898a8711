"""Heterogeneous jobs of Slurm's: groups of nodes in the job file's section ``slurm``."""

import re
from pathlib import Path

import pytest

from tests.submitting.door import (
    Answer,
    Slurm,
    UsageError,
    read_sacct,
    read_scontrol,
)
from tests.submitting.shellcheck import complaints
from tests.submitting.submitted import script, submission

GROUPS = """\
script: train.py
submit:
  time: 10m
slurm:
  account: team
  groups:
    - nnodes: 1
      gpus_per_node: h100:8
      cpus_per_gpu: 8
      partition: a
    - {nnodes: 2, gpus_per_node: 4, constraint: x}
"""


@pytest.fixture(autouse=True)
def job_file(folder: Path) -> Path:
    """Write a job file with two groups."""
    path = folder / "job.yaml"
    path.write_text(GROUPS)
    return path


JOB = ("--config", "job.yaml")


def test_each_group_has_its_directives() -> None:
    """What a group does not set is that of the section; one srun starts an agent on all nodes."""
    text = script(*JOB, "--output", "%j.out")

    first, second = text.split("#SBATCH hetjob\n")
    of_first = re.findall("(?m)^#SBATCH (.*)$", first)
    of_second = re.findall("(?m)^#SBATCH (.*)$", second)
    shared = ["--ntasks-per-node=1", "--time=00:10:00", "--account=team"]
    own = ["--nodes=1", "--gpus-per-node=h100:8", "--cpus-per-task=64", "--partition=a"]
    assert sorted(of_first) == sorted(["--job-name=train", "--output=%j.out", *own, *shared])
    assert sorted(of_second) == sorted(
        ["--nodes=2", "--gpus-per-node=4", '--constraint="x"', *shared]
    )
    assert "cpus1=${SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1%%[(,]*}\n" in text
    start = 'exec srun --het-group=0 --cpus-per-task=64 : --het-group=1 --cpus-per-task="$cpus1"'
    assert start in text
    assert complaints(text) == ""


def test_a_token_of_the_job() -> None:
    """Groups have no secret of srun's in common; a token file of the user's is enough."""
    assert "export CLUSTERRUN_TOKEN\n" in script(*JOB)
    assert "CLUSTERRUN_TOKEN" not in script(*JOB, "--token-file", "token")


def test_the_whole_job() -> None:
    """Has the nodes of all groups; each group gets the CPUs of its partition."""
    asked: list[object] = []

    def ask(words: object) -> Answer:
        asked.append(words)
        return Answer("64 gpu:8\n", "", 0)

    job = Slurm().complete(submission(*JOB), ask)

    assert (job.nodes.value, job.fewest_nodes.value, job.working_nodes) == (3, 3, 3)
    assert [group.cpus for group in job.groups] == [64, 32]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--nnodes 3", "--nnodes cannot be used with groups of nodes"),
        ("--spares 1", "--spares cannot be used with groups of nodes"),
        ("--array 0-3", "--array cannot be used with groups of nodes"),
    ],
)
def test_what_groups_cannot_have(options: str, message: str) -> None:
    """The number of nodes is that of each group; Slurm has no arrays of such jobs."""
    with pytest.raises(UsageError, match=message):
        submission(*JOB, *options.split())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "partition: a\n",
            "time: 1h\n",
            r"job.yaml:10 slurm.groups\[0\].time: there is no such key",
        ),
        ("nnodes: 2,", "nnodes: two,", r"job.yaml:11 slurm.groups\[1\].nnodes: 'two' is not a num"),
        (
            "    - {nnodes: 2",
            "    - three\n    - {nnodes: 2",
            r"job.yaml:11 slurm.groups\[1\]: a single",
        ),
        ("slurm:", "flux:", "job.yaml:6 flux.groups: there is no such key"),
    ],
)
def test_mistakes_in_groups(job_file: Path, old: str, new: str, message: str) -> None:
    """Each has its line."""
    job_file.write_text(GROUPS.replace(old, new))

    with pytest.raises(UsageError, match=message):
        submission(*JOB)


def test_groups_are_a_list(job_file: Path) -> None:
    """And none of another scheduler's."""
    job_file.write_text("script: train.py\nslurm:\n  groups: 2\n")

    with pytest.raises(UsageError, match=r"job.yaml:3 slurm.groups: a single value, where a list"):
        submission(*JOB)
    options = ("--to", "lsf", "--gpus-per-node", "1", "--cpus-per-gpu", "1")
    assert submission(*JOB, *options).groups == ()


def test_the_state_is_that_of_the_script() -> None:
    """It runs in the first group; those of other groups have no exit code of their own."""
    first = "JobId=7 HetJobId=7 HetJobOffset=0 JobState=FAILED ExitCode=9:0 StdOut=/x/7.out"
    other = "JobId=8 HetJobId=7 HetJobOffset=1 JobState=CANCELLED ExitCode=0:0 StdOut=/x/8.out"

    (running,) = read_scontrol(f"{first}\n{other}\n")
    (old,) = read_sacct("7+0|FAILED|9:0\n7+1|CANCELLED by 0|0:0\n")

    assert (running.job_id, running.exit_code) == ("7", 9)
    assert (old.job_id, old.exit_code) == ("7", 9)
