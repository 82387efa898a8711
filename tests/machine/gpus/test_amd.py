"""AMD's GPUs, as KFD tells of them."""

from collections.abc import Sequence
from pathlib import Path

from clusterrun.machine.gpus.amd import list_addresses, list_gpus
from clusterrun.machine.gpus.devices import Device
from clusterrun.machine.tree import Tree

from tests.machine_trees import KfdNode, MachineFacts, PciDevice, write_files, write_tree

TWO_CPUS = (KfdNode(), KfdNode())


def devices(root: Path, gpus: Sequence[KfdNode]) -> tuple[Device, ...]:
    """Return the GPUs of a machine with these nodes after those of two CPUs."""
    return list_gpus(Tree(write_tree(root, MachineFacts(kfd=(*TWO_CPUS, *gpus))))).devices


def test_the_order_is_that_of_kfd(tmp_path: Path) -> None:
    """It is ROCm's, and not that of the bus."""
    gpus = [KfdNode("0000:63:00.0", unique_id=0x1902070F10D7A9C6), KfdNode("0001:43:02.0")]

    found = devices(tmp_path, gpus)

    assert [(device.number, device.bdf, device.uuid) for device in found] == [
        (0, "0000:63:00.0", "GPU-1902070f10d7a9c6"),
        (1, "0001:43:02.0", ""),
    ]
    assert list_addresses(Tree(tmp_path)) == {"0000:63:00.0", "0001:43:02.0"}


def test_nodes_sort_by_number(tmp_path: Path) -> None:
    """Node 10 comes after node 9."""
    gpus = [KfdNode(f"0000:{bus:02x}:00.0") for bus in range(20, 10, -1)]

    found = devices(tmp_path, gpus)

    assert [device.bdf for device in found] == [gpu.bdf for gpu in gpus]


def test_partitions_are_gpus_of_one_address(tmp_path: Path) -> None:
    """The number of a partition stands where the bus has the function."""
    gpus = [KfdNode("0000:05:00.0", partition=number) for number in range(6)]

    found = devices(tmp_path, gpus)

    assert [device.number for device in found] == [0, 1, 2, 3, 4, 5]
    assert {device.bdf for device in found} == {"0000:05:00.0"}
    assert list_addresses(Tree(tmp_path)) == {"0000:05:00.0"}


def test_gpus_of_other_containers_are_not_ours(tmp_path: Path) -> None:
    """Their properties can't be read, or they have no render node here."""
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

    assert [(device.number, device.bdf) for device in found] == [(0, "0000:06:00.0")]
    assert list_addresses(Tree(tmp_path)) == {f"0000:{bus}:00.0" for bus in buses}


def test_graphics_without_compute_are_none(tmp_path: Path) -> None:
    """Where KFD says which GPUs there are, what else the driver has is not looked for."""
    write_tree(
        tmp_path,
        MachineFacts(devices=[PciDevice("0000:63:00.0", vendor="0x1002", driver="amdgpu")]),
    )

    assert devices(tmp_path, ()) == ()
    assert list_addresses(Tree(tmp_path)) == set()


def test_without_the_device_file_there_are_none(tmp_path: Path) -> None:
    """A container may be given none of them."""
    write_files(tmp_path, {"dev/null": ""})

    assert devices(tmp_path, [KfdNode("0000:05:00.0")]) == ()


def test_models_are_named_by_the_board_or_by_the_architecture(tmp_path: Path) -> None:
    """Not every board has its product's name."""
    write_files(
        tmp_path,
        {"sys/bus/pci/devices/0000:05:00.0/product_name": "AMD Instinct MI210"},
    )
    gpus = [KfdNode("0000:05:00.0"), KfdNode("0000:06:00.0"), KfdNode("0000:07:00.0", version=0)]

    found = devices(tmp_path, gpus)

    assert [device.model for device in found] == ["AMD Instinct MI210", "gfx90a", ""]
