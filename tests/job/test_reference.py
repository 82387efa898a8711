"""configs/reference.yaml has every key with its default, and the small job files can be read."""

from pathlib import Path

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.job.job_file import KEYS, read_entries, read_job_file
from clusterrun.job.options import OPTIONS

from tests.captured import captured
from tests.described import describe

CONFIGS = Path(__file__).parents[2] / "configs"
REFERENCE = str(CONFIGS / "reference.yaml")


def test_every_key_is_there_once() -> None:
    """All keys that a job file may have, but for other spellings of the same."""
    aliases = {alias for row in OPTIONS.values() for alias in row.option.aliases}

    assert set(read_entries(Setting(REFERENCE, "--config"))) == set(KEYS) - aliases


@pytest.mark.parametrize("name", ["one_node", "two_nodes"])
def test_the_small_jobs_name_a_script_of_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples run from the repository's root."""
    monkeypatch.chdir(CONFIGS.parent)

    words = read_job_file(Setting(f"configs/{name}.yaml", "--config")).words

    assert Path(words.value[0]).is_file()


def test_the_job_of_two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same line on both; under Slurm its first host is node 0, whatever the file says."""
    monkeypatch.chdir(CONFIGS.parent)
    flags = {"config": "configs/two_nodes.yaml"}

    by_hand = describe(flags=flags).job
    by_slurm = describe(flags=flags | {"master_addr": "n0"}, environ=captured("node.1")).job

    assert (by_hand.agents, by_hand.agent_rank, by_hand.rendezvous.master_addr) == (
        2,
        None,
        "node0",
    )
    assert (by_slurm.agents, by_slurm.agent_rank, by_slurm.rendezvous.master_addr) == (2, 1, "n0")
