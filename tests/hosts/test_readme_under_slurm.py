"""The batch scripts of the README and of docs/slurm.md, as they are, under a real Slurm."""

import re
import shutil
from pathlib import Path

import pytest

from tests.hosts.slurm import CLUSTERRUN_ON_PATH, Slurm
from tests.transcripts import blocks

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """\
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "cpus", len(os.sched_getaffinity(0)))
"""
"""Each worker may use both CPUs of its node."""

STEP = r"\[rank 0 n0\] step (\d+) loss"

SECONDS_OF_A_RUN = 110
"""Slurm's shortest time limit is a minute, and its clock for limits is coarse."""


def batch_script(page: str, option: str) -> str:
    """Return the batch script of a page that has an option."""
    (text,) = (
        text for text in blocks(ROOT / page) if text.startswith("#!/usr/bin") and option in text
    )
    return f"{text}\n"


def test_batch_script_of_readme_starts_worker_per_gpu(slurm: Slurm, tmp_path: Path) -> None:
    text = batch_script("README.md", "#SBATCH")
    (tmp_path / "train.py").write_text(PROGRAM)

    job = slurm.sbatch(text, "--gpus-per-node=2", environ=CLUSTERRUN_ON_PATH, folder=tmp_path)
    done = slurm.ended(job)

    assert done.code == 0, done.err
    assert "srun" not in done.err
    workers = sorted(re.findall(r"rank (\d) of (\d) cpus (\d)", done.out))
    assert workers == [(str(rank), "4", "2") for rank in range(4)]


@pytest.mark.long
@pytest.mark.timeout(480)
def test_suspension_recipe_resumes_at_saved_step(slurm: Slurm, tmp_path: Path) -> None:
    """It is submitted once; Slurm requeues it when its minute is nearly over."""
    text = batch_script("docs/slurm.md", "--suspend-before 300").replace("before 300", "before 25")
    shutil.copy(ROOT / "scripts/train_resume.py", tmp_path / "train.py")
    text = text.replace("run.pt", "run.pt --steps 100000")

    job = slurm.sbatch(
        text, "--time=1", "--gpus-per-node=2", environ=CLUSTERRUN_ON_PATH, folder=tmp_path
    )
    printed = slurm.follow(job)
    # Both nodes print it.
    printed.wait_for(r"exit code 75: suspended at step", times=2, seconds=SECONDS_OF_A_RUN)
    first_run = re.findall(STEP, job.out.read_text())
    slurm.start_again(job)
    printed.wait_for(STEP, times=len(first_run) + 1, seconds=SECONDS_OF_A_RUN)

    (saved,) = {
        int(step) for step in re.findall(r"75: suspended at step (\d+)", printed.err + printed.out)
    }
    steps = [int(step) for step in re.findall(STEP, job.out.read_text())]
    assert steps[-1] > saved > 0
    assert steps == list(range(0, steps[-1] + 1, 20))
