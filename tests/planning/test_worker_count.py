"""The number of workers of a node."""

from collections.abc import Mapping
from typing import Any

import pytest
from clusterrun.errors import UsageError
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.values import WorkerCount
from clusterrun.machine.machine import Machine
from clusterrun.planning.worker_slots import local_size
from msgspec.structs import replace

from tests.plans import job, machine, planned


@pytest.mark.parametrize(
    ("wanted", "each", "gpus", "expected"),
    [
        (WorkerCount.PER_GPU, None, 2, 2),
        (WorkerCount.PER_GPU, None, 0, 1),
        (WorkerCount.AUTO, None, 2, 2),
        (WorkerCount.AUTO, None, 0, 6),
        (WorkerCount.GPU, None, 2, 2),
        (WorkerCount.CPU, None, 2, 6),
        (2, None, 2, 2),
        (1, None, 2, 1),
        (3, None, 0, 3),
        # The GPUs are divided among the workers.
        (WorkerCount.PER_GPU, 2, 8, 4),
        (WorkerCount.AUTO, 4, 8, 2),
        (WorkerCount.GPU, 3, 8, 2),
        (2, 4, 8, 2),
        (1, 2, 8, 1),
    ],
)
def test_worker_count(
    wanted: int | WorkerCount, each: int | None, gpus: int, expected: int
) -> None:
    """Only CPUs and GPUs that the job may use are counted."""
    here = machine({0: "0-3", 1: "4-7"}, [0] * (gpus + 1), allowed="0-5", visible=range(gpus))

    assert local_size(job(nproc_per_node=wanted, gpus_per_worker=each), here) == expected


@pytest.mark.parametrize(
    ("quota", "expected"), [(None, 6), (1.5, 1), (0.5, 1), (3.0, 3), (6.5, 6), (100.0, 6)]
)
@pytest.mark.parametrize("wanted", [WorkerCount.CPU, WorkerCount.AUTO])
def test_quota_limits_worker_count(wanted: WorkerCount, quota: float | None, expected: int) -> None:
    """A job gets no more time on CPUs than its cgroup's quota."""
    here = machine({0: "0-7"}, allowed="0-5", quota=quota)

    assert local_size(job(nproc_per_node=wanted), here) == expected


@pytest.mark.parametrize(
    ("wanted", "is_said"),
    [
        (WorkerCount.PER_GPU, True),
        (WorkerCount.AUTO, True),
        (WorkerCount.CPU, False),
        (4, False),
    ],
)
def test_uncounted_accelerators_give_a_warning(wanted: int | WorkerCount, *, is_said: bool) -> None:
    """They are where the number of workers was to follow from GPUs, and in place of "no GPU"."""
    here = replace(machine({0: "0-3"}, ()), visible_origin="", accelerators="4 TPU chips, ...")
    counted = job(nproc_per_node=wanted)

    found = planned(counted, here, local_size(counted, here))

    assert ("4 TPU chips, ..." in found.warnings) is is_said
    with pytest.raises(UsageError, match=r"no GPU is visible \(4 TPU chips, \.\.\.\)"):
        local_size(job(nproc_per_node=WorkerCount.GPU), here)


def split_by_slices() -> Machine:
    """Return a machine with one GPU, of which three slices are visible."""
    here = machine({0: "0-3"}, [0, 0, 0])
    return replace(here, visible=tuple(replace(gpu, parent="GPU-x") for gpu in here.visible))


def split_among_others() -> Machine:
    """Return a machine with three GPUs, of which the second is split."""
    here = machine({0: "0-3"}, [0, 0, 0])
    return replace(here, gpus=(*here.gpus, replace(here.gpus[1], uuid="MIG-a", parent="GPU-1")))


@pytest.mark.parametrize("split", [split_by_slices(), split_among_others()])
def test_process_sees_one_slice(split: Machine) -> None:
    """A process sees no other GPU either; all slices count if each worker sees only its own."""
    assert local_size(job(nproc_per_node=WorkerCount.AUTO), split) == 1
    assert local_size(job(), split) == 1
    assert local_size(job(virtual_local_rank=True), split) == 3


@pytest.mark.parametrize(
    ("nproc", "each", "gpus", "complaint"),
    [
        (4, 4, 8, "4 workers need 16 GPUs, but 8 are visible"),
        (WorkerCount.PER_GPU, 4, 1, "1 worker needs 4 GPUs, but 1 is visible"),
        (WorkerCount.PER_GPU, 2, 0, "1 worker needs 2 GPUs, but none is visible"),
    ],
)
def test_too_few_gpus(nproc: int | WorkerCount, each: int, gpus: int, complaint: str) -> None:
    """The error has the numbers."""
    here = machine({0: "0-7"}, [0] * gpus)

    with pytest.raises(UsageError) as caught:
        local_size(job(nproc_per_node=nproc, gpus_per_worker=each), here)

    assert caught.value.message == f"gpus_per_worker is {each} (the test): {complaint}"


