"""``clusterrun bench`` in an allocation of a real Slurm, on one node of it and on two."""

import sys
from pathlib import Path

from tests.hosts.scaling_ranks import ON_ONE_AND_TWO_NODES, RANKS_SCALE, measured
from tests.hosts.slurm import CLUSTERRUN_ON_PATH, Slurm


def test_bench_in_batch_script_starts_runs_with_srun(slurm: Slurm, tmp_path: Path) -> None:
    """Started by srun itself, it is refused."""
    (tmp_path / "train.py").write_text(RANKS_SCALE)
    script = """
        #!/bin/bash
        #SBATCH --nodes=2
        #SBATCH --cpus-per-task=2
        clusterrun bench --nnodes 1,2 --nproc 1,2 --json train.py &&
        ! srun clusterrun bench --nproc 1 train.py
    """

    done = slurm.ended(slurm.sbatch(script, environ=CLUSTERRUN_ON_PATH, folder=tmp_path))

    assert done.code == 0, done.err
    assert measured(done.out) == ON_ONE_AND_TWO_NODES
    assert (
        "error: bench starts the other nodes itself, but was started as one of 2 processes on this"
        " node" in done.err
    )


def test_bench_in_salloc_shell_runs_on_nodes(slurm: Slurm, tmp_path: Path) -> None:
    """The shell's host is not one of the nodes."""
    (tmp_path / "train.py").write_text(RANKS_SCALE)
    bench = (sys.executable, "-m", "clusterrun", "bench", "--nproc=2", "--json", "train.py")

    done = slurm.start("salloc", "--nodes=2", *bench, folder=tmp_path).ended()

    assert done.code == 0, done.err
    assert measured(done.out) == [(2, 4, 40.0)]
