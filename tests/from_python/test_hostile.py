"""Long tests: a caller killed at random moments, results of gigabytes, hundreds of jobs."""

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
from tests.from_python.test_workers import wait_holding_the_gil
from tests.rounds import in_all_rounds, numbers

pytestmark = pytest.mark.long

GIGABYTE = 1 << 30

ROUNDS, CALLS = 2, 25
"""The number of random failures."""

SECONDS_FOR_A_CALL = 60.0
"""The limits of a call are 1, 3, 5 and 30 s."""

KILLED = """
    import subprocess, time, clusterrun

    def works(n):
        subprocess.Popen(["sleep", "100"], start_new_session=True)
        time.sleep(0.2)
        return bytes(n)

    # Otherwise most moments would be in the wait for processes that ranks have left.
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
def test_caller_killed_at_random_moments_leaves_nothing(
    caller: Launcher, here: Path, killed: str, seed: int
) -> None:
    """No process is left after a second; at most a scratch folder is, which the next launch removes."""
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
def test_result_of_two_gigabytes() -> None:
    [found] = clusterrun.launch(bytes, (2 * GIGABYTE,), nproc_per_node=1)

    assert len(found) == 2 * GIGABYTE


@pytest.mark.usefixtures("here")
@pytest.mark.timeout(900)
def test_two_hundred_jobs_leak_no_descriptor_or_child() -> None:
    caller = psutil.Process()
    descriptors = []

    for _ in range(200):
        assert clusterrun.launch(int, nproc_per_node=1) == [0]
        descriptors.append(caller.num_fds())
        assert caller.children() == []

    # Fewer, if garbage of earlier tests was collected meanwhile.
    assert max(descriptors[-20:]) <= max(descriptors[:20])


def init_process_group() -> None:
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")


def fail_on_one_rank(how: str, failing_rank: int) -> float:
    """End a call on one rank in some way, while the others wait in a collective."""
    import torch
    import torch.distributed as dist

    init_process_group()
    if int(os.environ["RANK"]) == failing_rank:
        if how == "raises":
            raise ValueError("planted")
        if how == "exits":
            os._exit(3)
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exits well":
            os._exit(0)
        if how == "hangs in C":
            wait_holding_the_gil()
        if how == "hangs":
            time.sleep(1000)
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def exception_of_failure(
    workers: clusterrun.Workers, how: str, failing_rank: int
) -> Exception | None:
    try:
        workers.run(fail_on_one_rank, how, failing_rank)
    except (clusterrun.WorkerFailed, clusterrun.JobInterrupted) as error:
        return error
    return None


def expected_exception(how: str) -> type[BaseException]:
    if how.startswith("hangs") or how == "is interrupted":
        return clusterrun.JobInterrupted
    return clusterrun.WorkerFailed


@pytest.mark.usefixtures("here")
@pytest.mark.timeout(in_all_rounds(900))
@pytest.mark.parametrize("seed", numbers(ROUNDS))
def test_random_failures_in_random_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The failed rank is named each time. Ranks that stay alive work again; others are restarted."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    drawn = random.Random(seed)
    hows = ["raises", "exits", "is killed", "exits well", "hangs in C", "hangs", "is interrupted"]
    ranks = drawn.choice([2, 3])
    workers = clusterrun.Workers(ranks, preload=["torch"], start_method="fork")
    for _ in range(CALLS):
        how, failing_rank = drawn.choice(hows), drawn.randrange(ranks)
        assert workers.run(fail_on_one_rank, "works", 0) == [float(ranks)] * ranks
        timer = threading.Timer(drawn.uniform(0.0, 2.0), workers.interrupt)
        if expected_exception(how) is clusterrun.JobInterrupted:
            timer.start()
        began = time.monotonic()
        error = exception_of_failure(workers, how, failing_rank)
        # Otherwise it might end the next call.
        timer.cancel()
        # A call in which nothing hangs may be over before it is interrupted.
        is_over = how == "is interrupted" and error is None
        assert is_over or type(error) is expected_exception(how), (how, failing_rank, error)
        assert getattr(error, "rank", failing_rank) == failing_rank, (how, failing_rank, error)
        assert time.monotonic() - began < SECONDS_FOR_A_CALL, how
        if workers.world_size == 0:
            workers.restart()
    workers.close()
    shutil.rmtree(tmp_path / "inductor", ignore_errors=True)
