"""CPUs, cores, packages and caches, from /sys."""

from pathlib import Path

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.machine.cpus import read_processors
from clusterrun.machine.tree import Tree

from tests.machine_trees import CPUS, MachineFacts, write_files, write_tree


def lists(sets: tuple[CpuSet, ...]) -> list[str]:
    """Return sets of CPUs in list form."""
    return [str(cpus) for cpus in sets]


def test_one_cpu_lists_its_whole_package(tmp_path: Path) -> None:
    """The files of most cores need not be read."""
    write_tree(tmp_path, MachineFacts(packages=("0,2", "1,3")))
    for cpu in range(2):
        write_files(
            tmp_path, {f"{CPUS}/cpu{cpu}/topology/core_siblings_list": f"{cpu},{cpu + 2},{cpu + 4}"}
        )
    for cpu in range(2, 4):
        (tmp_path / f"{CPUS}/cpu{cpu}/topology/physical_package_id").unlink()

    found = read_processors(Tree(tmp_path), None)

    assert lists(found.packages) == ["0,2", "1,3"]


SIBLINGS = ("thread_siblings_list", "thread_siblings", "core_cpus_list", "core_cpus")
AROUND = ("core_siblings_list", "core_siblings", "package_cpus_list", "package_cpus")


@pytest.mark.parametrize(("siblings", "around"), [*zip(SIBLINGS, AROUND, strict=True)])
def test_any_topology_file_name_is_enough(tmp_path: Path, siblings: str, around: str) -> None:
    """Kernels before 5.3 have the first two only; the list was added to the mask in 2.6.26."""
    for cpu in range(4):
        first = cpu // 2 * 2
        core = f"{first}-{first + 1}" if siblings.endswith("_list") else f"{3 << first:08x}"
        package = "0-3" if around.endswith("_list") else "0000000f"
        topology = f"{CPUS}/cpu{cpu}/topology"
        write_files(tmp_path, {f"{topology}/{siblings}": core, f"{topology}/{around}": package})
    # The package of the other CPUs is not asked for.
    write_files(tmp_path, {f"{CPUS}/cpu0/topology/physical_package_id": "0"})
    write_files(tmp_path, {f"{CPUS}/online": "0-3"})

    found = read_processors(Tree(tmp_path), None)

    assert lists(found.cores) == ["0-1", "2-3"]
    assert found.cores_known
    assert lists(found.packages) == ["0-3"]
