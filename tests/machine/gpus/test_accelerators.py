"""Accelerators that are named and not counted."""

from dataclasses import replace
from pathlib import Path

import pytest
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import Tree

from tests.machine_trees import MachineFacts, PciDevice, write_files, write_tree

BDF = "0000:10:00.0"
GAUDI = PciDevice(BDF, vendor="0x1da3", driver="habanalabs", device="0x1020", pci_class="0x120000")
NEURON = PciDevice(
    BDF, vendor="0x1d0f", driver="neuron-driver", device="0x7164", pci_class="0x088000"
)
TPU = PciDevice(BDF, vendor="0x1ae0", driver="", device="0x0063", pci_class="0x120000")
NETWORK = PciDevice(BDF, vendor="0x1ae0", driver="gvnic", device="0x0042", pci_class="0x020000")


def named(root: Path, kind: PciDevice, count: int, *files: str) -> str:
    """Return the warning for a machine with some devices and files."""
    devices = [replace(kind, bdf=f"0000:1{at}:00.0") for at in range(count)]
    write_files(write_tree(root, MachineFacts(devices=devices)), dict.fromkeys(files, ""))
    return inspect(Tree(root), {}, None, "").accelerators


@pytest.mark.parametrize(
    ("kind", "files", "expected"),
    [
        (GAUDI, (), "Gaudi accelerators, which clusterrun does not count: for a worker on each, give --nproc-per-node 2"),
        (GAUDI, ("dev/hl0", "dev/hl1", "dev/hl_controlD0"), "Gaudi accelerators, which clusterrun does not count: for a worker on each, give --nproc-per-node 2"),
        (GAUDI, ("dev/accel/accel3", "dev/accel/accel5", "dev/accel/accel_controlD3"), "Gaudi accelerators, which clusterrun does not count: for a worker on each, give --nproc-per-node 2"),
        (NEURON, ("dev/neuron0", "dev/neuron1"), "AWS Neuron devices, which clusterrun does not count: for a worker on each of their cores, give --nproc-per-node"),
        (TPU, ("dev/accel0", "dev/accel1"), "TPU chips, which clusterrun does not count: for a worker on each, give --nproc-per-node 2"),
        (TPU, ("dev/vfio/vfio", "dev/vfio/0"), "TPU chips, which clusterrun does not count: for a worker on each, give --nproc-per-node 2"),
        (TPU, (), "TPU chips, which clusterrun does not count: for a worker on each, give --nproc-per-node 2"),
    ],
)  # fmt: skip
def test_accelerators_warning_has_advice(
    tmp_path: Path, kind: PciDevice, files: tuple[str, ...], expected: str
) -> None:
    assert named(tmp_path, kind, 2, *files) == f"2 {expected}"


def test_single_accelerator(tmp_path: Path) -> None:
    assert named(tmp_path, TPU, 1).startswith("1 TPU chip, which")


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        (NETWORK, ("dev/accel0",)),
        (NETWORK, ()),
        (GAUDI, ("dev/null",)),
        (NEURON, ("dev/null",)),
        (TPU, ("dev/null",)),
        (TPU, ("dev/vfio/vfio",)),
    ],
)
def test_container_counts_its_device_files(
    tmp_path: Path, kind: PciDevice, files: tuple[str, ...]
) -> None:
    """It sees the bus of its host; Google's network cards are none."""
    assert named(tmp_path, kind, 2, *files) == ""


def test_no_accelerators_warning_beside_gpus(tmp_path: Path) -> None:
    """The number of workers is that of the GPUs."""
    gpu, other = PciDevice("0000:17:00.0", minor=0), replace(GAUDI, bdf="0000:20:00.0")
    write_tree(tmp_path, MachineFacts(devices=[gpu, other]))

    assert inspect(Tree(tmp_path), {}, None, "").accelerators == ""
