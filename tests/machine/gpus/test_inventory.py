"""Which GPUs a machine has, by each source."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusterrun.machine.gpus.gpus import HUNG
from clusterrun.machine.gpus.pci import in_bus_order, normalised
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Machine
from clusterrun.machine.tree import KernelAnswers, Tree

from tests.machine.nvml_answers import answered, whole
from tests.machine_trees import (
    AMD,
    HUAWEI,
    INTEL,
    NVIDIA,
    PCI,
    MachineFacts,
    PciDevice,
    on_bus,
    write_files,
    write_tree,
)


def listing(root: Path, *devices: PciDevice, nvml: str = "") -> Machine:
    """Return what is found on a machine with these devices."""
    answers = KernelAnswers(answer={"nvml": nvml})
    return listed(Tree(write_tree(root, MachineFacts(devices=devices)), answers))


def listed(tree: Tree) -> Machine:
    """Return what is found in a tree."""
    return inspect(tree, {}, None, "")


def addresses(found: Machine) -> list[str]:
    return [gpu.bdf for gpu in found.gpus]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000:17:00.0", "0000:17:00.0"),
        ("00000000:17:00.0", "0000:17:00.0"),
        ("0000:AF:00.1", "0000:af:00.1"),
        ("00010000:e1:00.0", "10000:e1:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("bind", None),
        ("17:00.0", None),
        ("0000:17:00.8", None),
        ("", None),
    ],
)
def test_addresses_match_by_value(text: str, expected: str | None) -> None:
    """NVML writes eight digits of domain, /sys four or more."""
    assert normalised(text) == expected


def test_addresses_sort_by_value() -> None:
    """A domain of five digits comes after all of four."""
    shuffled = ["10000:01:00.0", "000a:01:00.0", "0002:ff:1f.1", "0002:ff:1f.0"]

    assert sorted(shuffled, key=in_bus_order) == shuffled[::-1]


def test_the_driver_lists_gpus_with_uuids(tmp_path: Path) -> None:
    """The order is that of addresses, not of minor numbers."""
    found = listing(
        tmp_path,
        PciDevice("0000:99:00.0", uuid="GPU-b", minor=0),
        PciDevice("0000:17:00.0", uuid="GPU-a", minor=1),
    )

    assert found.visible_origin == "/proc/driver/nvidia"
    assert found.visible == found.gpus
    assert [(gpu.bdf, gpu.uuid) for gpu in found.gpus] == [
        ("0000:17:00.0", "GPU-a"),
        ("0000:99:00.0", "GPU-b"),
    ]


GRAPHICS = replace(INTEL, bdf="0000:00:02.0", driver="i915", pci_class="0x030000")
TWO_TILES = replace(INTEL, device="0x0bd5", tiles=2)
CARDS = [
    replace(card, drm=(f"card{number}", f"renderD{128 + number}"))
    for number, card in enumerate(on_bus(INTEL, "4d", "9a"))
]


@pytest.mark.parametrize(
    ("devices", "files", "ours", "all_gpus"),
    [
        # A container sees all GPUs of its host in /proc and /sys, but only its own in /dev.
        (on_bus(NVIDIA, "17", "99"), ["nvidia1"], "99", "17 99"),
        (on_bus(NVIDIA, "17"), ["null"], "", "17"),
        # Audio of the card, and virtual functions, are no GPUs.
        (
            [
                *on_bus(NVIDIA, "99", "17"),
                PciDevice("0000:17:00.1", pci_class="0x040300"),
                PciDevice("0000:17:00.4", virtual=True),
            ],
            ["nvidia1"],
            "17",
            "17 99",
        ),
        # A desktop's graphics chip has amdgpu, but no /dev/kfd.
        (on_bus(AMD, "63"), ["null"], "", ""),
        # Level Zero makes each tile a device; built-in graphics are left out.
        (
            [GRAPHICS, *on_bus(TWO_TILES, "9a"), *on_bus(INTEL, "4d")],
            [],
            "4d 9a 9a",
            "4d 9a",
        ),
        # A container has the render nodes of its own cards only.
        (CARDS, ["dri/renderD129"], "9a", "4d 9a"),
        # A container counts its own NPUs from 0; their files have their numbers on the bus.
        (
            on_bus(HUAWEI, "01", "02", "81", "82"),
            ["davinci1", "davinci3"],
            "02 82",
            "01 02 81 82",
        ),
    ],
)
def test_gpus_with_openable_device_files_are_ours(
    tmp_path: Path, devices: list[PciDevice], files: list[str], ours: str, all_gpus: str
) -> None:
    """They are counted from 0; the addresses are those of all on the bus."""
    write_files(tmp_path, {f"dev/{name}": "" for name in files})

    found = listing(tmp_path, *devices)

    assert [(gpu.index, gpu.bdf) for gpu in found.gpus] == [
        *enumerate(f"0000:{bus}:00.0" for bus in ours.split())
    ]
    assert [gpu.bdf for gpu in found.pci_gpus] == [f"0000:{bus}:00.0" for bus in all_gpus.split()]


@pytest.mark.parametrize("uuids", [("GPU-????????-????", "GPU-????????-????"), ("GPU-a", "GPU-a")])
def test_repeated_uuid_is_dropped(tmp_path: Path, uuids: tuple[str, str]) -> None:
    """A driver that has not initialised its GPUs writes question marks; the third's is its own."""
    found = listing(
        tmp_path,
        *(
            PciDevice(f"0000:1{at}:00.0", uuid=uuid, minor=at)
            for at, uuid in enumerate((*uuids, "GPU-b"))
        ),
    )

    assert [gpu.uuid for gpu in found.gpus] == ["", "", "GPU-b"]