@pytest.mark.parametrize(
    ("nproc", "gpus", "complaint", "hint"),
    [
        (16, 8, "16 (the test), but 8 GPUs are visible (NVML)", "give --nproc-per-node 8"),
        (2, 1, "2 (the test), but 1 GPU is visible (NVML)", "give --nproc-per-node 1"),
    ],
)
def test_more_workers_than_gpus(nproc: int, gpus: int, complaint: str, hint: str) -> None:
    """Two workers would use one GPU: only --gpus-per-worker 0 allows that."""
    here = machine({0: "0-7"}, [0] * gpus)

    with pytest.raises(UsageError) as caught:
        local_size(job(nproc_per_node=nproc), here)

    assert caught.value.message == f"nproc_per_node is {complaint}"
    assert caught.value.hint.splitlines() == [
        hint,
        "or, if workers share GPUs or use none, add --gpus-per-worker 0",
    ]
    assert local_size(job(nproc_per_node=nproc, gpus_per_worker=0), here) == nproc
    assert local_size(job(nproc_per_node=WorkerCount.CPU), here) == 8


@pytest.mark.parametrize("split", [split_by_slices(), split_among_others()])
def test_more_workers_than_the_slice_that_a_process_sees(split: Machine) -> None:
    """Each worker can have one slice, but none can have two."""
    with pytest.raises(UsageError) as caught:
        local_size(job(nproc_per_node=2), split)
    assert caught.value.message == (
        "nproc_per_node is 2 (the test), but CUDA shows each process only one MIG slice, and no"
        " other GPU"
    )
    assert "add --virtual-local-rank" in caught.value.hint

    with pytest.raises(UsageError) as caught:
        local_size(job(gpus_per_worker=2, virtual_local_rank=True), split)
    assert caught.value.message == (
        "gpus_per_worker is 2 (the test), but CUDA shows each process only one MIG slice, and no"
        " other GPU"
    )
    assert local_size(job(nproc_per_node=3, virtual_local_rank=True), split) == 3


STANDARD_INPUT = WorkerProgram(ProgramKind.SCRIPT, "-", ())
READ_ONCE = "the script is read from standard input (-), which only one worker can read"


@pytest.mark.parametrize(
    ("options", "gpus", "message", "hint"),
    [
        # Two workers would each read a part of the script.
        (
            {"script": STANDARD_INPUT},
            2,
            f"{READ_ONCE}, but this node would start 2 (nproc_per_node: default)",
            "use --nproc-per-node 1",
        ),
        (
            {"exec": True},
            2,
            "the test: one process can't become 2 workers (nproc_per_node: default)",
            "srun --ntasks-per-node=2",
        ),
        (
            {"nproc_per_node": WorkerCount.GPU},
            0,
            "nproc_per_node is gpu (the test), but no GPU is visible (NVML)",
            "--nproc-per-node cpu",
        ),
        (
            {"unclear": "add --cluster none", "nnodes": 2},
            2,
            (
                "default is None and the test 2, which may count nodes or processes, but this node"
                " would start 2 workers (nproc_per_node: default)"
            ),
            "add --cluster none",
        ),
        # Planning for them would take minutes.
        (
            {"nproc_per_node": 100_000},
            0,
            "nproc_per_node is 100000 (the test): a node starts 10000 workers at most",
            "give as many as there are GPUs",
        ),
    ],
)
def test_rejected_worker_counts(
    options: Mapping[str, Any], gpus: int, message: str, hint: str
) -> None:
    """The error names the origin, and the hint what to type."""
    here = machine({0: "0-3"}, [0] * gpus)

    with pytest.raises(UsageError) as caught:
        local_size(job(**options), here)

    assert caught.value.message == message
    assert hint in caught.value.hint
    assert local_size(job(**{**options, "nproc_per_node": 1}), here) == 1


@pytest.mark.parametrize("split", [split_by_slices(), split_among_others()])
def test_workers_with_one_gpu_each_see_the_same_slice(split: Machine) -> None:
    """Setting the default number of GPUs changes nothing."""
    with pytest.raises(UsageError, match="CUDA shows each process only one MIG slice"):
        local_size(job(nproc_per_node=2, gpus_per_worker=1), split)

    own = job(nproc_per_node=3, gpus_per_worker=1, virtual_local_rank=True)
    assert local_size(own, split) == 3
