"""The node that a GPU is local to, and the source of that."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Hints
from clusterrun.machine.tree import Tree

from tests.machine.nvml_answers import answered, whole
from tests.machine_trees import (
    KFD,
    KfdNode,
    MachineFacts,
    PciDevice,
    two_nodes,
    write_files,
    write_tree,
)

GPU = "0000:17:00.0"

LOCAL_TO_ALL = PciDevice(GPU, local_cpulist="0-3")

Place = tuple[int | None, str]
UNKNOWN: Place = (None, "unknown")


def locate(root: Path, facts: MachineFacts, bdf: str = GPU, hints: Hints | None = None) -> Place:
    """Return the node of a GPU that NVML lists at an address, and the source of that."""
    tree = answered(write_tree(root, facts), [whole(0, bdf=bdf, hints=hints)])
    (gpu,) = inspect(tree, {}, None, "").gpus
    return gpu.numa_node, gpu.node_source


def locate_by_kfd(root: Path, facts: MachineFacts) -> Place:
    """Return the node of the first GPU that KFD lists."""
    gpu = inspect(Tree(write_tree(root, facts)), {}, None, "").gpus[0]
    return gpu.numa_node, gpu.node_source


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (PciDevice(GPU, numa_node=1), (1, "sysfs numa_node")),
        # Neither -1 nor a node that does not exist is taken for node 0.
        (PciDevice(GPU, numa_node=-1, local_cpulist="4-7"), (1, "sysfs local_cpulist")),
        (PciDevice(GPU, numa_node=7, local_cpulist="4-7"), (1, "sysfs local_cpulist")),
        (PciDevice(GPU, numa_node=None, local_cpulist="4-7"), (1, "sysfs local_cpulist")),
        # The list may be outdated, and have CPUs that are not online.
        (PciDevice(GPU, local_cpulist="4-11"), (1, "sysfs local_cpulist")),
        # Some virtual machines cut the mask short; one has the list 0-1 and the mask 1.
        (
            PciDevice(GPU, local_cpulist="4-7", local_cpus="0000000f"),
            (1, "sysfs local_cpulist"),
        ),
        (PciDevice(GPU, local_cpulist="0-7", local_cpus="0000000f"), UNKNOWN),
        # Old kernels have no list.
        (PciDevice(GPU, numa_node=None, local_cpus="000000f0"), (1, "sysfs local_cpus")),
        # The kernel lists all CPUs if it does not know.
        (PciDevice(GPU, local_cpulist="0-7"), UNKNOWN),
        (PciDevice(GPU, local_cpulist=""), UNKNOWN),
        (PciDevice(GPU, local_cpulist="2-5"), UNKNOWN),
        # Some sandboxes hide the bus.
        (PciDevice("0000:18:00.0", numa_node=1), UNKNOWN),
    ],
)
def test_node_from_sysfs(tmp_path: Path, device: PciDevice, expected: Place) -> None:
    """The kernel's number is the first source, its list of CPUs the second, its mask the third."""
    assert locate(tmp_path, two_nodes([device])) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        # In most virtual machines every device has node -1.
        (MachineFacts(nodes={0: "0-3"}, devices=[PciDevice(GPU)]), (0, "single node")),
        # A kernel without NUMA has no node, whatever its devices have.
        (MachineFacts(nodes={}, devices=[PciDevice(GPU, numa_node=0)]), UNKNOWN),
        # A node that the job may not use can't be the place of its GPU.
        (two_nodes([PciDevice(GPU)], allowed="5-7"), (1, "single node")),
        # If the node of CPU 0 is offline, half of the CPUs belong to no node.
        (MachineFacts(nodes={1: "2-3"}, devices=[PciDevice(GPU)]), UNKNOWN),
        # Broken firmware tables: each node has all CPUs, and the kernel lists all if it does not know.
        (MachineFacts(nodes={0: "0-3", 1: "0-3"}, devices=[LOCAL_TO_ALL]), UNKNOWN),
        # Of nodes that overlap, the smallest is the nearest.
        (
            MachineFacts(
                nodes={0: "0-3", 1: "2-3", 2: "1-3"}, devices=[PciDevice(GPU, local_cpulist="3")]
            ),
            (1, "sysfs local_cpulist"),
        ),
        # The distances of a node without CPUs are unknown.
        (
            MachineFacts(nodes={0: "0-1", 1: "2-3", 4: ""}, devices=[PciDevice(GPU, numa_node=4)]),
            UNKNOWN,
        ),
    ],
)
def test_gpu_of_unknown_location_is_at_the_only_usable_node(
    tmp_path: Path, facts: MachineFacts, expected: Place
) -> None:
    """The only node must have all CPUs that the job may use."""
    assert locate(tmp_path, facts) == expected


def test_devices_are_found_by_normalised_address(tmp_path: Path) -> None:
    """A domain of 32 bits has more than four digits in /sys."""
    found = locate(tmp_path, two_nodes([PciDevice("10000:e1:00.0", numa_node=1)]), "10000:e1:00.0")

    assert found[0] == 1


def test_node_from_root_port(tmp_path: Path) -> None:
    """Virtual machines and some firmware set only the node of the bridge."""
    behind = "pci0000:10/0000:10:01.0/0000:11:00.0"
    write_files(tmp_path, {"sys/devices/pci0000:10/0000:10:01.0/numa_node": "1"})

    found = locate(tmp_path, two_nodes([PciDevice(GPU, behind=behind)]))

    assert found == (1, "sysfs numa_node of 0000:10:01.0")


