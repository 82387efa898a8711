"""An ordinary training script that clusterrun runs."""

import re
from pathlib import Path

import pytest

from tests.contract.launched import Launcher

SCRIPT = Path(__file__).parents[2] / "scripts/train_digits.py"


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("workers", "method"),
    [
        (2, "auto"),
        (1, "auto"),
        (4, "auto"),
        (2, "spawn"),
    ],
)
def test_digits_are_learned(clusterrun: Launcher, workers: int, method: str) -> None:
    """DDP on gloo with DataLoader workers: each loss is printed once, and 95 % of unseen digits are right."""
    ended = clusterrun.command("--start-method", method, str(SCRIPT), workers=workers).ended(300)

    prefix = "" if workers == 1 else r"\[rank 0\] "
    losses = re.findall(
        rf"^{prefix}epoch \d/8 loss ([\d.]+), \d+ images/s$", ended.out, re.MULTILINE
    )
    accuracy = re.search(rf"^{prefix}test accuracy ([\d.]+) %$", ended.out, re.MULTILINE)
    assert ended.code == 0, ended.err
    assert len(ended.out.splitlines()) == 9
    assert float(losses[0]) > 2 * float(losses[-1])
    assert accuracy
    assert float(accuracy[1]) >= 95
