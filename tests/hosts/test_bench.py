"""``clusterrun bench`` on one and two hosts, which it starts by ssh or in a real Slurm."""

import json
import sys
from pathlib import Path

import pytest

from tests.contract.launched import Launcher
from tests.hosts.slurm import CLUSTERRUN_ON_PATH, Slurm
from tests.hosts.ssh_hosts import SshHosts

RANKS_SCALE = """\
import os

if os.environ["RANK"] == "0":
    for _ in range(4):
        print(10 * int(os.environ["WORLD_SIZE"]), "samples/s", flush=True)
"""

ON_ONE_AND_TWO_NODES = [(1, 1, 10.0), (1, 2, 20.0), (2, 2, 20.0), (2, 4, 40.0)]
"""With one and with two workers per node."""


def measured(out: str) -> list[tuple[int, int, float]]:
    """Return nodes, ranks and throughput of each row that was printed."""
    rows = json.loads(out)["rows"]
    return [(row["nodes"], row["ranks"], row["throughput"]) for row in rows]


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


@pytest.mark.long
def test_bench_over_ssh(ssh: SshHosts, clusterrun: Launcher) -> None:
    options = ("--nnodes=1,2", "--nproc=1,2", "--json", *ssh.options("n0,n1"))
    done = clusterrun.script(RANKS_SCALE, "bench", *options, around=ssh.client.around).ended(100)

    assert done.code == 0, done
    assert measured(done.out) == ON_ONE_AND_TWO_NODES
    assert ssh.left(10) == []
