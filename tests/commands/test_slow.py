"""``clusterrun slow`` on a job of one node, through the installed command."""

import json
from pathlib import Path

import pytest

from tests.commands.run_commands import (
    REFUSED_PY_SPY,
    assert_runs_until_stopped,
    run_command,
    start_job,
    with_py_spy,
)
from tests.contract.launched import Launcher, stop_process

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

    assert text.returncode == 0, text.stderr
    sentence, _, *rows = text.stdout.splitlines()
    assert sentence.startswith("rank 1 is slow: the others wait "), text.stdout
    assert "prepare_batch)" in sentence
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert [rank["rank"] for rank in as_json["ranks"]] == [0, 1]
    assert_runs_until_stopped(job, runtime)


def test_slow_without_py_spy(clusterrun: Launcher, runtime: dict[str, str], tmp_path: Path) -> None:
    refused = with_py_spy(runtime, tmp_path / "bin", REFUSED_PY_SPY)
    job = start_job(clusterrun, refused, SLEEPS)
    text = run_command(runtime, "slow", "--seconds=4")

    assert "py-spy may not read ranks 0-1" in text.stdout, text.stdout
    assert_runs_until_stopped(job, runtime)


def test_slow_names_stopped_rank(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """The sentence has the command that continues it."""
    job = start_job(clusterrun, runtime, SLEEPS)
    frozen = job.numbers("begun", 2)[0]
    stop_process(frozen)

    text = run_command(runtime, "slow", "--seconds=4")

    assert f"kill -CONT {frozen}" in text.stdout.splitlines()[0]
    assert_runs_until_stopped(job, runtime)
