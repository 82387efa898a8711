"""NUMA nodes, from /sys."""

from pathlib import Path

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.machine.cpus import read_nodes
from clusterrun.machine.tree import Tree

from tests.machine_trees import NODES, MachineFacts, write_files, write_tree

EVERYTHING = CpuSet(range(256))


def cpus_by_node(root: Path, online: CpuSet = EVERYTHING) -> dict[int, str]:
    """Return the CPUs of each node in list form."""
    return {node.id: str(node.cpus) for node in read_nodes(Tree(root), online)}


@pytest.mark.parametrize(
    ("nodes", "files", "expected"),
    [
        # Ids may be sparse, and are sorted by number.
        ({8: "2-3", 0: "0-1", 252: ""}, {}, {0: "0-1", 8: "2-3", 252: ""}),
        # A kernel without NUMA has no directory.
        ({}, {}, {}),
        # The file lists nodes that do not exist.
        ({0: "0-1", 1: "2-3"}, {"possible": "0-31"}, {0: "0-1", 1: "2-3"}),
        # The directory of a node that is not online may still exist.
        ({0: "0-1", 1: "2-3"}, {"online": "1"}, {1: "2-3"}),
        # Old kernels have only the mask.
        ({}, {"node0/cpumap": "00000000,0000000f"}, {0: "0-3"}),
    ],
)
def test_online_nodes_and_their_cpus(
    tmp_path: Path, nodes: dict[int, str], files: dict[str, str], expected: dict[int, str]
) -> None:
    """The nodes are those that are online."""
    write_tree(tmp_path, MachineFacts(nodes=nodes))
    write_files(tmp_path, {f"{NODES}/{name}": text for name, text in files.items()})

    assert cpus_by_node(tmp_path) == expected


def test_offline_cpus_are_excluded(tmp_path: Path) -> None:
    """An outdated list may contain them."""
    write_tree(tmp_path, MachineFacts())

    assert cpus_by_node(tmp_path, CpuSet((0, 2, 3))) == {0: "0", 1: "2-3"}


def test_distances_go_by_online_node(tmp_path: Path) -> None:
    """Column n is the n-th node that is online, not the node with that id."""
    distances = {0: "10 40 80", 8: "40 10 80"}
    write_tree(tmp_path, MachineFacts(nodes={0: "0", 8: "1", 252: ""}, distances=distances))

    first, second, third = read_nodes(Tree(tmp_path), EVERYTHING)

    assert first.distances == {0: 10, 8: 40, 252: 80}
    assert second.distances == {0: 40, 8: 10, 252: 80}
    assert third.distances == {}


def test_distances_with_wrong_column_count_are_ignored(tmp_path: Path) -> None:
    """A row with the wrong number of columns can't be matched."""
    write_tree(tmp_path, MachineFacts(distances={0: "10 20 20", 1: "ten 10"}))

    assert [node.distances for node in read_nodes(Tree(tmp_path), EVERYTHING)] == [{}, {}]


ONE_IS_ALLOWED = "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t1"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, [0, 1, 2]),
        ({f"{NODES}/has_memory": "1"}, [1]),
        # The size is used before the list.
        (
            {
                f"{NODES}/node0/meminfo": "Node 0 MemTotal:  8386704 kB\nNode 0 MemFree: 0 kB",
                f"{NODES}/node1/meminfo": "Node 1 MemTotal: 0 kB",
                f"{NODES}/has_memory": "0-2",
            },
            [0, 2],
        ),
        # The kernel refuses a memory policy with a node that our cpuset forbids.
        ({"proc/self/status": ONE_IS_ALLOWED}, [1]),
    ],
)
def test_nodes_with_usable_memory(
    tmp_path: Path, files: dict[str, str], expected: list[int]
) -> None:
    """Without sizes and the list, each node counts as having memory."""
    write_tree(tmp_path, MachineFacts(nodes={0: "0-1", 1: "2-3", 2: ""}))
    write_files(tmp_path, files)

    found = read_nodes(Tree(tmp_path), EVERYTHING)

    assert [node.id for node in found if node.has_memory] == expected
