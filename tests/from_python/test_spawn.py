"""``clusterrun.spawn``, a replacement for ``torch.multiprocessing.spawn``."""

import os
from pathlib import Path

import clusterrun
import pytest

pytestmark = pytest.mark.usefixtures("here")


def write_rank(local_rank: int, folder: Path, text: str) -> None:
    (folder / f"{local_rank}").write_text(text + os.environ["LOCAL_RANK"])


def test_local_rank_is_first_argument(tmp_path: Path) -> None:
    assert clusterrun.spawn(write_rank, args=(tmp_path, "rank "), nprocs=2) is None

    assert [(tmp_path / name).read_text() for name in "01"] == ["rank 0", "rank 1"]


def test_arguments_of_hfai_fork(tmp_path: Path) -> None:
    """Programs for hfai call ``fork(main, args=..., nprocs=8, bind_numa=True)``."""
    fork = clusterrun.spawn

    fork(write_rank, args=(tmp_path, "rank "), nprocs=2, bind_numa=True)

    assert [(tmp_path / name).read_text() for name in "01"] == ["rank 0", "rank 1"]


def test_spawn_without_join(tmp_path: Path) -> None:
    def waits(_: int) -> None:
        os.read(os.open(tmp_path / "gate", os.O_RDONLY), 1)

    os.mkfifo(tmp_path / "gate")
    context = clusterrun.spawn(waits, nprocs=2, join=False, daemon=True, bind_numa=False)

    assert context is not None
    assert context.join(timeout=0.01) is False
    gate = os.open(tmp_path / "gate", os.O_RDWR)
    os.write(gate, b"..")
    assert context.join() is True
    assert context.join() is True
    os.close(gate)


def test_garbage_collected_context_stops_job() -> None:
    context = clusterrun.spawn(lambda _: __import__("signal").pause(), nprocs=1, join=False)

    del context


def test_interrupted_spawn_raises_job_interrupted() -> None:
    context = clusterrun.spawn(lambda _: __import__("signal").pause(), nprocs=1, join=False)
    assert context is not None

    context.interrupt()

    with pytest.raises(clusterrun.JobInterrupted, match="SIGINT"):
        context.join()
    context.interrupt()


def test_join_raises_failure() -> None:
    context = clusterrun.spawn(lambda rank: 1 // rank, nprocs=2, join=False)

    assert context is not None
    with pytest.raises(clusterrun.WorkerFailed) as caught:
        context.join()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
