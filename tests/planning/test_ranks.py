"""How many workers a node gets."""

from collections.abc import Sequence

import pytest

from launcher.domain.job import WorkerCount
from launcher.errors import UsageError
from launcher.planning.ranks import local_size
from tests.plans import job, machine


@pytest.mark.parametrize(
    ("wanted", "gpus", "expected"),
    [
        (WorkerCount.PER_GPU, [0, 1], 2),
        (WorkerCount.PER_GPU, [], 1),
        (WorkerCount.AUTO, [0, 1], 2),
        (WorkerCount.AUTO, [], 6),
        (WorkerCount.GPU, [0, 1], 2),
        (WorkerCount.CPU, [0, 1], 6),
        (3, [0, 1], 3),
        (3, [], 3),
    ],
)
def test_each_way_to_say_it(wanted: int | WorkerCount, gpus: Sequence[int], expected: int) -> None:
    """CPUs are those that the job may use."""
    here = machine({0: "0-3", 1: "4-7"}, gpus, allowed="0-5")

    assert local_size(job(nproc_per_node=wanted), here) == expected


def test_only_visible_gpus_count() -> None:
    """What CUDA_VISIBLE_DEVICES hides gets no worker."""
    here = machine({0: "0-3"}, [0, 0, 0, 0], visible=[3, 1])

    assert local_size(job(), here) == 2


def test_gpus_that_are_wanted_must_be_there() -> None:
    """The error says where it was asked for and what to type."""
    here = machine({0: "0-3"})

    with pytest.raises(UsageError) as caught:
        local_size(job(nproc_per_node=WorkerCount.GPU), here)

    assert caught.value.message == (
        "nproc_per_node is gpu (the test), but no GPU is visible (NVML)"
    )
    assert "--nproc-per-node cpu" in caught.value.hint


def test_a_process_becomes_one_worker_or_none() -> None:
    """``--exec`` on a machine with two GPUs needs to be told, or to be a task for each."""
    here = machine({0: "0-3"}, [0, 0])

    with pytest.raises(UsageError) as caught:
        local_size(job(exec=True), here)

    assert local_size(job(exec=True, nproc_per_node=1), here) == 1
    assert caught.value.message == (
        "the test: one process can't become 2 workers (nproc_per_node: default)"
    )
    assert "srun --ntasks-per-node=2" in caught.value.hint
