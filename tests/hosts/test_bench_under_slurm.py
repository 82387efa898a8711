"""``clusterrun bench`` in an allocation of a real Slurm, on one node of it and on two."""

import json
import sys
from pathlib import Path

from tests.hosts.slurm import Slurm

PRINTS = """\
import os

if os.environ["RANK"] == "0":
    for _ in range(4):
        print(10 * int(os.environ["WORLD_SIZE"]), "samples/s", flush=True)
"""


def test_a_batch_script_on_one_node_and_on_two(slurm: Slurm, tmp_path: Path) -> None:
    """It starts each run by srun; under srun itself it says so, and runs nothing."""
    (tmp_path / "train.py").write_text(PRINTS)
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}
    script = """
        #!/bin/bash
        #SBATCH --nodes=2
        #SBATCH --cpus-per-task=2
        clusterrun bench --nnodes 1,2 --nproc 1,2 --json train.py &&
        ! srun clusterrun bench --nproc 1 train.py
    """

    done = slurm.ended(slurm.sbatch(script, environ=path, folder=tmp_path))

    assert done.code == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert [(row["nodes"], row["ranks"], row["throughput"]) for row in rows] == [
        (1, 1, 10.0),
        (1, 2, 20.0),
        (2, 2, 20.0),
        (2, 4, 40.0),
    ]
    assert "error: bench starts other nodes itself, and is one of 2 processes here" in done.err


def test_a_shell_of_salloc(slurm: Slurm, tmp_path: Path) -> None:
    """It runs on the host where salloc was typed, which is no node."""
    (tmp_path / "train.py").write_text(PRINTS)
    bench = (sys.executable, "-m", "clusterrun", "bench", "--nproc=2", "--json", "train.py")

    done = slurm.start("salloc", "--nodes=2", *bench, folder=tmp_path).ended()

    assert done.code == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert [(row["nodes"], row["ranks"], row["throughput"]) for row in rows] == [(2, 4, 40.0)]
