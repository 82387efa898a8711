"""mpirun in a batch script: it starts its daemons with srun, and their step is not the tasks'."""

import os
from pathlib import Path

import pytest

from tests.contract.launched import COMMAND
from tests.hosts.openmpi import AS_ROOT
from tests.hosts.slurm import Slurm
from tests.hosts.test_slurm import PRINT_VARIABLES, columns, script, workers_in

pytestmark = pytest.mark.needs("mpirun")


def test_mpirun_in_batch_script_ignores_slurm_procid(slurm: Slurm, tmp_path: Path) -> None:
    """All tasks of the second node have their daemon's SLURM_PROCID, those of the first the script's."""
    text = f"""\
        #!/bin/sh
        exec mpirun --oversubscribe --bind-to none --map-by ppr:2:node --mca oob_tcp_if_include eth0 \\
            {COMMAND} {script(tmp_path, PRINT_VARIABLES)}
        """
    environ = {**AS_ROOT, "PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": ""}

    job = slurm.sbatch(text, "-N2", "--ntasks-per-node=1", environ=environ)
    done = slurm.ended(job)

    assert done.code == 0, done.err
    assert columns(workers_in(done.out), "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK") == [
        ("0", "4", "0", "0"),
        ("1", "4", "1", "0"),
        ("2", "4", "0", "1"),
        ("3", "4", "1", "1"),
    ]
