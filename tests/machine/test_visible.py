"""CUDA_VISIBLE_DEVICES, against what torch 2.13 makes of the same strings."""

import pytest

from launcher.machine.visible import Entries, choose, parse, select_visible
from tests.plans import gpu

# Recorded from torch.cuda._parse_visible_devices().
TORCH: list[tuple[str, list[int] | list[str]]] = [
    ("", []),
    ("0", [0]),
    ("0,1", [0, 1]),
    ("1,0", [1, 0]),
    (" 2 , 3 ", [2, 3]),
    ("0,1,-1,2", [0, 1]),
    ("-1", []),
    ("0,0", []),
    ("0,1,0", []),
    ("NoDevFiles", []),
    ("0,x,2", [0]),
    ("1gpu2,2ampere", [1, 2]),
    ("+1,2", [1, 2]),
    ("0,", [0]),
    ("0,,2", [0]),
    ("03,3", []),
    ("99", [99]),
    ("GPU-aaaa,GPU-bbbb", ["GPU-aaaa", "GPU-bbbb"]),
    ("GPU-a,GPU-a", []),
    ("GPU-aaaa,0", ["GPU-aaaa"]),
    ("0,GPU-aaaa", [0]),
    ("MIG-x/1/0", ["MIG-x/1/0"]),
    ("GPU-", ["GPU-"]),
    ("gpu-aaaa", []),
    ("all", []),
    ("none", []),
    ("void", []),
]
UUIDS = ["GPU-aaaa1", "GPU-aaaa2", "GPU-bbbb3"]
# Recorded from torch.cuda._transform_uuid_to_ordinals().
TORCH_UUIDS: list[tuple[tuple[str, ...], list[int]]] = [
    (("GPU-bbbb",), [2]),
    (("GPU-aaaa",), []),
    (("GPU-aaaa1", "GPU-bbbb"), [0, 2]),
    (("GPU-cccc",), []),
    (("GPU-bbbb", "GPU-cccc", "GPU-aaaa1"), [2]),
    (("GPU-bbbb", "GPU-bbbb3"), []),
]
FOUR = [gpu(index, 0) for index in range(4)]


@pytest.mark.parametrize(("text", "expected"), TORCH)
def test_entries_are_those_of_torch(text: str, expected: list[int] | list[str]) -> None:
    """Every string gives the list that torch makes of it."""
    assert list(parse(text).ids) == expected


@pytest.mark.parametrize(("ids", "expected"), TORCH_UUIDS)
def test_uuids_mean_what_they_mean_to_torch(ids: tuple[str, ...], expected: list[int]) -> None:
    """The beginning of a UUID does, if it is of one GPU only."""
    assert list(choose(Entries(ids, ""), UUIDS).indices) == expected


def test_without_the_variable_all_are_visible() -> None:
    """In the vendor's order, and the source that listed them is the origin."""
    found = select_visible(FOUR, {}, "NVML")

    assert found.gpus == tuple(FOUR)
    assert (found.origin, found.remark) == ("NVML", "")


def test_the_order_of_the_list_is_the_order_of_the_workers() -> None:
    """The first entry is local rank 0's."""
    found = select_visible(FOUR, {"CUDA_VISIBLE_DEVICES": "3,0"}, "NVML")

    assert [one.index for one in found.gpus] == [3, 0]
    assert (found.origin, found.remark) == ("CUDA_VISIBLE_DEVICES=3,0", "")


@pytest.mark.parametrize(
    ("text", "indices", "remark"),
    [
        ("0,9,1", [0], "CUDA_VISIBLE_DEVICES: 9 is no GPU here; CUDA ends the list there"),
        ("GPU-7", [], "CUDA_VISIBLE_DEVICES: GPU-7 is no GPU here; CUDA ends the list there"),
        (
            "GPU-1,GPU-1",
            [],
            "CUDA_VISIBLE_DEVICES=GPU-1,GPU-1: 'GPU-1' is there twice; CUDA then shows none",
        ),
        (
            "1,x",
            [1],
            "CUDA_VISIBLE_DEVICES=1,x: 'x' is neither number nor UUID; CUDA ends the list there",
        ),
    ],
)
def test_a_list_cut_short_says_where(text: str, indices: list[int], remark: str) -> None:
    """The entry that did it is named."""
    found = select_visible(FOUR, {"CUDA_VISIBLE_DEVICES": text}, "NVML")

    assert [one.index for one in found.gpus] == indices
    assert found.remark == remark


@pytest.mark.parametrize("text", ["", "-1", "NoDevFiles"])
def test_hiding_every_gpu_on_purpose_is_nothing_to_remark(text: str) -> None:
    """People and tools write that to get a CPU job."""
    found = select_visible(FOUR, {"CUDA_VISIBLE_DEVICES": text}, "NVML")

    assert (found.gpus, found.remark) == ((), "")


def test_a_list_without_any_gpu_is_remarked() -> None:
    """Somebody expects GPUs where there are none to open."""
    found = select_visible((), {"CUDA_VISIBLE_DEVICES": "0,1"}, "sysfs")

    assert found.gpus == ()
    assert found.remark == (
        "CUDA_VISIBLE_DEVICES=0,1, but there is no GPU that this process may open"
    )
