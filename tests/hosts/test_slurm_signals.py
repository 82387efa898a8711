"""Which processes of a job Slurm signals when it ends the job, by its plugin for processes."""

from pathlib import Path

import pytest

from tests.contract.launched import COMMAND
from tests.hosts.slurm import Slurm

WITH_A_LOADER = """
import os, signal, sys, time

if os.fork() == 0:
    def load(number, frame):
        os.write(1, b"the loader got SIGTERM\\n")
    signal.signal(signal.SIGTERM, load)
    os.write(1, b"loads\\n")
    while True:
        time.sleep(0.1)

def save(number, frame):
    time.sleep(1)
    print("saved", flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, save)
print("trains", flush=True)
while True:
    time.sleep(0.1)
"""


def test_scancel_with_linuxproc_signals_data_loader(
    slurm_of_session: Slurm, tmp_path: Path
) -> None:
    """Slurm signals it; clusterrun itself does not."""
    assert "the loader got SIGTERM" in printed_when_cancelled(slurm_of_session, tmp_path)


@pytest.mark.long
def test_scancel_with_pgid_does_not_signal_data_loader(
    slurm_that_signals_tasks: Slurm, tmp_path: Path
) -> None:
    """The same as with proctrack/cgroup, which needs the control groups of a whole machine."""
    assert "the loader got SIGTERM" not in printed_when_cancelled(
        slurm_that_signals_tasks, tmp_path
    )


def printed_when_cancelled(slurm: Slurm, folder: Path) -> str:
    """Return what a job prints whose worker saves when it is cancelled."""
    script = folder / "train.py"
    script.write_text(WITH_A_LOADER)
    text = f"#!/bin/sh\n#SBATCH -N1 -c1\nexec srun {COMMAND} --nproc-per-node 1 {script}\n"
    job = slurm.sbatch(text)
    printed = slurm.follow(job)
    try:
        printed.wait_for("loads")
        printed.wait_for("trains")

        slurm.cancel(job)

        printed.wait_for("saved")
        printed.wait_for("exit code 143: clusterrun received SIGTERM")
        return printed.out
    finally:
        slurm.end_jobs()
