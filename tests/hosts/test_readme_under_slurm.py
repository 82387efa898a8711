"""The batch script of the README, as it is, under a real Slurm."""

import re
import sys
from pathlib import Path

from tests.hosts.slurm import Slurm
from tests.transcripts import blocks

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """\
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "cpus", len(os.sched_getaffinity(0)))
"""
"""Each worker of this Slurm's nodes may have both of their CPUs."""


def test_the_batch_script_starts_a_worker_per_gpu(slurm: Slurm, tmp_path: Path) -> None:
    """On two nodes, each of which has two GPUs here."""
    (text,) = (block for block in blocks(ROOT / "README.md") if "#SBATCH" in block)
    (tmp_path / "train.py").write_text(PROGRAM)
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}

    job = slurm.sbatch(f"{text}\n", "--gpus-per-node=2", environ=path, folder=tmp_path)
    done = slurm.ended(job)

    assert done.code == 0, done.err
    assert "srun" not in done.err
    workers = sorted(re.findall(r"rank (\d) of (\d) cpus (\d)", done.out))
    assert workers == [(str(rank), "4", "2") for rank in range(4)]
