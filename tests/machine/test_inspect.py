"""A whole machine: invented, real or captured."""

import os
from pathlib import Path

from clusterrun.cpuset import CpuSet
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import PciGpu
from clusterrun.machine.tree import Tree

from tests.machine_trees import CPUS, PciDevice, two_nodes, write_files, write_tree


def test_inspect_fills_every_field(tmp_path: Path) -> None:
    """Every field comes from the tree, the environment, or the arguments."""
    gpus = [
        PciDevice("0000:17:00.0", numa_node=0, uuid="GPU-a", minor=0),
        PciDevice("0000:99:00.0", numa_node=1, uuid="GPU-b", minor=1),
    ]
    write_tree(tmp_path, two_nodes(gpus))

    found = inspect(Tree(tmp_path), {"CUDA_VISIBLE_DEVICES": "GPU-b"}, CpuSet(range(2, 8)), "node7")

    assert found.host == "node7"
    assert str(found.allowed) == "2-7"
    assert [(node.id, str(node.cpus)) for node in found.nodes] == [(0, "0-3"), (1, "4-7")]
    assert [str(package) for package in found.packages] == ["0-3", "4-7"]
    assert len(found.cores) == 8
    assert [(gpu.index, gpu.uuid, gpu.numa_node) for gpu in found.gpus] == [
        (0, "GPU-a", 0),
        (1, "GPU-b", 1),
    ]
    assert found.visible == found.gpus[1:]
    assert found.visible_origin == "CUDA_VISIBLE_DEVICES=GPU-b"
    assert found.cpu_quota is None


def test_empty_tree_gives_unknown_machine(tmp_path: Path) -> None:
    """An empty tree is not an error."""
    found = inspect(Tree(tmp_path), {}, None, "nowhere")

    assert found.allowed == CpuSet()
    assert (found.nodes, found.packages, found.cores, found.gpus) == ((), (), (), ())
    assert found.visible_origin == ""


def test_this_machine_matches_the_kernel() -> None:
    """The same code reads the files of this machine."""
    ours = CpuSet(os.sched_getaffinity(0))

    found = inspect(Tree(Path("/")), {"CUDA_VISIBLE_DEVICES": ""}, ours, "here")

    assert found.allowed == ours
    assert ours <= CpuSet.union_of(found.cores)
    assert found.visible == ()


def test_malformed_files_are_ignored(tmp_path: Path) -> None:
    """A user may have edited a captured tree."""
    write_tree(tmp_path, two_nodes([PciDevice("0000:17:00.0", numa_node=1)]))
    write_files(
        tmp_path,
        {
            f"{CPUS}/cpu0/topology/thread_siblings_list": "x",
            f"{CPUS}/cpu1/topology/physical_package_id": "",
            "sys/bus/pci/devices/0000:17:00.0/numa_node": "one",
            "proc/self/status": "Cpus_allowed_list:\tmany",
        },
    )

    found = inspect(Tree(tmp_path), {}, None, "odd")

    assert str(found.allowed) == "0-7"
    assert str(found.cores[0]) == "0"
    assert [str(package) for package in found.packages] == ["0-3", "4-7"]
    assert found.gpus[0].numa_node is None


def test_hidden_gpus_have_addresses_and_numa_nodes(tmp_path: Path) -> None:
    """Each has its node; the order is that of the bus."""
    gpus = [
        PciDevice("0000:99:00.0", numa_node=1, minor=0),
        PciDevice("0000:17:00.0", numa_node=0, minor=1),
    ]
    write_files(tmp_path, {"dev/nvidia0": ""})

    found = inspect(Tree(write_tree(tmp_path, two_nodes(gpus))), {}, None, "container")

    assert [gpu.bdf for gpu in found.gpus] == ["0000:99:00.0"]
    assert found.pci_gpus == (PciGpu("0000:17:00.0", 0), PciGpu("0000:99:00.0", 1))
