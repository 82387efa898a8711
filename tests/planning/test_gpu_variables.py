"""The variables by which a worker sees only its own GPUs."""

from collections.abc import Mapping
from typing import Any

import pytest
from clusterrun.errors import UsageError
from clusterrun.machine.machine import Machine
from msgspec.structs import replace

from tests.plans import job, machine, planned

FOUR = machine({0: "0-3", 1: "4-7"}, [0, 0, 1, 1])
NAMES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "LOCAL_RANK")


def variables(
    here: Machine,
    workers: int,
    environ: Mapping[str, str] | None = None,
    **values: Any,
) -> list[list[str]]:
    plan = planned(job(**values), here, workers, environ)
    return [[f"{name}={w.env[name]}" for name in NAMES if name in w.env] for w in plan.workers]


def with_gpus(here: Machine, **changes: str) -> Machine:
    gpus = tuple(replace(gpu, **changes) for gpu in here.visible)
    return replace(here, gpus=gpus, visible=gpus)


def test_all_gpus_are_visible_by_default() -> None:
    """This is what torchrun does."""
    assert variables(FOUR, 2) == [["LOCAL_RANK=0"], ["LOCAL_RANK=1"]]


def test_worker_with_several_gpus_sees_its_block() -> None:
    """In the order of the visible GPUs."""
    here = replace(FOUR, visible=FOUR.visible[::-1])

    assert variables(here, 2, virtual_local_rank=True, gpus_per_worker=2) == [
        ["CUDA_VISIBLE_DEVICES=3,2", "LOCAL_RANK=0"],
        ["CUDA_VISIBLE_DEVICES=1,0", "LOCAL_RANK=0"],
    ]


AMD = with_gpus(FOUR, vendor="amd")
BELOW = replace(AMD, visible=AMD.visible[2:])
WITH_IDS = with_gpus(BELOW, uuid="GPU-00aabb0000000001")
DESKTOP = replace(FOUR, gpus=(*FOUR.gpus, replace(FOUR.gpus[0], vendor="amd", model="RX")))
MIXED = replace(FOUR, gpus=(replace(FOUR.gpus[0], model="H100"), *FOUR.gpus[1:]))
NONE = machine({0: "0-3"})


@pytest.mark.parametrize(
    ("here", "environ", "expected"),
    [
        (FOUR, {}, ["CUDA_VISIBLE_DEVICES=1"]),
        (DESKTOP, {}, ["CUDA_VISIBLE_DEVICES=1"]),
        # Slices have no index, and that of mixed models depends on CUDA_DEVICE_ORDER.
        (with_gpus(FOUR, parent="GPU-x"), {}, ["CUDA_VISIBLE_DEVICES=GPU-1"]),
        (MIXED, {}, ["CUDA_VISIBLE_DEVICES=GPU-1"]),
        (with_gpus(FOUR, vendor="intel"), {}, ["ZE_AFFINITY_MASK=1"]),
        (AMD, {}, ["HIP_VISIBLE_DEVICES=1"]),
        # HIP counts the GPUs that ROCR leaves; its alias, if set, has the same value.
        (
            BELOW,
            {"ROCR_VISIBLE_DEVICES": "2,GPU-3", "CUDA_VISIBLE_DEVICES": "0,1"},
            ["CUDA_VISIBLE_DEVICES=1", "HIP_VISIBLE_DEVICES=1"],
        ),
        # ROCR reads the beginning of a UUID in upper or lower case.
        (WITH_IDS, {"ROCR_VISIBLE_DEVICES": "GPU-ff,gpu-00AA"}, ["HIP_VISIBLE_DEVICES=1"]),
        # Without GPUs the option works as under torchrun.
        (NONE, {}, ["CUDA_VISIBLE_DEVICES=1"]),
        (NONE, {"CUDA_VISIBLE_DEVICES": "6, 7"}, ["CUDA_VISIBLE_DEVICES=7"]),
        (NONE, {"HIP_VISIBLE_DEVICES": ""}, ["CUDA_VISIBLE_DEVICES=1"]),
        # HIP's runtime prefers its own variable.
        (
            NONE,
            {"HIP_VISIBLE_DEVICES": "6, 7", "CUDA_VISIBLE_DEVICES": "0,1"},
            ["CUDA_VISIBLE_DEVICES=7", "HIP_VISIBLE_DEVICES=7"],
        ),
    ],
)
def test_virtual_local_rank_shows_own_gpu(
    here: Machine, environ: dict[str, str], expected: list[str]
) -> None:
    """The second one of two; its only GPU has number 0."""
    _, second = variables(here, 2, environ, virtual_local_rank=True)

    assert second == [*expected, "LOCAL_RANK=0"]


def test_invisible_slices_give_a_warning() -> None:
    """There is no warning if each worker has its own."""
    slices = with_gpus(FOUR, parent="GPU-x")
    warning = (
        "CUDA shows each process only one MIG slice, and no other GPU; --virtual-local-rank gives"
        " each worker its own"
    )

    def warnings(**values: bool) -> tuple[str, ...]:
        return planned(job(**values), slices, 1).warnings

    assert warning in warnings()
    assert warning not in warnings(virtual_local_rank=True)


def test_more_workers_than_gpus() -> None:
    """No worker would have a GPU of its own."""
    with pytest.raises(UsageError) as caught:
        variables(FOUR, 8, virtual_local_rank=True)

    assert caught.value.message == (
        "the test: local rank 0 has no GPU of its own: 4 GPUs are visible"
    )


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_more_workers_than_entries_of_the_variable(name: str) -> None:
    """Where no GPU is found, it may all the same name some."""
    with pytest.raises(UsageError, match=f"{name}=6, 7 has no entry for local rank 2"):
        variables(NONE, 3, {name: "6, 7"}, virtual_local_rank=True)
