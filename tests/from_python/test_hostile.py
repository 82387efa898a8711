"""What takes long: a caller killed at random moments, results of gigabytes, hundreds of jobs."""

import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import clusterrun
import psutil
import pytest

from tests.contract.launched import Launcher
from tests.from_python.test_workers import hold_the_lock
from tests.rounds import in_all_rounds, numbers

pytestmark = pytest.mark.long

GIGABYTE = 1 << 30

ROUNDS, CALLS = 2, 25
"""Failures in one group of ranks after the other."""

SECONDS_FOR_A_CALL = 60.0
"""The limits of a call are 1, 3, 5 and 30 s."""

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
def test_two_hundred_jobs_leave_the_caller_as_it_was() -> None:
    """It has no more descriptors, and no child."""
    caller = psutil.Process()
    descriptors = []

    for _ in range(200):
        assert clusterrun.launch(int, nproc_per_node=1) == [0]
        descriptors.append(caller.num_fds())
        assert caller.children() == []

    # Fewer, if garbage of earlier tests was collected meanwhile.
    assert max(descriptors[-20:]) <= max(descriptors[:20])


def joins() -> None:
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")


def fails(how: str, who: int) -> float:
    """End one rank's part of a call in some way, while the others wait in a collective."""
    import torch
    import torch.distributed as dist

    joins()
    if int(os.environ["RANK"]) == who:
        if how == "raises":
            raise ValueError("planted")
        if how == "exits":
            os._exit(3)
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exits well":
            os._exit(0)
        if how == "hangs in C":
            hold_the_lock()
        if how == "hangs":
            time.sleep(1000)
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def error_of(workers: clusterrun.Workers, how: str, who: int) -> Exception | None:
    try:
        workers.run(fails, how, who)
    except (clusterrun.WorkerFailed, clusterrun.JobInterrupted) as error:
        return error
    return None


def expected_end(how: str) -> type[BaseException]:
    if how.startswith("hangs") or how == "is interrupted":
        return clusterrun.JobInterrupted
    return clusterrun.WorkerFailed


@pytest.mark.usefixtures("here")
@pytest.mark.timeout(in_all_rounds(900))
@pytest.mark.parametrize("seed", numbers(ROUNDS))
def test_random_failures_in_random_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The right rank is named each time; a group that lives works again, one that has ended is restarted."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    drawn = random.Random(seed)
    hows = ["raises", "exits", "is killed", "exits well", "hangs in C", "hangs", "is interrupted"]
    ranks = drawn.choice([2, 3])
    workers = clusterrun.Workers(ranks, preload=["torch"], start_method="fork")
    for _ in range(CALLS):
        how, who = drawn.choice(hows), drawn.randrange(ranks)
        assert workers.run(fails, "works", 0) == [float(ranks)] * ranks
        timer = threading.Timer(drawn.uniform(0.0, 2.0), workers.interrupt)
        if expected_end(how) is clusterrun.JobInterrupted:
            timer.start()
        began = time.monotonic()
        error = error_of(workers, how, who)
        # Else it might end the next call.
        timer.cancel()
        # One that nothing hangs in may be over before it is interrupted.
        is_over = how == "is interrupted" and error is None
        assert is_over or type(error) is expected_end(how), (how, who, error)
        assert getattr(error, "rank", who) == who, (how, who, error)
        assert time.monotonic() - began < SECONDS_FOR_A_CALL, how
        if workers.world_size == 0:
            workers.restart()
    workers.close()
    shutil.rmtree(tmp_path / "inductor", ignore_errors=True)
