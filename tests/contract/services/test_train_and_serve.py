"""The repository's example: a policy trained by DDP beside servers that draw its actions."""

import re
from pathlib import Path

import pytest

from tests.contract.launched import Launcher

ROOT = Path(__file__).parents[3]


@pytest.mark.long
def test_policy_learns(clusterrun: Launcher) -> None:
    """Weights are pushed to the servers in each of fifty steps."""
    clusterrun.folder = ROOT

    ended = clusterrun.command("--config", "configs/train_and_serve.yaml").ended(300)

    assert ended.code == 0, ended.err
    first, last = (
        float(re.findall(rf"{when}: reward ([0-9.]+)", ended.out)[0])
        for when in ("step 0", "trained")
    )
    assert first < 0.5
    assert last > 0.7
    assert "the main program has ended: stopping 2 workers of services" in ended.err
