"""ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES, as ROCR-Runtime and HIP's own sources read them."""

import pytest
from clusterrun.machine.gpus.devices import Device, Listing
from clusterrun.machine.gpus.visible_rocm import choose

UUIDS = ("GPU-00aa000000000001", "GPU-00aa000000000002", "GPU-00bb000000000003", "")
FOUR = Listing(
    "KFD",
    tuple(
        Device("amd", number, f"0000:{number + 16:02x}:00.0", uuid, kfd_node=number + 2)
        for number, uuid in enumerate(UUIDS)
    ),
)


def seen(**environ: str) -> list[int]:
    return [device.number for device in choose(FOUR, environ).devices]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,2", [0, 2]),
        ("3,0", [3, 0]),
        (" 2 , 1", [2, 1]),
        ("0x2,01", [2, 1]),
        ("1,1,2", [1]),
        ("1,9,2", [1]),
        ("1,-1,2", [1]),
        ("1,x", [1]),
        ("1,,2", [1]),
        ("1gpu", []),
        ("", []),
        ("GPU-00bb", [2]),
        ("gpu-00BB000000000003,0", [2, 0]),
        ("GPU-00aa", []),
        ("GPU-", []),
        ("GPU-00cc,0", []),
    ],
)
def test_the_lower_runtime_s_list(text: str, expected: list[int]) -> None:
    """What is wrong or there for a second time ends it."""
    assert seen(ROCR_VISIBLE_DEVICES=text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,2", [0, 2]),
        ("3,0", [3, 0]),
        ("1,1,2", [1, 2]),
        ("1,9,2", [1]),
        ("0, 1", [0]),
        ("01", []),
        ("-1", []),
        ("", []),
        ("GPU-00bb000000000003,0", [2, 0]),
        ("GPU-00aa", [0]),
        ("GPU-00BB", []),
    ],
)
@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_the_upper_runtime_s_list(variable: str, text: str, expected: list[int]) -> None:
    """What is wrong ends it, what is there twice counts once; CUDA's variable is its alias."""
    assert seen(**{variable: text}) == expected


def test_the_upper_list_counts_in_the_lower_one() -> None:
    """And its own variable stands above the alias."""
    environ = {
        "ROCR_VISIBLE_DEVICES": "3,1",
        "HIP_VISIBLE_DEVICES": "1",
        "CUDA_VISIBLE_DEVICES": "0",
    }

    found = choose(FOUR, environ)

    assert [device.number for device in found.devices] == [1]
    assert found.origin == "ROCR_VISIBLE_DEVICES=3,1 HIP_VISIBLE_DEVICES=1"
    assert found.remark == ""


def test_a_list_cut_short_says_where() -> None:
    """The variable, its value and the entry."""
    found = choose(FOUR, {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,2"})

    assert [device.number for device in found.devices] == [0]
    assert found.remark == (
        "HIP_VISIBLE_DEVICES=0,2: '2' is not a GPU here, or is listed twice; HIP ends the list there"
    )


def test_without_variables_all_are_visible() -> None:
    """In KFD's order."""
    assert choose(FOUR, {}) == (FOUR.devices, "", "")
