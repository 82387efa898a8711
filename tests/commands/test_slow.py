"""``clusterrun slow`` on a job of one node, through the installed command."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.commands.run_commands import REFUSED, run_command, start_job, with_py_spy
from tests.contract.launched import Launcher, await_status

BARRIERS = """
import os, time
import torch.distributed as dist

def prepare_batch():
    if dist.get_rank() == 1:
        time.sleep(0.05)

dist.init_process_group("gloo")
print("begun", os.getpid(), flush=True)
while True:
    prepare_batch()
    dist.barrier()
"""
"""Two ranks with a barrier in each step; rank 1 is late."""

SLEEPS = """
import os, time
print("begun", os.getpid(), flush=True)
while True:
    time.sleep(0.01)
"""


@pytest.mark.alone
@pytest.mark.needs("py-spy", "import torch")
def test_slow_rank_is_named(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """The sentence has the function in which the rank spends its time."""
    job = start_job(clusterrun, runtime, BARRIERS)
    text = run_command(runtime, "slow", "--seconds=4")
    as_json = json.loads(run_command(runtime, "slow", "--seconds=4", "--json").stdout)
    run_command(runtime, "stop", "--now", "mine")

    assert text.returncode == 0, text.stderr
    sentence, _, *rows = text.stdout.splitlines()
    assert sentence.startswith("rank 1 is slow: the others wait "), text.stdout
    assert "prepare_batch)" in sentence
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert [rank["rank"] for rank in as_json["ranks"]] == [0, 1]
    assert job.ended().code == 143


def test_slow_without_py_spy(clusterrun: Launcher, runtime: dict[str, str], tmp_path: Path) -> None:
    refused = with_py_spy(runtime, tmp_path / "bin", REFUSED)
    job = start_job(clusterrun, refused, SLEEPS)
    text = run_command(runtime, "slow", "--seconds=4")
    run_command(runtime, "stop", "--now", "mine")

    assert "py-spy may not read ranks 0-1" in text.stdout, text.stdout
    assert job.ended().code == 143


def test_slow_names_stopped_rank(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """The sentence has the command that continues it."""
    job = start_job(clusterrun, runtime, SLEEPS)
    frozen = job.numbers("begun", 2)[0]
    os.kill(frozen, signal.SIGSTOP)
    await_status(frozen, psutil.STATUS_STOPPED)

    text = run_command(runtime, "slow", "--seconds=4")
    run_command(runtime, "stop", "--now", "mine")

    assert f"kill -CONT {frozen}" in text.stdout.splitlines()[0]
    assert job.ended().code == 143


def test_slow_refuses_seconds_out_of_range(runtime: dict[str, str]) -> None:
    """The error comes before jobs are searched."""
    wrong = run_command(runtime, "slow", "--seconds=1000")

    assert wrong.returncode == 2
    assert "--seconds: 1000 s is out of range\n  give 4 to 100 s" in wrong.stderr
