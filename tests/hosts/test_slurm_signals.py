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


@pytest.mark.parametrize(
    ("which", "reaches_loaders"),
    [
        ("slurm_of_session", True),
        # As with proctrack/cgroup, which needs the control groups of a whole machine.
        pytest.param("slurm_that_signals_tasks", False, marks=pytest.mark.long),
    ],
    ids=["linuxproc", "pgid"],
)
def test_scancel_and_data_loaders(
    request: pytest.FixtureRequest, tmp_path: Path, which: str, *, reaches_loaders: bool
) -> None:
    """A worker saves once; clusterrun itself leaves its data loaders alone."""
    slurm: Slurm = request.getfixturevalue(which)
    script = tmp_path / "train.py"
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
        assert ("the loader got SIGTERM" in printed.out) is reaches_loaders
    finally:
        slurm.end_jobs()
