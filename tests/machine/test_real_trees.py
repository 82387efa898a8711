"""What is read from captures and trees of /sys of real machines, some edited to be hostile."""

from collections.abc import Callable
from pathlib import Path

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.machine.cpus import read_nodes, read_processors
from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.locality import Locator
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Machine
from clusterrun.machine.tree import Tree

from tests.machine_trees import KFD, MachineFacts, write_tree
from tests.real_machines import WITHOUT_MACHINES, captured, tree_at, unpacked

EVEN_OF_4_TO_20, ODD_OF_4_TO_20 = "4,6,8,10,12,14,16,18,20", "5,7,9,11,13,15,17,19"


def of_four(first: int) -> str:
    return ",".join(map(str, range(first, 80, 4)))


# What a reader gets wrong that takes any file at its word is what each of them is here for.
READ: dict[str, dict[str, object]] = {
    # CPU 4 is offline, and still in its node's list; the cpuset's own files are not for us to read.
    "16amd64-8n2c-cpusets": {
        "allowed": "0-3,5-15",
        "nodes": {
            0: "0-1",
            1: "2-3",
            2: "5",
            3: "6-7",
            4: "8-9",
            5: "10-11",
            6: "12-13",
            7: "14-15",
        },
        "packages": ["0-1", "2-3", "5", "6-7", "8-9", "10-11", "12-13", "14-15"],
        "cores": 15,
        "caches": [],
    },
    # No NUMA at all; more CPUs are possible than there are.
    "20s390-2g6s4c": {
        "allowed": "0-19",
        "nodes": {},
        "packages": [],
        "cores": 20,
        "caches": [],
    },
    # A virtual machine: each device is on node -1, and masks are cut short where lists are not.
    "2pa-pcidomain32bits": {
        "allowed": "0-1",
        "nodes": {0: "0-1"},
        "packages": ["0", "1"],
        "cores": 2,
        "caches": [],
        "devices": {"single node": 9},
    },
    # Bridges and chipset know no node; a server's graphics and a coprocessor are no GPUs.
    "32em64t-2n8c+dax+nvme+mic+dimms": {
        "allowed": "0-15",
        "nodes": {0: "0-7", 1: "8-15"},
        "packages": ["0-7", "8-15"],
        "cores": 16,
        "caches": ["0-7", "8-15"],
        "devices": {"unknown": 92, "sysfs numa_node": 44, "sysfs local_cpulist": 1},
    },
    # Eight vector engines, which are no GPUs either, all on one node.
    "32intel64-2p8co2t+8ve": {
        "allowed": "0-31",
        "nodes": {0: "0-7,16-23", 1: "8-15,24-31"},
        "packages": ["0-7,16-23", "8-15,24-31"],
        "cores": 16,
        "caches": ["0-7,16-23", "8-15,24-31"],
        "devices": {"sysfs numa_node": 28},
    },
    # Eight nodes, and each has all CPUs.
    "8em64t-2s2ca2c-buggynuma": {
        "allowed": "0-7",
        "nodes": dict.fromkeys(range(8), "0-7"),
        "packages": ["0,2,4,6", "1,3,5,7"],
        "cores": 8,
        "caches": [],
    },
    # Sparse ids, nodes of memory alone, and more nodes possible than there are.
    "fakeheteromemtiers": {
        "allowed": "0-5",
        "nodes": {0: "0-1", 1: "2-3", 2: "4-5", 4: "", 6: "", 8: "", 9: ""},
        "packages": ["0-5"],
        "cores": 6,
        "caches": ["0-5"],
    },
    # The numbers of CPUs go round the nodes, and L3 caches span two of them.
    "memorysidecaches": {
        "allowed": "0-79",
        "nodes": {node: of_four(node) for node in range(4)},
        "packages": [str(CpuSet(range(first, 80, 2))) for first in range(2)],
        "cores": 40,
        "caches": [str(CpuSet(range(first, 80, 2))) for first in range(2)],
    },
    # Nodes list CPUs that are offline; each GPU's memory is a node, and no GPU has a numa_node.
    "nvidiagpunumanodes": {
        "allowed": "0-15,88-103",
        "nodes": {0: "0-15", 8: "88-103"} | dict.fromkeys(range(250, 256), ""),
        "packages": ["0-15", "88-103"],
        "cores": 8,
        "caches": ["0-7", "8-15", "88-95", "96-103"],
        "devices": {"sysfs local_cpus": 6},
        "gpus": [0, 0, 0, 8, 8, 8],
    },
    # A virtual machine whose GPU is on node -1 in /sys, and on node 0 for NVML.
    "one_h200": {
        "allowed": "0-15",
        "nodes": {0: "0-15"},
        "packages": ["0-15"],
        "cores": 16,
        "caches": ["0-15"],
        "gpus": [0],
    },
    # CPUs 0 to 3 and node 0 are offline, the node's list and its distances are stale.
    "offline-cpu0-node0": {
        "allowed": "4-20",
        "nodes": {1: ODD_OF_4_TO_20},
        "packages": [EVEN_OF_4_TO_20, ODD_OF_4_TO_20],
        "cores": 17,
        "caches": [EVEN_OF_4_TO_20, ODD_OF_4_TO_20],
    },
}


