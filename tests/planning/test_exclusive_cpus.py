"""CPUs that only one worker uses, from the tree of a machine; ``nodes/exclusive.txt`` has the rules."""

from pathlib import Path

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.job.options import NumaBinding
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import Tree
from msgspec.structs import replace

from tests.machine_trees import MachineFacts, PciDevice, write_files, write_tree
from tests.plans import machine, masks

EXCLUSIVE = NumaBinding.EXCLUSIVE


def test_gpus_without_an_address_differ_by_uuid() -> None:
    here = machine({0: "0-7"}, [0, 0], pci_gpus=[])
    gpus = tuple(replace(gpu, bdf="") for gpu in here.gpus)

    assert masks(replace(here, gpus=gpus, visible=gpus), EXCLUSIVE, 2) == ["0-3", "4-7"]


def test_container_cpuset_divides_the_node(tmp_path: Path) -> None:
    """Lxcfs hides the other CPUs of the node, so no other job divides its own ones."""
    devices = [
        PciDevice(f"0000:{bus}:00.0", numa_node=0, minor=minor)
        for bus, minor in ((17, None), (18, None), (19, 2), (20, 3))
    ]
    facts = MachineFacts(online="4-7", nodes={0: "0-15"}, packages=(), devices=devices)
    root = write_tree(tmp_path, facts)

    here = inspect(Tree(root), {}, CpuSet(range(4, 8)), "container")

    assert masks(here, EXCLUSIVE, 2) == ["4-5", "6-7"]
    assert str(here.nodes[0].cpus) == "0-15"


@pytest.mark.parametrize(
    ("affinity", "expected"), [("0-3", ["0", "1"]), ("0-1", ["0", "1"]), ("2-3", ["2", "3"])]
)
def test_isolated_cpus_do_not_count_as_cpuset(
    tmp_path: Path, affinity: str, expected: list[str]
) -> None:
    """Two jobs with a GPU each divide those of the node that both may use."""
    devices = [PciDevice(f"0000:{bus}:00.0", numa_node=0) for bus in (17, 18)]
    root = write_tree(tmp_path, MachineFacts(nodes={0: "0-3"}, devices=devices))
    write_files(root, {"sys/devices/system/cpu/isolated": "2-3"})

    for device, cpus in zip("01", expected, strict=True):
        chosen = {"CUDA_VISIBLE_DEVICES": device}
        here = inspect(Tree(root), chosen, CpuSet.parse(affinity), "node7")
        assert masks(here, EXCLUSIVE, 1) == [cpus]
