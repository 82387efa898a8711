"""Which vendor's GPUs the workers see, and the lists of Intel and Huawei."""

import pytest

from tests.machine.door import (
    Device,
    Listing,
    select_visible,
)


def listing(vendor: str, source: str, *bdfs: str) -> Listing:
    return Listing(source, tuple(Device(vendor, at, bdf) for at, bdf in enumerate(bdfs)))


NVIDIA = listing("nvidia", "NVML", "0000:17:00.0", "0000:99:00.0")
AMD = listing("amd", "KFD", "0000:63:00.0", "0000:43:00.0")
INTEL = listing("intel", "sysfs", "0000:4d:00.0", "0000:4d:00.0", "0000:9a:00.0", "0000:9a:00.0")
HUAWEI = listing("huawei", "sysfs", "0000:01:00.0", "0000:02:00.0", "0000:81:00.0")


def test_without_variables_the_source_is_the_origin() -> None:
    """All of them are visible."""
    found = select_visible([NVIDIA], {})

    assert found.devices == NVIDIA.devices
    assert (found.origin, found.remark, found.order_known) == ("NVML", "", True)


@pytest.mark.parametrize("text", ["", "-1", "NoDevFiles"])
def test_hiding_every_gpu_on_purpose_is_nothing_to_remark(text: str) -> None:
    """Users and tools set these values for jobs without GPUs."""
    found = select_visible([NVIDIA], {"CUDA_VISIBLE_DEVICES": text})

    assert (found.devices, found.remark) == ((), "")


def test_a_list_without_any_gpu_is_remarked() -> None:
    """The user expects GPUs, and the process may open none."""
    found = select_visible([], {"CUDA_VISIBLE_DEVICES": "0,1"})

    assert found.devices == ()
    assert found.remark == ("CUDA_VISIBLE_DEVICES=0,1, but this process may open no GPU")


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
def test_one_of_several_vendors_is_chosen(environ: dict[str, str], vendor: str) -> None:
    """It is the vendor whose own variable is set, else the first."""
    found = select_visible([NVIDIA, AMD, INTEL, HUAWEI], environ)

    assert {device.vendor for device in found.devices} == {vendor}


def test_vendors_that_are_not_used_are_named() -> None:
    """The user sees which vendor's GPUs the workers use."""
    assert select_visible([NVIDIA, AMD], {}).origin == "NVML (of nvidia, not of amd)"


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
def test_intel_s_mask_only_filters(mask: str, hierarchy: str, expected: list[int]) -> None:
    """The order is that of the bus; a card is one device, or one for each tile."""
    environ = {"ZE_AFFINITY_MASK": mask} | (
        {"ZE_FLAT_DEVICE_HIERARCHY": hierarchy} if hierarchy else {}
    )

    found = select_visible([INTEL], environ)

    assert [device.number for device in found.devices] == expected


def test_a_mask_that_names_no_card_says_so() -> None:
    """The other entries count."""
    found = select_visible([INTEL], {"ZE_AFFINITY_MASK": "0,9"})

    assert (found.origin, found.remark) == (
        "ZE_AFFINITY_MASK=0,9",
        "ZE_AFFINITY_MASK=0,9: '9' is not a GPU here",
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
def test_huawei_s_list_ends_at_what_is_no_number(text: str, expected: list[int]) -> None:
    """A space is no part of a number."""
    found = select_visible([HUAWEI], {"ASCEND_RT_VISIBLE_DEVICES": text})

    assert [device.number for device in found.devices] == expected
    assert bool(found.remark) == (len(expected) < len([entry for entry in text.split(",") if text]))