def test_node_without_cpus_is_replaced_by_nearest(tmp_path: Path) -> None:
    """Memory of a GPU or of CXL is a node; of two equally near nodes the lower id is taken."""
    facts = MachineFacts(
        nodes={0: "0-1", 1: "2-3", 4: "", 5: ""},
        distances={4: "40 20 10 30", 5: "20 20 15 10"},
        devices=[PciDevice(GPU, numa_node=4), PciDevice("0000:18:00.0", numa_node=5)],
    )

    assert locate(tmp_path / "a", facts) == (1, "sysfs numa_node 4, nearest with CPUs")
    assert locate(tmp_path / "b", facts, "0000:18:00.0")[0] == 0


@pytest.mark.parametrize(
    ("device", "nvml", "expected"),
    [
        (PciDevice(GPU), {}, (0, "")),
        (PciDevice(GPU, local_cpulist="4-7"), {}, (2, " by sysfs local_cpulist")),
        (PciDevice(GPU, local_cpulist="2-3"), {}, (0, "")),
        (PciDevice(GPU, behind="pci0000:10/0000:10:01.0/0000:11:00.0"), {}, (2, " by sysfs numa_node of 0000:10:01.0")),
        (PciDevice(GPU), {"cpus": "4"}, (2, " by NVML CPU affinity")),
        (PciDevice(GPU), {"nodes": "2"}, (2, " by NVML memory affinity")),
        (PciDevice(GPU), {"nodes": "4"}, (0, "")),
        (PciDevice(GPU), {"nodes": "5"}, (2, " by NVML memory affinity 5, nearest with CPUs")),
        (PciDevice(GPU, local_cpulist="0-1"), {"cpus": "4"}, (0, " by sysfs local_cpulist")),
    ],
)  # fmt: skip
def test_later_source_decides_between_equally_near_nodes(
    tmp_path: Path, device: PciDevice, nvml: dict[str, Any], expected: tuple[int, str]
) -> None:
    """The memory of a GPU is equally far from two nodes; a later source may name one of them."""
    facts = MachineFacts(
        online="0-7",
        nodes={0: "0-1", 1: "2-3", 2: "4-7", 4: "", 5: ""},
        distances={4: "20 40 20 10 40", 5: "30 30 20 40 10"},
        devices=[replace(device, numa_node=4)],
    )
    write_files(tmp_path, {"sys/devices/pci0000:10/0000:10:01.0/numa_node": "2"})

    found = locate(tmp_path, facts, hints=Hints(**nvml))

    node, by = expected
    assert found == (node, f"sysfs numa_node 4, nearest with CPUs{by}")


@pytest.mark.parametrize(
    ("numa_node", "hints", "expected"),
    [
        # The kernel's files are used before NVML, its list of CPUs before its list of nodes.
        (0, Hints("4-7"), (0, "sysfs numa_node")),
        (-1, Hints("4-7", "0"), (1, "NVML CPU affinity")),
        # NVML lists all CPUs if it does not know.
        (-1, Hints("0-7", "1"), (1, "NVML memory affinity")),
        (-1, Hints("0-7", "0-1"), UNKNOWN),
        (-1, Hints("0-7", "7"), UNKNOWN),
        (-1, Hints("0-7", ""), UNKNOWN),
    ],
)
def test_node_from_nvml(tmp_path: Path, numa_node: int, hints: Hints, expected: Place) -> None:
    facts = two_nodes([PciDevice(GPU, numa_node=numa_node)])

    assert locate(tmp_path, facts, hints=hints) == expected


def kfd_machine(*links: dict[int, int]) -> MachineFacts:
    """Return two CPUs, and GPUs with these links to them and to each other."""
    gpus = [KfdNode(f"0000:{at:02x}:00.0", links=weights) for at, weights in enumerate(links, 1)]
    return MachineFacts(nodes={0: "0-1", 8: "2-3", 9: ""}, kfd=[KfdNode(), KfdNode(), *gpus])


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({0: 41, 1: 20}, (8, "KFD io_links")),
        ({0: 20}, (0, "KFD io_links")),
        ({0: 20, 1: 20}, UNKNOWN),
        ({3: 15}, UNKNOWN),
        ({}, UNKNOWN),
    ],
    ids=["nearer", "only", "as-near", "to-a-gpu", "no-link"],
)
def test_node_from_kfd_links(tmp_path: Path, weights: dict[int, int], expected: Place) -> None:
    """Its nodes with CPUs are the NUMA nodes with CPUs, in their order."""
    assert locate_by_kfd(tmp_path, kfd_machine(weights, {})) == expected


def test_kfd_is_ignored_if_node_counts_differ(tmp_path: Path) -> None:
    """KFD sees the whole machine, /sys may be that of a container."""
    facts = MachineFacts(nodes={0: "0", 1: "1", 2: "2-3"}, kfd=kfd_machine({0: 20}).kfd)

    assert locate_by_kfd(tmp_path, facts) == UNKNOWN


def test_apu_is_its_own_node(tmp_path: Path) -> None:
    """KFD shows the CPUs and the GPU as one node."""
    facts = kfd_machine({})
    root = write_tree(tmp_path, facts)
    inside = (root / KFD / "1/properties").read_text().replace("simd_count 0", "simd_count 8")
    (root / KFD / "1/properties").write_text(inside)
    gpu = inspect(Tree(root), {}, None, "").gpus[0]

    assert (gpu.numa_node, gpu.node_source) == (8, "KFD io_links")
