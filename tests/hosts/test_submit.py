"""``clusterrun submit`` with a real Slurm."""

import re
from pathlib import Path
from textwrap import dedent

import pytest

from tests.contract.launched import COMMAND, Ended
from tests.hosts.slurm import Slurm

pytestmark = pytest.mark.timeout(240)

SECONDS_TO_END = 60.0

RANKS = """
    import os
    where = [os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    print(f"rank {' '.join(where)} on {os.environ['SLURMD_NODENAME']}\\n", end="", flush=True)
    if os.environ["RANK"] == os.environ.get("FAILS"):
        raise SystemExit(9)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a program that prints its place in the job."""
    (tmp_path / "ranks.py").write_text(dedent(RANKS))
    return tmp_path


def submit(slurm: Slurm, folder: Path, *words: str) -> Ended:
    """Run ``clusterrun submit WORDS`` on the login node."""
    return slurm.start(COMMAND, "submit", *words, folder=folder).ended(SECONDS_TO_END)


def places(text: str) -> list[str]:
    return sorted(re.findall(r"rank \d \d \d on n\d", text))


TWO_BY_TWO = [f"rank {rank} 4 {rank % 2} on n{rank // 2}" for rank in range(4)]


def test_a_job_of_two_nodes(slurm: Slurm, folder: Path) -> None:
    """A failing rank's code is the job's; the script submitted by hand does the same."""
    job = ("--nnodes", "2", "--nproc-per-node", "2", "--output", "%j.out", "ranks.py")
    failing = ("--env", "FAILS=3", "--setup", f"PATH={Path(COMMAND).parent}:$PATH")

    queued = submit(slurm, folder, *failing, *job)
    shown = submit(slurm, folder, "--print", *failing, *job)
    (folder / "by_hand.sh").write_text(shown.out)
    by_hand = slurm.start("sbatch", "--parsable", "by_hand.sh", folder=folder).ended()

    assert queued.code == 0, queued.err
    (number,) = re.findall(r"Slurm has queued job (\d+) \(ranks\)\n", queued.out)
    assert by_hand.code == 0, by_hand.err
    for each in (int(number), int(by_hand.out)):
        assert slurm.end_of(each) == 9
        printed = (folder / f"{each}.out").read_text()
        assert places(printed) == TWO_BY_TWO, printed
        assert "rank 3 on n1 failed" in printed


def test_a_refusal_names_the_value(slurm: Slurm, folder: Path) -> None:
    """Slurm's own words, and the line of the job file."""
    (folder / "job.yaml").write_text(
        "script: ranks.py\nnproc_per_node: 1\nslurm:\n  time: 10m\n  partition: nowhere\n"
    )

    refused = submit(slurm, folder, "--config", "job.yaml")

    assert (refused.code, refused.out) == (2, "")
    assert (
        "Slurm refuses the job: sbatch: error: invalid partition specified: nowhere" in refused.err
    )
    assert "partition is set by job.yaml:5 slurm.partition" in refused.err
