"""A step of four tasks with one spare: nodes are lost, replaced, and rejoin."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import COMMAND
from tests.hosts.network import network
from tests.hosts.slurm import Slurm
from tests.waiting import wait_until

RECORD_RANK_AND_KILL_AGENT = """
import os, pathlib, signal, time

names = ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE", "SLURMD_NODENAME")
attempt, rank, size, node = (os.environ[name] for name in names)
with open("ranks", "a") as file:
    file.write(f"attempt {attempt} rank {rank} of {size} on {node}|")
while not pathlib.Path(f"begin {attempt}").exists():
    time.sleep(0.02)
if node == {"0": "n1", "1": "n2"}.get(attempt):
    # The worker's parent is the fork server, whose parent is the agent.
    with open(f"/proc/{os.getppid()}/stat") as file:
        os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
if attempt != "2":
    time.sleep(100)
"""

RUN_AGAIN_AFTER_SIGKILL = """
clusterrun="{command} --spares 1 {script}"
$clusterrun
code=$?
[ $code -lt 128 ] || $clusterrun
"""
"""A task of the step, whose agent is started again, as after a reboot of the node."""


@pytest.fixture
def slurm_of_four(this_run: str) -> Iterator[Slurm]:
    """Return a Slurm of four idle nodes, n0 to n3."""
    with network(this_run, "four", "n0", "n1", "n2", "n3") as where:
        made = Slurm(where)
        made.open()
        yield made
        made.end_jobs()


@pytest.mark.long
def test_replaced_node_rejoins_as_spare(slurm_of_four: Slurm, tmp_path: Path) -> None:
    """n3 replaces n1, which rejoins and replaces n2."""
    (tmp_path / "train.py").write_text(RECORD_RANK_AND_KILL_AGENT)
    task = RUN_AGAIN_AFTER_SIGKILL.format(command=COMMAND, script="train.py")
    step = ("-N4", "--ntasks-per-node=1", "--kill-on-bad-exit=0", f"--error={tmp_path}/errors.%N")
    job = slurm_of_four.start_srun(*step, "sh", "-c", task, folder=tmp_path)

    def ranks(attempt: int) -> list[str]:
        """Return the hosts of an attempt's ranks, once all three have started."""
        file = tmp_path / "ranks"
        lines = file.read_text().split("|") if file.exists() else []
        prefix = f"attempt {attempt} "
        found = sorted(line.removeprefix(prefix) for line in lines if line.startswith(prefix))
        return found if len(found) == 3 else []

    def begin(attempt: int, spare: str) -> list[str]:
        """Let an attempt begin when a node is a spare; return the hosts of its ranks."""
        errors = tmp_path / f"errors.{spare}"
        found = wait_until(lambda: ranks(attempt), f"attempt {attempt}")
        wait_until(lambda: "this node is a spare" in errors.read_text(), spare)
        (tmp_path / f"begin {attempt}").touch()
        return found

    assert begin(0, "n3") == ["rank 0 of 3 on n0", "rank 1 of 3 on n1", "rank 2 of 3 on n2"]
    assert begin(1, "n1") == ["rank 0 of 3 on n0", "rank 1 of 3 on n3", "rank 2 of 3 on n2"]
    assert begin(2, "n2") == ["rank 0 of 3 on n0", "rank 1 of 3 on n3", "rank 2 of 3 on n1"]
    ended = job.ended(60.0)
    errors = (tmp_path / "errors.n0").read_text()
    assert ended.code == 0, errors
    assert "node 1 (n1) is gone; n3 takes its place" in errors
    assert "node 2 (n2) is gone; n1 takes its place" in errors
