"""AMD's GPUs as KFD lists them, and as ROCR-Runtime's and HIP's own sources read the variables."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Gpu, Machine
from clusterrun.machine.tree import Tree

from tests.machine_trees import KfdNode, MachineFacts, PciDevice, write_files, write_tree

TWO_CPUS = (KfdNode(), KfdNode())


def listed(root: Path, gpus: Sequence[KfdNode], **environ: str) -> Machine:
    """Return a machine with these nodes after those of two CPUs."""
    facts = MachineFacts(kfd=(*TWO_CPUS, *gpus))
    return inspect(Tree(write_tree(root, facts)), environ, None, "")


def devices(root: Path, gpus: Sequence[KfdNode]) -> tuple[Gpu, ...]:
    """Return the GPUs of such a machine."""
    return listed(root, gpus).gpus


def addresses(root: Path) -> set[str]:
    """Return the addresses of all on the bus, ours or not."""
    return {gpu.bdf for gpu in inspect(Tree(root), {}, None, "").pci_gpus}


def test_amd_gpus_are_in_kfd_order(tmp_path: Path) -> None:
    """ROCm uses this order, not that of the bus; node 10 comes after node 9."""
    gpus = [KfdNode(f"0001:{bus:02x}:02.0", unique_id=bus << 56) for bus in range(20, 10, -1)]

    found = devices(tmp_path, gpus)

    assert [(device.index, device.bdf, device.uuid) for device in found] == [
        (at, gpu.bdf, f"GPU-{gpu.unique_id:016x}") for at, gpu in enumerate(gpus)
    ]
    assert addresses(tmp_path) == {gpu.bdf for gpu in gpus}


def test_partitions_share_an_address(tmp_path: Path) -> None:
    """KFD gives the number of a partition as the PCI function."""
    gpus = [KfdNode("0000:05:00.0", partition=number) for number in range(6)]

    found = devices(tmp_path, gpus)

    assert [device.index for device in found] == [0, 1, 2, 3, 4, 5]
    assert {device.bdf for device in found} == {"0000:05:00.0"}
    assert addresses(tmp_path) == {"0000:05:00.0"}


def test_gpus_of_other_containers_are_excluded(tmp_path: Path) -> None:
    """Their properties can't be read, or their render node is missing."""
    write_files(tmp_path, {"dev/kfd": "", "dev/dri/renderD128": ""})
    buses = ("05", "06", "07")
    write_tree(
        tmp_path,
        MachineFacts(
            devices=[
                PciDevice(f"0000:{bus}:00.0", vendor="0x1002", driver="amdgpu") for bus in buses
            ]
        ),
    )
    gpus = [
        KfdNode("0000:05:00.0", readable=False),
        KfdNode("0000:06:00.0", render=128),
        KfdNode("0000:07:00.0", render=129),
    ]

    found = devices(tmp_path, gpus)

    assert [(device.index, device.bdf) for device in found] == [(0, "0000:06:00.0")]
    assert addresses(tmp_path) == {f"0000:{bus}:00.0" for bus in buses}


def test_graphics_without_compute_are_excluded(tmp_path: Path) -> None:
    """If KFD lists GPUs, no other source is used."""
    write_tree(
        tmp_path,
        MachineFacts(devices=[PciDevice("0000:63:00.0", vendor="0x1002", driver="amdgpu")]),
    )

    assert devices(tmp_path, ()) == ()
    assert addresses(tmp_path) == set()


def test_no_dev_kfd_means_no_gpus(tmp_path: Path) -> None:
    """A container may have no GPU."""
    write_files(tmp_path, {"dev/null": ""})

    assert devices(tmp_path, [KfdNode("0000:05:00.0")]) == ()


def test_model_is_board_name_or_architecture(tmp_path: Path) -> None:
    """Only some boards have a product name."""
    write_files(
        tmp_path,
        {"sys/bus/pci/devices/0000:05:00.0/product_name": "AMD Instinct MI210"},
    )
    gpus = [KfdNode("0000:05:00.0"), KfdNode("0000:06:00.0"), KfdNode("0000:07:00.0", version=0)]

    found = devices(tmp_path, gpus)

    assert [device.model for device in found] == ["AMD Instinct MI210", "gfx90a", ""]


FOUR = [
    KfdNode(f"0000:{at + 16:02x}:00.0", unique_id=number)
    for at, number in enumerate((0x00AA000000000001, 0x00AA000000000002, 0x00BB000000000003, 0))
]


def seen(root: Path, **environ: str) -> list[int]:
    return [gpu.index for gpu in listed(root, FOUR, **environ).visible]


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
def test_rocr_visible_devices(tmp_path: Path, text: str, expected: list[int]) -> None:
    """A wrong or repeated entry ends the list."""
    assert seen(tmp_path, ROCR_VISIBLE_DEVICES=text) == expected


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
def test_hip_visible_devices(tmp_path: Path, variable: str, text: str, expected: list[int]) -> None:
    """A wrong entry ends the list, a repeated one counts once; CUDA's variable is an alias."""
    assert seen(tmp_path, **{variable: text}) == expected


def test_hip_numbers_the_gpus_that_rocr_selects(tmp_path: Path) -> None:
    """HIP's own variable is used before the alias."""
    environ = {
        "ROCR_VISIBLE_DEVICES": "3,1",
        "HIP_VISIBLE_DEVICES": "1",
        "CUDA_VISIBLE_DEVICES": "0",
    }

    found = listed(tmp_path, FOUR, **environ)

    assert [gpu.index for gpu in found.visible] == [1]
    assert found.visible_origin == "ROCR_VISIBLE_DEVICES=3,1 HIP_VISIBLE_DEVICES=1"
    assert found.visible_warning == ""


def test_invalid_entry_gives_a_warning(tmp_path: Path) -> None:
    """The warning has the variable, its value and the entry."""
    found = listed(tmp_path, FOUR, ROCR_VISIBLE_DEVICES="0,1", HIP_VISIBLE_DEVICES="0,2")

    assert [gpu.index for gpu in found.visible] == [0]
    assert found.visible_warning == (
        "HIP_VISIBLE_DEVICES=0,2: '2' is not a GPU of this node, or is listed twice; HIP ends the"
        " list there"
    )


def test_without_variables_all_are_visible(tmp_path: Path) -> None:
    """The order is that of KFD."""
    found = listed(tmp_path, FOUR)

    assert [gpu.uuid for gpu in found.visible] == [
        "GPU-00aa000000000001",
        "GPU-00aa000000000002",
        "GPU-00bb000000000003",
        "",
    ]
    assert (found.visible_origin, found.visible_warning) == ("KFD", "")
