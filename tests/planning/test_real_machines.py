"""Masks on real machines, from copies of their /sys."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest

from tests.machine_trees import PciDevice, write_device, write_files
from tests.planning.door import (
    BindingOptions,
    CpuSet,
    NumaBinding,
    NumaMemory,
    Tree,
    inspect,
    place,
)
from tests.planning.promises import check_hint, check_room, check_tasks
from tests.plans import job, planned
from tests.real_machines import captured, recommended, tree_at, unpacked

RealMachine = Callable[[str], Path]


def at_node(number: int) -> PciDevice:
    """Return a GPU whose node is known."""
    return PciDevice("", numa_node=number)


def near(cpus: str, mask: str | None = None) -> PciDevice:
    """Return a GPU of which only the local CPUs are known."""
    return PciDevice("", local_cpulist=cpus, local_cpus=mask)


@pytest.mark.parametrize("name", sorted({name for name, *_ in recommended()}))
def test_a_real_machine_of_which_a_job_may_use_a_part(real_machine: RealMachine, name: str) -> None:
    """Binding makes no worker's share worse, and what a remark names helps."""
    whole, choice = inspect(Tree(real_machine(name)), {}, None, "replayed"), Random(name)
    for part in (0.9, 0.5, 0.1):
        some = CpuSet(cpu for cpu in sorted(whole.allowed) if choice.random() < part)
        seen = whole.visible[choice.randrange(len(whole.visible)) :]
        here = msgspec.structs.replace(whole, allowed=some or whole.allowed, visible=seen)
        for workers in (1, len(seen)):
            check_room(here, workers, None)
            for mode in NumaBinding:
                check_hint(here, mode, workers, None)
        check_tasks(here, choice.choice(list(NumaBinding)), NumaMemory.BIND)


@pytest.mark.parametrize("name", captured())
def test_captured_machines_give_cpus_that_exist(real_machine: RealMachine, name: str) -> None:
    """Even in hostile trees, masks contain only CPUs that are online and allowed."""
    here = inspect(tree_at(real_machine(name)), {}, None, "replayed")
    online = CpuSet.union_of(here.cores)

    assert here.allowed <= online
    assert all(node.cpus <= online for node in here.nodes)
    workers = len(here.visible) or 4
    for mode in NumaBinding:
        assert planned(job(numa_binding=mode), here, workers).env["OMP_NUM_THREADS"].isdecimal()
        for found in place(BindingOptions(mode, NumaMemory.BIND), here, workers):
            assert found.cpus is None or (found.cpus and found.cpus <= here.allowed)
            assert set(found.memory.nodes if found.memory else ()) <= {
                node.id for node in here.nodes if node.cpus and node.has_memory
            }


UNKNOWN = ("None", "not bound: the NUMA node of its GPU is unknown; give it with --numa-map")

# What /sys says of a GPU that is put there, and what becomes of it: the source, CPUs and remark.
PUT: list[tuple[str, PciDevice, str, tuple[str, str]]] = [
    ("16amd64-8n2c-cpusets", at_node(2), "sysfs numa_node", ("5", "")),
    ("16amd64-8n2c-cpusets", near("4-5"), "sysfs local_cpulist", ("5", "")),
    ("20s390-2g6s4c", at_node(0), "unknown", ("None", "")),
    ("2pa-pcidomain32bits", near("0-1", mask="1"), "single node", ("0-1", "")),
    ("32em64t-2n8c+dax+nvme+mic+dimms", at_node(1), "sysfs numa_node", ("8-15", "")),
    ("32intel64-2p8co2t+8ve", near("8-15,24-31"), "sysfs local_cpulist", ("8-15,24-31", "")),
    ("8em64t-2s2ca2c-buggynuma", at_node(5), "sysfs numa_node", ("0-7", "")),
    ("8em64t-2s2ca2c-buggynuma", near("0-7"), "unknown", UNKNOWN),
    ("fakeheteromemtiers", at_node(4), "sysfs numa_node 4, nearest with CPUs", ("0-1", "")),
    ("fakeheteromemtiers", at_node(3), "unknown", UNKNOWN),
    ("memorysidecaches", near("0,2,4,6"), "unknown", UNKNOWN),
    (
        "nvidiagpunumanodes",
        at_node(255),
        "sysfs numa_node 255, nearest with CPUs",
        ("0-15", ""),
    ),
    ("nvidiagpunumanodes", near("88-175"), "sysfs local_cpulist", ("88-103", "")),
    ("offline-cpu0-node0", at_node(0), "unknown", UNKNOWN),
    ("offline-cpu0-node0", at_node(1), "sysfs numa_node", ("5,7,9,11,13,15,17,19", "")),
    (
        "offline-cpu0-node0",
        near("1,3,5,7,9,11,13,15,17,19,21,23"),
        "sysfs local_cpulist",
        ("5,7,9,11,13,15,17,19", ""),
    ),
]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> RealMachine:
    """Return a function from the name of a real tree to its root, with all GPUs of PUT on its bus."""

    def write(name: str) -> Path:
        root = unpacked(f"{name}.tar.xz", tmp_path_factory.mktemp("tree"))
        for index, (_, device, _, _) in enumerate(PUT):
            write_device(root, numbered(device, index))
            write_files(root, {f"dev/nvidia{index}": ""})
        return root

    return functools.cache(write)


def numbered(device: PciDevice, index: int) -> PciDevice:
    """Return the device with an address and an id of its own."""
    return replace(device, bdf=f"0042:{index:02x}:00.0", uuid=f"GPU-put-{index:02}", minor=index)


@pytest.mark.parametrize("index", range(len(PUT)), ids=[f"{name}" for name, *_ in PUT])
def test_a_gpu_in_a_real_tree_has_the_node_of_sys(crowded: RealMachine, index: int) -> None:
    """The number may be outdated; a remark says that a place is unknown."""
    name, device, source, expected = PUT[index]
    if f"{name}.tar.xz" not in captured():
        pytest.skip("not at hand")
    environ = {"CUDA_VISIBLE_DEVICES": numbered(device, index).uuid}

    here = inspect(Tree(crowded(name)), environ, None, "replayed")
    (found,) = place(BindingOptions(NumaBinding.NODE), here, 1)

    assert [gpu.node_source for gpu in here.visible] == [source]
    assert (str(found.cpus), found.remark) == expected
