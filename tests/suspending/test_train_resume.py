"""scripts/train_resume.py, which users copy, resumes where it was."""

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.launched import Ended, Job, Launcher, plain_environment
from tests.rounds import numbers

SCRIPT = str(Path(__file__).parents[2] / "scripts/train_resume.py")

SECONDS = 90.0
"""The longest that one start may take, on a very busy machine."""


def suspended(job: Job, lines: int) -> Ended:
    """Suspend a job once it has printed so many steps."""
    job.wait_for(r"step \d+ loss", times=lines)
    job.signal(signal.SIGTERM)
    return job.ended(SECONDS)


def saved(file: Path) -> dict[str, Any]:
    """Return what the script has saved."""
    import torch

    state: dict[str, Any] = torch.load(file, weights_only=False)
    return state


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of weights that differ in a single bit."""
    import torch

    pairs = zip(one["network"].items(), other["network"].values(), strict=True)
    return [name for (name, weight), its in pairs if not torch.equal(weight, its)]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", numbers(1))
@pytest.mark.parametrize(("workers", "times"), [(2, 20), (4, 3)])
def test_a_suspended_run_ends_with_the_same_weights(
    clusterrun: Launcher, workers: int, times: int, seed: int
) -> None:
    """Whenever it was suspended; four ranks add up in an order that two do not have."""
    moments = random.Random(f"{workers} {seed}")
    words = (SCRIPT, "--steps", "3000", "--checkpoint")

    undisturbed = clusterrun.command(*words, "undisturbed.pt", workers=workers).ended(SECONDS)
    codes = []
    for _ in range(times):
        job = clusterrun.command(*words, "suspended.pt", workers=workers)
        codes.append(suspended(job, moments.randint(1, 6)).code)
    last = clusterrun.command(*words, "suspended.pt", workers=workers).ended(SECONDS)

    assert (undisturbed.code, last.code) == (0, 0), last.err
    assert codes == [75] * times
    one, other = (saved(clusterrun.folder / f"{name}.pt") for name in ("undisturbed", "suspended"))
    assert differing(one, other) == []
    assert one["samples"] == other["samples"] == 3000 * 48


@pytest.mark.long
@pytest.mark.timeout(400)
def test_resume_with_other_rank_count(clusterrun: Launcher) -> None:
    """Of three, two and one; the last under plain python."""
    words = (SCRIPT, "--steps", "1000", "--checkpoint", "run.pt")

    suspended(clusterrun.command(*words, workers=3), lines=2)
    first = saved(clusterrun.folder / "run.pt")["samples"]
    suspended(clusterrun.command(*words, workers=2), lines=3)
    second = saved(clusterrun.folder / "run.pt")["samples"]
    alone = subprocess.run(
        [sys.executable, *words],
        cwd=clusterrun.folder,
        env=plain_environment(),
        timeout=3 * SECONDS,
        check=False,
    )

    assert alone.returncode == 0
    assert 0 < first < second < saved(clusterrun.folder / "run.pt")["samples"] == 1000 * 48


@pytest.mark.long
def test_indivisible_batch_is_rejected(clusterrun: Launcher) -> None:
    """The script raises an error instead of skipping samples."""
    words = (SCRIPT, "--checkpoint", "run.pt", "--batch-size", "47")

    ended = clusterrun.command(*words, workers=2).ended(SECONDS)

    assert ended.code == 2
    assert "--batch-size must be a multiple of the 2 ranks" in ended.err
