"""The node that a GPU is local to, and the source of that."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusterrun.domain.cpuset import CpuSet
from clusterrun.machine.gpus.devices import Device
from clusterrun.machine.gpus.locality import Locality, Locator
from clusterrun.machine.numa_nodes import read_nodes
from clusterrun.machine.processors import read_processors
from clusterrun.machine.tree import Tree

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


def locate(root: Path, facts: MachineFacts, bdf: str = GPU) -> Locality:
    """Return the place of a device of a machine with these facts."""
    return locate_device(root, facts, Device("nvidia", 0, bdf))


def locate_device(root: Path, facts: MachineFacts, device: Device) -> Locality:
    """Return the place of a device with an answer of its vendor's library."""
    tree = Tree(write_tree(root, facts))
    processors = read_processors(tree, None)
    return Locator(tree, read_nodes(tree, processors.online), processors).locate(device)


def test_the_device_says_its_node(tmp_path: Path) -> None:
    """The first thing to look at."""
    found = locate(tmp_path, two_nodes([PciDevice(GPU, numa_node=1)]))

    assert found == Locality(1, "sysfs numa_node")


def test_devices_are_found_by_the_value_of_their_address(tmp_path: Path) -> None:
    """A domain of 32 bits has more digits in /sys than another."""
    found = locate(tmp_path, two_nodes([PciDevice("10000:e1:00.0", numa_node=1)]), "10000:e1:00.0")

    assert found.node == 1


@pytest.mark.parametrize("numa_node", [-1, 7, None], ids=["unknown", "not-online", "no-file"])
def test_local_cpus_tell_where_the_number_does_not(tmp_path: Path, numa_node: int | None) -> None:
    """Neither -1 nor a node that isn't there is ever node 0."""
    device = PciDevice(GPU, numa_node=numa_node, local_cpulist="4-7")

    assert locate(tmp_path, two_nodes([device])) == Locality(1, "sysfs local_cpulist")


def test_the_list_of_local_cpus_stands_above_the_mask(tmp_path: Path) -> None:
    """Some virtual machines cut the mask short."""
    device = PciDevice(GPU, local_cpulist="4-7", local_cpus="0000000f")

    assert locate(tmp_path, two_nodes([device])).node == 1


def test_a_mask_is_not_asked_where_the_list_says_all(tmp_path: Path) -> None:
    """A virtual machine whose list is 0-1 and whose mask is 1 was seen."""
    device = PciDevice(GPU, local_cpulist="0-7", local_cpus="0000000f")

    assert locate(tmp_path, two_nodes([device])) == Locality(None, "unknown")


def test_a_mask_of_local_cpus_is_enough(tmp_path: Path) -> None:
    """Old kernels have no list."""
    device = PciDevice(GPU, numa_node=None, local_cpus="000000f0")

    assert locate(tmp_path, two_nodes([device])) == Locality(1, "sysfs local_cpus")


@pytest.mark.parametrize("local", ["0-7", "", "2-5"], ids=["all", "none", "across-nodes"])
def test_local_cpus_that_fit_no_node_tell_nothing(tmp_path: Path, local: str) -> None:
    """All CPUs is what the kernel writes when it doesn't know."""
    found = locate(tmp_path, two_nodes([PciDevice(GPU, local_cpulist=local)]))

    assert found == Locality(None, "unknown")


def test_the_root_port_tells_for_what_is_behind_it(tmp_path: Path) -> None:
    """Virtual machines and some firmware set the node on the bridge only."""
    behind = "pci0000:10/0000:10:01.0/0000:11:00.0"
    write_files(tmp_path, {"sys/devices/pci0000:10/0000:10:01.0/numa_node": "1"})

    found = locate(tmp_path, two_nodes([PciDevice(GPU, behind=behind)]))

    assert found == Locality(1, "sysfs numa_node of 0000:10:01.0")


