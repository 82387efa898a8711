"""configs/reference.yaml and the example job files."""

from pathlib import Path

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.job.job_file import KEYS, read_entries, read_job_file
from clusterrun.job.options import OPTIONS

from tests.captured import captured
from tests.described import describe

CONFIGS = Path(__file__).parents[2] / "configs"
REFERENCE = str(CONFIGS / "reference.yaml")


def test_reference_has_every_key() -> None:
    """Each key is there once, under the name of its option."""
    aliases = {alias for row in OPTIONS.values() for alias in row.option.aliases}

    assert set(read_entries(Setting(REFERENCE, "--config"))) == set(KEYS) - aliases


@pytest.mark.parametrize("name", ["one_node", "two_nodes"])
def test_example_script_exists(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples run in the repository's root."""
    monkeypatch.chdir(CONFIGS.parent)

    words = read_job_file(Setting(f"configs/{name}.yaml", "--config")).words

    assert Path(words.value[0]).is_file()


def test_two_node_example_by_hand_and_under_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line is the same on both nodes; under Slurm, node 0 is the first host."""
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


def test_reference_as_it_is_causes_no_warning() -> None:
    assert describe(__file__, flags={"config": REFERENCE}).warnings == ()