def test_no_gpu_is_opened_if_nvml_hangs(tmp_path: Path) -> None:
    """Opening one may hang, too, so only the mode of its file is read."""
    write_files(tmp_path, {"dev/nvidia0": "", "dev/nvidia1": ""})
    for number, mode in enumerate((0o444, 0o666)):
        (tmp_path / f"dev/nvidia{number}").chmod(mode)

    found = listing(
        tmp_path,
        PciDevice("0000:17:00.0", minor=0),
        PciDevice("0000:99:00.0", minor=1),
        nvml=HUNG,
    )

    assert found.visible_origin == "/proc/driver/nvidia (NVML does not answer)"
    assert addresses(found) == ["0000:99:00.0"]


def test_hanging_nvml_gives_a_warning(tmp_path: Path) -> None:
    """The warning appears if only NVML could list the GPUs."""
    write_files(tmp_path, {"dev/dxg": ""})
    tree = Tree(tmp_path, KernelAnswers(answer={"nvml": HUNG}))

    assert listed(tree).visible_warning.startswith("NVML does not answer")
    assert inspect(tree, {"CUDA_VISIBLE_DEVICES": ""}, None, "").visible_warning == ""


def test_wsl_has_gpus_only_in_nvml(tmp_path: Path) -> None:
    """WSL 2 has neither the driver nor the bus: only NVML lists GPUs."""
    write_files(tmp_path, {"dev/dxg": ""})
    assert listed(Tree(tmp_path)).gpus == ()
    tree = answered(
        tmp_path, [whole(at, f"GPU-{at + 1}", f"0000:0{at + 1}:00.0") for at in range(2)]
    )

    found = listed(tree)

    assert found.visible_origin == "NVML"
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-1", "GPU-2"]
    assert [gpu.bdf for gpu in found.pci_gpus] == ["0000:01:00.0", "0000:02:00.0"]


@pytest.mark.parametrize(
    ("vendor", "driver"),
    [("0x1002", "amdgpu"), ("0x10de", "nvidia"), ("0x8086", "xe")],
)
def test_hwloc_tree_has_only_driver_links(tmp_path: Path, vendor: str, driver: str) -> None:
    """Its archives have neither the folder of drivers nor that of KFD."""
    write_tree(
        tmp_path / "machine",
        MachineFacts(
            devices=[
                PciDevice(bdf, behind="pci0000:00", vendor=vendor, driver=driver)
                for bdf in ("0000:63:00.0", "0000:43:00.0")
            ]
        ),
    )
    drivers = tmp_path / "machine" / PCI / "drivers"
    for link in drivers.glob("*/*"):
        device = link.resolve()
        (device / "driver").symlink_to(os.path.relpath(link.parent, device))
    shutil.rmtree(drivers)
    write_files(tmp_path / "machine", {"proc/driver/nvidia": ""})

    found = listed(Tree(tmp_path / "machine"))

    assert found.visible_origin == "sysfs"
    assert addresses(found) == ["0000:43:00.0", "0000:63:00.0"]