def test_a_node_without_cpus_means_its_nearest_with_cpus(tmp_path: Path) -> None:
    """Memory of a GPU or of CXL is a node too; of two as near the lower id is taken."""
    facts = MachineFacts(
        nodes={0: "0-1", 1: "2-3", 4: "", 5: ""},
        distances={4: "40 20 10 30", 5: "20 20 15 10"},
        devices=[PciDevice(GPU, numa_node=4), PciDevice("0000:18:00.0", numa_node=5)],
    )

    assert locate(tmp_path / "a", facts) == Locality(1, "sysfs numa_node 4, nearest with CPUs")
    assert locate(tmp_path / "b", facts, "0000:18:00.0").node == 0


@pytest.mark.parametrize(
    ("device", "nvml", "expected"),
    [
        (PciDevice(GPU), {}, (0, "")),
        (PciDevice(GPU, local_cpulist="4-7"), {}, (2, " by sysfs local_cpulist")),
        (PciDevice(GPU, local_cpulist="2-3"), {}, (0, "")),
        (PciDevice(GPU, behind="pci0000:10/0000:10:01.0/0000:11:00.0"), {}, (2, " by sysfs numa_node of 0000:10:01.0")),
        (PciDevice(GPU), {"cpus": CpuSet({4})}, (2, " by NVML CPU affinity")),
        (PciDevice(GPU), {"nodes": frozenset({2})}, (2, " by NVML memory affinity")),
        (PciDevice(GPU), {"nodes": frozenset({4})}, (0, "")),
        (PciDevice(GPU), {"nodes": frozenset({5})}, (2, " by NVML memory affinity 5, nearest with CPUs")),
        (PciDevice(GPU, local_cpulist="0-1"), {"cpus": CpuSet({4})}, (0, " by sysfs local_cpulist")),
    ],
)  # fmt: skip
def test_of_nodes_as_near_another_source_tells_which(
    tmp_path: Path, device: PciDevice, nvml: dict[str, Any], expected: tuple[int, str]
) -> None:
    """A GPU's own memory is as far from two nodes, of which a source below may name one."""
    facts = MachineFacts(
        online="0-7",
        nodes={0: "0-1", 1: "2-3", 2: "4-7", 4: "", 5: ""},
        distances={4: "20 40 20 10 40", 5: "30 30 20 40 10"},
        devices=[replace(device, numa_node=4)],
    )
    write_files(tmp_path, {"sys/devices/pci0000:10/0000:10:01.0/numa_node": "2"})

    found = locate_device(tmp_path, facts, Device("nvidia", 0, GPU, **nvml))

    node, by = expected
    assert found == Locality(node, f"sysfs numa_node 4, nearest with CPUs{by}")


def test_a_node_without_cpus_and_distances_tells_nothing(tmp_path: Path) -> None:
    """Then the next source is asked."""
    facts = MachineFacts(nodes={0: "0-1", 1: "2-3", 4: ""}, devices=[PciDevice(GPU, numa_node=4)])

    assert locate(tmp_path, facts).node is None


def test_on_a_single_node_there_is_no_other(tmp_path: Path) -> None:
    """As in most virtual machines, where every device says -1."""
    facts = MachineFacts(nodes={0: "0-3"}, devices=[PciDevice(GPU)])

    assert locate(tmp_path, facts) == Locality(0, "single node")


def test_a_single_node_of_ours_is_enough(tmp_path: Path) -> None:
    """What the job may not use can't be its place."""
    found = locate(tmp_path, two_nodes([PciDevice(GPU)], allowed="5-7"))

    assert found == Locality(1, "single node")


def test_cpus_that_no_node_lists_are_not_bound_away(tmp_path: Path) -> None:
    """Where the node of CPU 0 is offline, half of the CPUs belong to no node."""
    facts = MachineFacts(nodes={1: "2-3"}, devices=[PciDevice(GPU)])

    assert locate(tmp_path, facts) == Locality(None, "unknown")


