"""A rank that exits with code 0 while others run on, and these fail."""

import re

import pytest

from tests.contract.launched import Launcher

FAILS = """
    import os, sys, time

    if os.environ["RANK"] == "1":
        open("ends", "w").close()
        sys.exit(0)
    while not os.path.exists("ends"):
        time.sleep(0.01)
    # Ends closer together are taken for chance.
    time.sleep(0.7)
    if os.environ["RANK"] == "2":
        raise ValueError("boom")
    time.sleep(60)
"""

IN_A_COLLECTIVE = """
    import os
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 1:
        os._exit(0)
    dist.barrier()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_report_of_a_failure_names_it(clusterrun: Launcher, method: str) -> None:
    """In its first line; the exit code is that of the rank that failed."""
    ended = clusterrun.script(FAILS, "--start-method", method, workers=3).ended()

    assert ended.code == 1
    assert re.search(
        r"^clusterrun: rank 2 on \S+ failed: ValueError: boom"
        r" \(rank 1 had exited with code 0 \d\.\d\d s before\)$",
        ended.err,
        re.MULTILINE,
    ), ended.err


@pytest.mark.timeout(120)
def test_ranks_that_lose_it_in_a_collective(clusterrun: Launcher) -> None:
    """They may notice it before the agent does."""
    ended = clusterrun.script(IN_A_COLLECTIVE, workers=3).ended(90)

    assert ended.code == 1
    assert re.search(
        r"^clusterrun: rank [02] on \S+ failed: .*"
        r" \(rank 1 had exited with code 0 \d\.\d\d s before\)$",
        ended.err,
        re.MULTILINE,
    ), ended.err