def test_driver_without_information_files(tmp_path: Path) -> None:
    """The name of the directory is the address."""
    write_files(tmp_path, {"proc/driver/nvidia/gpus/0004:05:00.0/numa_status": "Node: 255"})

    assert addresses(listed(Tree(tmp_path))) == ["0004:05:00.0"]


def test_tree_without_proc_uses_the_bus(tmp_path: Path) -> None:
    """Other files in the driver's directory are not devices."""
    write_files(tmp_path, {f"{PCI}/drivers/nvidia/bind": "", f"{PCI}/drivers/nvidia/uevent": ""})

    found = listing(tmp_path, PciDevice("0000:99:00.0"), PciDevice("0000:17:00.0"))

    assert found.visible_origin == "sysfs"
    assert addresses(found) == ["0000:17:00.0", "0000:99:00.0"]


ANY = "0000:65:00.0"
OF_AMD = {"vendor": "0x1002", "driver": "amdgpu"}
NO_VENDOR = {"vendor": None, "driver": ""}


@pytest.mark.parametrize(
    ("pci_class", "facts", "is_gpu"),
    [
        # The class of AMD's GPUs varies by model and mode.
        ("0x030000", OF_AMD, True),
        ("0x030200", OF_AMD, True),
        ("0x038000", OF_AMD, True),
        ("0x120000", OF_AMD, True),
        # Topology files of clouds have no vendors; every kernel shows them.
        ("0x030200", NO_VENDOR, True),
        ("0x038000", NO_VENDOR, True),
        ("0x120000", NO_VENDOR, True),
        ("0x030000", NO_VENDOR, False),
        # Audio and USB of consumer cards have the same driver.
        ("0x040300", {}, False),
        ("0x0c0330", {}, False),
        # Management controllers, old graphics, and an accelerator of another kind.
        ("0x030000", {"vendor": "0x1a03", "driver": "ast"}, False),
        ("0x030000", {"vendor": "0x102b", "driver": ""}, False),
        ("0x030000", {"vendor": "0x1002", "driver": "radeon"}, False),
        ("0x0b4000", {"vendor": "0x8086", "driver": "qat"}, False),
        # A virtual machine uses the GPU.
        ("0x030200", {"driver": "vfio-pci"}, False),
    ],
)
def test_gpus_are_found_by_driver_and_class(
    tmp_path: Path, pci_class: str, facts: dict[str, Any], *, is_gpu: bool
) -> None:
    """Only a tree without vendors is read by the class alone."""
    device = PciDevice(ANY, pci_class=pci_class, **facts)

    assert addresses(listing(tmp_path, device)) == ([ANY] if is_gpu else [])


def test_models_come_from_the_driver_or_the_bus(tmp_path: Path) -> None:
    """The driver has the name of the product, the bus its number."""
    a100 = PciDevice("0000:17:00.0", minor=0, model="NVIDIA A100-SXM4-80GB")
    bare = PciDevice("0000:17:00.0", device="0x20b2")

    named, numbered = listing(tmp_path / "a", a100), listing(tmp_path / "b", bare)

    assert named.gpus[0].model == "NVIDIA A100-SXM4-80GB"
    assert numbered.gpus[0].model == "10de:20b2"


def test_gpus_of_several_vendors_are_numbered_separately(tmp_path: Path) -> None:
    """Each vendor counts its own from 0; NVIDIA's come first."""
    devices = [
        *on_bus(AMD, "05"),
        *on_bus(NVIDIA, "17"),
        *on_bus(TWO_TILES, "4d"),
        *on_bus(HUAWEI, "81"),
    ]

    found = listing(tmp_path, *devices)

    assert [(gpu.vendor, gpu.index, gpu.bdf) for gpu in found.gpus] == [
        ("nvidia", 0, "0000:17:00.0"),
        ("amd", 0, "0000:05:00.0"),
        ("intel", 0, "0000:4d:00.0"),
        ("intel", 1, "0000:4d:00.0"),
        ("huawei", 0, "0000:81:00.0"),
    ]
    assert found.gpus[3].model == "8086:0bd5"
    assert [gpu.bdf for gpu in found.pci_gpus] == sorted(device.bdf for device in devices)