def test_a_gpu_that_sys_does_not_show_is_unknown(tmp_path: Path) -> None:
    """Some sandboxes hide the bus."""
    assert locate(tmp_path, two_nodes(), GPU) == Locality(None, "unknown")


def test_nvml_tells_what_sys_does_not(tmp_path: Path) -> None:
    """Its list of CPUs stands above its list of nodes."""
    device = Device("nvidia", 0, GPU, cpus=CpuSet(range(4, 8)), nodes=frozenset({0}))

    found = locate_device(tmp_path, two_nodes([PciDevice(GPU)]), device)

    assert found == Locality(1, "NVML CPU affinity")


def test_sys_stands_above_nvml(tmp_path: Path) -> None:
    """It is the kernel's own word."""
    device = Device("nvidia", 0, GPU, cpus=CpuSet(range(4, 8)))

    assert locate_device(tmp_path, two_nodes([PciDevice(GPU, numa_node=0)]), device).node == 0


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ({1}, Locality(1, "NVML memory affinity")),
        ({0, 1}, Locality(None, "unknown")),
        ({7}, Locality(None, "unknown")),
        ((), Locality(None, "unknown")),
    ],
    ids=["one", "two", "not-online", "none"],
)
def test_nvml_s_nodes_tell_where_its_cpus_are_all(
    tmp_path: Path, nodes: set[int], expected: Locality
) -> None:
    """All CPUs is its word for not knowing, too."""
    device = Device("nvidia", 0, GPU, cpus=CpuSet(range(8)), nodes=frozenset(nodes))

    assert locate_device(tmp_path, two_nodes([PciDevice(GPU)]), device) == expected


def kfd_machine(*links: dict[int, int]) -> MachineFacts:
    """Return two CPUs, and GPUs with these links to them and to each other."""
    gpus = [KfdNode(f"0000:{at:02x}:00.0", links=weights) for at, weights in enumerate(links, 1)]
    return MachineFacts(nodes={0: "0-1", 8: "2-3", 9: ""}, kfd=[KfdNode(), KfdNode(), *gpus])


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({0: 41, 1: 20}, Locality(8, "KFD io_links")),
        ({0: 20}, Locality(0, "KFD io_links")),
        ({0: 20, 1: 20}, Locality(None, "unknown")),
        ({3: 15}, Locality(None, "unknown")),
        ({}, Locality(None, "unknown")),
    ],
    ids=["nearer", "only", "as-near", "to-a-gpu", "no-link"],
)
def test_kfd_tells_by_the_weight_of_its_links(
    tmp_path: Path, weights: dict[int, int], expected: Locality
) -> None:
    """Its nodes with CPUs are the NUMA nodes with CPUs, in their order."""
    device = Device("amd", 0, "0000:01:00.0", kfd_node=2)

    assert locate_device(tmp_path, kfd_machine(weights, {}), device) == expected


def test_kfd_of_another_number_of_nodes_tells_nothing(tmp_path: Path) -> None:
    """It has its own view of the machine, ours may be a container's."""
    facts = MachineFacts(nodes={0: "0", 1: "1", 2: "2-3"}, kfd=kfd_machine({0: 20}).kfd)

    assert locate_device(tmp_path, facts, Device("amd", 0, "", kfd_node=2)).node is None


def test_a_processor_with_a_gpu_inside_is_its_own_node(tmp_path: Path) -> None:
    """KFD has the CPUs and the GPU in one node."""
    facts = kfd_machine({})
    tree = write_tree(tmp_path, facts)
    inside = (tree / KFD / "1/properties").read_text().replace("simd_count 0", "simd_count 8")
    (tree / KFD / "1/properties").write_text(inside)
    found = Tree(tree)
    processors = read_processors(found, None)
    locator = Locator(found, read_nodes(found, processors.online), processors)

    assert locator.locate(Device("amd", 0, "", kfd_node=1)) == Locality(8, "KFD io_links")
