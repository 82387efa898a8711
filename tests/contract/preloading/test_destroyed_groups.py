"""A rank that trains with gloo on a busy machine ends, whether it destroys its group or not.

torch 2.13 can hang there if torch._dynamo was imported before init_process_group: see docs/binding.md.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.contract.launched import Launcher
from tests.contract.preloading.package_environment import (
    SECONDS_TO_INSTALL,
    SECONDS_TO_RUN,
    python_with_packages,
)

ROUNDS = 50

ABORTED = 134
MAX_ABORTED = 8
"""gloo ends a rank with SIGABRT if another has closed its connections first, and torch does if a thread of gloo
waits for the GIL when Python ends, with any launcher: one in four of torchrun's jobs ended like this."""

TRAINS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(ddp.parameters())
    inputs, labels = torch.randn(8, 16), torch.randint(0, 4, (8,))
    for _ in range(3):
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    END

main()
"""


@pytest.fixture
def _busy() -> Iterator[None]:
    """Keep each CPU busy, as long as this process lives: it may be killed."""
    spin = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in os.sched_getaffinity(0)]
    yield
    for process in spinning:
        process.kill()
        process.wait()


@pytest.mark.packages
@pytest.mark.timeout(SECONDS_TO_INSTALL + ROUNDS * SECONDS_TO_RUN)
@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize(
    ("end", "is_left_out"),
    [("dist.destroy_process_group()", True), ("dist.barrier()", False)],
    ids=["destroys", "keeps"],
)
def test_every_round_ends(clusterrun: Launcher, nproc: int, end: str, *, is_left_out: bool) -> None:
    """The model is freed after the group was destroyed, as in torch's tutorials."""
    python = python_with_packages()
    (clusterrun.folder / "train.py").write_text(TRAINS.replace("END", end))
    words = ("-v", "--python", python, "train.py")
    codes = Counter[int]()

    for number in range(ROUNDS):
        ended = clusterrun.command(*words, workers=nproc).ended(SECONDS_TO_RUN)

        assert ended.code in (0, ABORTED), ended.err
        codes[ended.code] += 1
        if number == 0:
            assert ("left to each worker: torch._dynamo" in ended.err) == is_left_out
            assert ("torch._dynamo (" in ended.err) != is_left_out
    assert codes[ABORTED] <= MAX_ABORTED, codes
