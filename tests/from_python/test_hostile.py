"""What takes long: a caller killed at random moments, results of gigabytes, hundreds of jobs."""

import os
import random
import signal
import time
from pathlib import Path

import clusterrun
import psutil
import pytest

from tests.contract.launched import Launcher
from tests.rounds import numbers

pytestmark = pytest.mark.long

GIGABYTE = 1 << 30

KILLED = """
    import subprocess, time, clusterrun

    def works(n):
        subprocess.Popen(["sleep", "100"], start_new_session=True)
        time.sleep(0.2)
        return bytes(n)

    # Most moments are not to be those in which a call waits for what its ranks have left.
    options = dict(start_method="fork", shutdown_timeout=0)
    with clusterrun.Workers(2, preload=["json"], **options) as workers:
        while True:
            clusterrun.launch(works, (1000,), nproc_per_node=2, shutdown_timeout=0)
            workers.run(works, 1000)
"""


KILLED_BESIDE_THREADS = """
    import threading, clusterrun

    def works(_):
        import subprocess, time
        subprocess.Popen(["sleep", "100"], start_new_session=True)
        time.sleep(0.2)

    contexts = []
    while True:
        # The thread ends while the agent starts.
        thread = threading.Thread(
            target=lambda: contexts.append(clusterrun.spawn(works, nprocs=2, join=False))
        )
        thread.start()
        thread.join()
        contexts.pop().join()
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", numbers(1))
@pytest.mark.parametrize("killed", [KILLED, KILLED_BESIDE_THREADS])
def test_a_caller_killed_at_random_moments_leaves_nothing(
    caller: Launcher, here: Path, killed: str, seed: int
) -> None:
    """No process after a second, and no file: the next launch removes a scratch folder at most."""
    moments = random.Random(seed)
    for _ in range(20):
        job = caller.script(killed)
        time.sleep(moments.uniform(0.05, 3.0))
        os.kill(job.process.pid, signal.SIGKILL)

        job.ended()
        assert job.left() == []
    clusterrun.launch(int, nproc_per_node=1)
    assert list(here.iterdir()) == []


@pytest.mark.usefixtures("here")
@pytest.mark.timeout(300)
def test_two_gigabytes_come_back() -> None:
    [found] = clusterrun.launch(bytes, (2 * GIGABYTE,), nproc_per_node=1)

    assert len(found) == 2 * GIGABYTE


@pytest.mark.usefixtures("here")
@pytest.mark.timeout(900)
def test_two_hundred_calls_leave_the_caller_as_it_was() -> None:
    """It has no more descriptors, and no child."""
    caller = psutil.Process()
    descriptors = []

    with clusterrun.Workers(1, preload=["json"], start_method="fork") as workers:
        for _ in range(200):
            assert workers.run(int) == [0]
            descriptors.append(caller.num_fds())
            assert caller.children() == []

    # Fewer, if garbage of earlier tests was collected meanwhile.
    assert max(descriptors[-20:]) <= max(descriptors[:20])