def described(tree: Tree, found: Machine) -> dict[str, object]:
    """Return the facts that were read, in the form of READ."""
    gpus = [gpu.numa_node for gpu in found.gpus]
    devices = placed_devices(tree)
    return {
        "allowed": str(found.allowed),
        "nodes": {node.id: str(node.cpus) for node in found.nodes},
        "packages": [str(package) for package in found.packages],
        "cores": len(found.cores),
        "caches": [str(cache) for cache in found.caches],
        **({"devices": devices} if devices else {}),
        **({"gpus": gpus} if gpus else {}),
    }


def placed_devices(tree: Tree) -> dict[str, int]:
    """Return for how many devices each source has the NUMA node, as if each device were a GPU."""
    processors = read_processors(tree, None)
    locator = Locator(tree, read_nodes(tree, processors.online), processors)
    count: dict[str, int] = {}
    for bdf in pci.device_directories(tree):
        source = locator.locate_address(bdf).source
        count[source] = count.get(source, 0) + 1
    return count


@pytest.mark.parametrize("name", [name for name in captured() if not name.startswith("kfd")])
def test_recorded_machines_are_read_correctly(
    real_machine: Callable[[str], Path], name: str
) -> None:
    """Facts may be missing, outdated or inconsistent."""
    tree = tree_at(real_machine(name))

    found = inspect(tree, {}, None, "copied")

    assert described(tree, found) == READ[name.partition(".")[0]]
    assert found.cores_known
    assert found.visible_warning == ""
    assert CpuSet.union_of(found.cores) == found.allowed


@pytest.mark.skipif("kfd-mi210-8gpu.tar.xz" not in captured(), reason=WITHOUT_MACHINES)
def test_kfd_orders_eight_gpus(tmp_path: Path) -> None:
    """KFD is the only source for the nodes of these GPUs."""
    root = tmp_path / "machine"
    copied = unpacked("kfd-mi210-8gpu.tar.xz", _made(tmp_path / "copied"))
    write_tree(
        root,
        MachineFacts(online="0-127", nodes={0: "0-63", 1: "64-127"}, packages=("0-63", "64-127")),
    )
    _made((root / KFD).parent)
    (copied / "nodes").rename(root / KFD)

    found = inspect(
        Tree(root), {"ROCR_VISIBLE_DEVICES": "7,0", "HIP_VISIBLE_DEVICES": "1"}, None, "amd"
    )

    assert [(gpu.index, gpu.bdf, gpu.numa_node) for gpu in found.gpus] == [
        (0, "0000:63:00.0", 0),
        (1, "0000:43:00.0", 0),
        (2, "0000:03:00.0", 0),
        (3, "0000:26:00.0", 0),
        (4, "0000:e3:00.0", 1),
        (5, "0000:c3:00.0", 1),
        (6, "0000:83:00.0", 1),
        (7, "0000:a3:00.0", 1),
    ]
    assert {(gpu.vendor, gpu.model, gpu.node_source) for gpu in found.gpus} == {
        ("amd", "gfx90a", "KFD io_links")
    }
    assert found.gpus[0].uuid == "GPU-1901ead3a2ecd4a6"
    assert [gpu.bdf for gpu in found.pci_gpus] == sorted(gpu.bdf for gpu in found.gpus)
    assert found.visible == found.gpus[:1]
    assert found.visible_origin == "ROCR_VISIBLE_DEVICES=7,0 HIP_VISIBLE_DEVICES=1"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
