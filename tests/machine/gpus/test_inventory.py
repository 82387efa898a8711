"""GPUs on the bus, and a driver that hangs; ``machines/gpus.txt`` has which GPUs a machine has."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from clusterrun.machine.gpus.gpus import HUNG
from clusterrun.machine.gpus.pci import in_bus_order, normalised
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import KernelAnswers, Tree

from tests.machine_trees import (
    AMD,
    INTEL,
    NVIDIA,
    PCI,
    MachineFacts,
    PciDevice,
    on_bus,
    write_files,
    write_tree,
)


def tree_of_a_hanging_driver(root: Path) -> Tree:
    return Tree(root, KernelAnswers(answer={"nvml": HUNG}))


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


def test_no_gpu_is_opened_if_nvml_hangs(tmp_path: Path) -> None:
    """Opening one may hang, too, so only the mode of its file is read."""
    write_tree(tmp_path, MachineFacts(devices=on_bus(NVIDIA, "17", "99")))
    write_files(tmp_path, {"dev/nvidia0": "", "dev/nvidia1": ""})
    for number, mode in enumerate((0o444, 0o666)):
        (tmp_path / f"dev/nvidia{number}").chmod(mode)

    found = inspect(tree_of_a_hanging_driver(tmp_path), {}, None, "")

    assert found.visible_origin == "/proc/driver/nvidia (NVML does not answer)"
    assert [gpu.bdf for gpu in found.gpus] == ["0000:99:00.0"]


def test_hanging_nvml_gives_a_warning(tmp_path: Path) -> None:
    """The warning appears if only NVML could list the GPUs."""
    write_files(tmp_path, {"dev/dxg": ""})
    tree = tree_of_a_hanging_driver(tmp_path)

    shown, hidden = (inspect(tree, it, None, "") for it in ({}, {"CUDA_VISIBLE_DEVICES": ""}))

    assert shown.visible_warning.startswith("NVML does not answer")
    assert hidden.visible_warning == ""


@pytest.mark.parametrize("kind", [AMD, NVIDIA, INTEL])
def test_hwloc_tree_has_only_driver_links(tmp_path: Path, kind: PciDevice) -> None:
    """Its archives have neither the folder of drivers nor that of KFD."""
    devices = [
        replace(kind, bdf=bdf, behind="pci0000:00") for bdf in ("0000:63:00.0", "0000:43:00.0")
    ]
    drivers = write_tree(tmp_path, MachineFacts(devices=devices)) / PCI / "drivers"
    for link in drivers.glob("*/*"):
        device = link.resolve()
        (device / "driver").symlink_to(os.path.relpath(link.parent, device))
    shutil.rmtree(drivers)
    write_files(tmp_path, {"proc/driver/nvidia": ""})

    found = inspect(Tree(tmp_path), {}, None, "")

    assert found.visible_origin == "sysfs"
    assert [gpu.bdf for gpu in found.gpus] == ["0000:43:00.0", "0000:63:00.0"]
