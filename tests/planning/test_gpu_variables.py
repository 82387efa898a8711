"""The variables by which a worker sees only its own GPUs."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from tests.planning.door import (
    Machine,
    UsageError,
)
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


def test_all_are_seen_unless_asked() -> None:
    """This is what torchrun does."""
    assert variables(FOUR, 2) == [["LOCAL_RANK=0"], ["LOCAL_RANK=1"]]


def test_own_gpus_by_index() -> None:
    """Each worker has a block of the visible GPUs, in their order."""
    here = replace(FOUR, visible=FOUR.visible[::-1])

    assert variables(here, 2, virtual_local_rank=True, gpus_per_worker=2) == [
        ["CUDA_VISIBLE_DEVICES=3,2", "LOCAL_RANK=0"],
        ["CUDA_VISIBLE_DEVICES=1,0", "LOCAL_RANK=0"],
    ]


def test_virtual_local_ranks_are_all_0() -> None:
    """The worker's only GPU has number 0."""
    assert variables(FOUR, 2, virtual_local_rank=True) == [
        ["CUDA_VISIBLE_DEVICES=0", "LOCAL_RANK=0"],
        ["CUDA_VISIBLE_DEVICES=1", "LOCAL_RANK=0"],
    ]


def test_slices_and_mixed_models_go_by_uuid() -> None:
    """They have no index, or one that depends on CUDA_DEVICE_ORDER."""
    slices = with_gpus(FOUR, parent="GPU-x")
    mixed = replace(FOUR, gpus=(replace(FOUR.gpus[0], model="H100"), *FOUR.gpus[1:]))

    desktop = replace(FOUR, gpus=(*FOUR.gpus, replace(FOUR.gpus[0], vendor="amd", model="RX")))

    assert variables(desktop, 2, virtual_local_rank=True)[1][0] == "CUDA_VISIBLE_DEVICES=1"
    assert variables(slices, 1, virtual_local_rank=True)[0][0] == "CUDA_VISIBLE_DEVICES=GPU-0"
    assert variables(mixed, 2, virtual_local_rank=True)[1][0] == "CUDA_VISIBLE_DEVICES=GPU-1"


def test_slices_that_no_worker_can_see_are_remarked() -> None:
    """There is no remark if each worker has its own."""
    slices = with_gpus(FOUR, parent="GPU-x")
    remark = (
        "CUDA shows a process one MIG slice, and no other GPU;"
        " --virtual-local-rank gives each worker its own"
    )

    def remarks(**values: bool) -> tuple[str, ...]:
        return planned(job(**values), slices, 1).remarks

    assert remark in remarks()
    assert remark not in remarks(virtual_local_rank=True)


def test_amd_s_count_from_the_beginnings_of_ids() -> None:
    """ROCR reads the beginning of a UUID in upper or lower case."""
    amd = with_gpus(FOUR, vendor="amd", uuid="GPU-00aabb0000000001")
    one = replace(amd, visible=amd.visible[3:])

    found = variables(one, 1, {"ROCR_VISIBLE_DEVICES": "GPU-ff,gpu-00AA"}, virtual_local_rank=True)

    assert found[0][0] == "HIP_VISIBLE_DEVICES=1"


def test_amd_s_count_from_what_rocr_leaves() -> None:
    """HIP counts the GPUs that ROCR leaves; its alias, if set, has the same value."""
    amd = replace(with_gpus(FOUR, vendor="amd"))
    below = replace(amd, visible=amd.visible[2:])

    assert variables(amd, 2, virtual_local_rank=True)[1][0] == "HIP_VISIBLE_DEVICES=1"
    found = variables(
        below,
        2,
        {"ROCR_VISIBLE_DEVICES": "2,GPU-3", "CUDA_VISIBLE_DEVICES": "0,1"},
        virtual_local_rank=True,
    )
    assert found[1][:2] == ["CUDA_VISIBLE_DEVICES=1", "HIP_VISIBLE_DEVICES=1"]


def test_intel_s_mask() -> None:
    """The mask has the indices of GPUs."""
    intel = with_gpus(FOUR, vendor="intel")

    assert variables(intel, 2, virtual_local_rank=True)[1][0] == "ZE_AFFINITY_MASK=1"


def test_more_workers_than_gpus() -> None:
    """No worker would have a GPU of its own."""
    with pytest.raises(UsageError) as caught:
        variables(FOUR, 8, virtual_local_rank=True)

    assert caught.value.message == (
        "the test: local rank 0 has no GPU of its own: 4 GPUs are visible"
    )


def test_no_gpu_at_all() -> None:
    """The option works as under torchrun."""
    none = machine({0: "0-3"})

    assert variables(none, 2, virtual_local_rank=True)[1] == [
        "CUDA_VISIBLE_DEVICES=1",
        "LOCAL_RANK=0",
    ]
    listed = {"CUDA_VISIBLE_DEVICES": "6, 7"}
    assert variables(none, 2, listed, virtual_local_rank=True)[1][0] == "CUDA_VISIBLE_DEVICES=7"
    with pytest.raises(UsageError, match="no entry for local rank 2"):
        variables(none, 3, listed, virtual_local_rank=True)
