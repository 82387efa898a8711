"""Which vendor's GPUs the workers see, and the lists of Intel and Huawei."""

from dataclasses import replace
from pathlib import Path

import pytest
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Machine
from clusterrun.machine.tree import Tree

from tests.machine_trees import (
    AMD,
    HUAWEI,
    INTEL,
    NVIDIA,
    MachineFacts,
    PciDevice,
    on_bus,
    write_tree,
)

TWO_OF_NVIDIA, TWO_OF_AMD = on_bus(NVIDIA, "17", "99"), on_bus(AMD, "43", "63")
TWO_OF_INTEL = on_bus(replace(INTEL, tiles=2), "4d", "9a")
THREE_OF_HUAWEI = on_bus(HUAWEI, "01", "02", "81")


def machine(root: Path, devices: list[PciDevice], **environ: str) -> Machine:
    tree = Tree(write_tree(root, MachineFacts(devices=devices)))
    return inspect(tree, environ, None, "")


@pytest.mark.parametrize("text", ["", "-1", "NoDevFiles"])
def test_hiding_all_gpus_gives_no_warning(tmp_path: Path, text: str) -> None:
    """Users and tools set these values for jobs without GPUs."""
    found = machine(tmp_path, TWO_OF_NVIDIA, CUDA_VISIBLE_DEVICES=text)

    assert (found.visible, found.visible_warning) == ((), "")


def test_list_without_gpus_gives_a_warning(tmp_path: Path) -> None:
    """The user expects GPUs, and the process may open none."""
    found = machine(tmp_path, [], CUDA_VISIBLE_DEVICES="0,1")

    assert found.visible == ()
    assert found.visible_warning == (
        "CUDA_VISIBLE_DEVICES=0,1, but this process can't open any GPU"
    )


@pytest.mark.parametrize(
    ("environ", "vendor"),
    [
        ({}, "nvidia"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "nvidia"),
        ({"HIP_VISIBLE_DEVICES": "1"}, "amd"),
        ({"ROCR_VISIBLE_DEVICES": "1"}, "amd"),
        ({"ZE_AFFINITY_MASK": "1"}, "intel"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "1"}, "huawei"),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}, "nvidia"),
    ],
)
def test_one_of_several_vendors_is_used(
    tmp_path: Path, environ: dict[str, str], vendor: str
) -> None:
    """It is the vendor whose own variable is set, else the first."""
    found = machine(
        tmp_path, [*TWO_OF_NVIDIA, *TWO_OF_AMD, *TWO_OF_INTEL, *THREE_OF_HUAWEI], **environ
    )

    assert {gpu.vendor for gpu in found.visible} == {vendor}


def test_origin_names_unused_vendors(tmp_path: Path) -> None:
    """The user sees which vendor's GPUs the workers use."""
    origin = machine(tmp_path, [*TWO_OF_NVIDIA, *TWO_OF_AMD]).visible_origin

    assert origin == "/proc/driver/nvidia (of nvidia, not of amd)"


@pytest.mark.parametrize(
    ("mask", "hierarchy", "expected"),
    [
        ("", "FLAT", [0, 1, 2, 3]),
        ("3,0", "FLAT", [0, 3]),
        ("3,0", "", [0, 3]),
        ("0,9", "FLAT", [0]),
        ("", "COMPOSITE", [0, 1]),
        ("1", "COMPOSITE", [1]),
        ("1.0,1.1", "COMPOSITE", [1]),
        ("9", "COMPOSITE", []),
    ],
)
def test_intel_mask_keeps_bus_order(
    tmp_path: Path, mask: str, hierarchy: str, expected: list[int]
) -> None:
    """The order is that of the bus; a card is one device, or one for each tile."""
    environ = {"ZE_AFFINITY_MASK": mask} | (
        {"ZE_FLAT_DEVICE_HIERARCHY": hierarchy} if hierarchy else {}
    )

    found = machine(tmp_path, TWO_OF_INTEL, **environ)

    assert [gpu.index for gpu in found.visible] == expected


def test_intel_mask_without_gpus_gives_a_warning(tmp_path: Path) -> None:
    """The other entries count."""
    found = machine(tmp_path, TWO_OF_INTEL, ZE_AFFINITY_MASK="0,9")

    assert (found.visible_origin, found.visible_warning) == (
        "ZE_AFFINITY_MASK=0,9",
        "ZE_AFFINITY_MASK=0,9: '9' is not a GPU of this node",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,2", [0, 2]),
        ("1, 2", [1]),
        ("0,8,1", [0]),
        ("1,1", [1]),
        ("x", []),
        ("", []),
    ],
)
def test_huawei_list_ends_at_an_invalid_entry(
    tmp_path: Path, text: str, expected: list[int]
) -> None:
    """A space is not part of a number."""
    found = machine(tmp_path, THREE_OF_HUAWEI, ASCEND_RT_VISIBLE_DEVICES=text)

    assert [gpu.index for gpu in found.visible] == expected
    assert bool(found.visible_warning) == (
        len(expected) < len([entry for entry in text.split(",") if text])
    )
