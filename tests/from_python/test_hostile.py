"""What takes long: a caller killed at random moments, results of gigabytes, hundreds of jobs."""

import os
import random
import signal
import time
from pathlib import Path
from statistics import median

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

    with clusterrun.Workers(2, preload=["json"], start_method="fork") as workers:
        while True:
            clusterrun.launch(works, (1000,), nproc_per_node=2)
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
def test_five_hundred_jobs_from_one_warm_server_leave_it_as_it_was() -> None:
    """Its memory and its descriptors stay, and so do those of the caller."""

    def server() -> int:
        return psutil.Process(os.getppid()).ppid()

    with clusterrun.Workers(1, preload=["json"], start_method="fork") as workers:
        [warm] = set(workers.run(server))
        process, caller = psutil.Process(warm), psutil.Process()
        sizes, of_server, of_caller = [], [], []
        for _ in range(500):
            assert workers.run(server) == [warm]
            sizes.append(process.memory_full_info().uss)
            of_server.append(process.num_fds())
            of_caller.append(caller.num_fds())

    assert max(sizes[-50:]) < max(sizes[:50]) + (1 << 20)
    # At times one descriptor of a job that has just ended is still open.
    assert median(of_server[-50:]) <= median(of_server[:50])
    # Fewer, if garbage of earlier tests was collected meanwhile.
    assert max(of_caller[-50:]) <= max(of_caller[:50])
