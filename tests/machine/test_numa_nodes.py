"""NUMA nodes."""

from pathlib import Path

from clusterrun.domain.cpuset import CpuSet
from clusterrun.machine.numa_nodes import read_nodes
from clusterrun.machine.tree import Tree

from tests.machine_trees import NODES, MachineFacts, write_files, write_tree

EVERYTHING = CpuSet(range(256))


def cpus_by_node(root: Path, online: CpuSet = EVERYTHING) -> dict[int, str]:
    """Return the CPUs of each node as people write them."""
    return {node.id: str(node.cpus) for node in read_nodes(Tree(root), online)}


def test_node_ids_are_labels(tmp_path: Path) -> None:
    """They may be sparse, and sort by number."""
    write_tree(tmp_path, MachineFacts(nodes={8: "2-3", 0: "0-1", 252: ""}))

    assert cpus_by_node(tmp_path) == {0: "0-1", 8: "2-3", 252: ""}


def test_a_kernel_without_numa_has_no_node(tmp_path: Path) -> None:
    """There is no directory, and that is no error."""
    write_tree(tmp_path, MachineFacts(nodes={}))

    assert cpus_by_node(tmp_path) == {}


def test_possible_nodes_are_not_nodes(tmp_path: Path) -> None:
    """The list of what might be plugged in is never read."""
    write_tree(tmp_path, MachineFacts())
    write_files(tmp_path, {f"{NODES}/possible": "0-31"})

    assert list(cpus_by_node(tmp_path)) == [0, 1]


def test_a_node_that_is_not_online_is_none(tmp_path: Path) -> None:
    """Its directory may stay."""
    write_tree(tmp_path, MachineFacts())
    write_files(tmp_path, {f"{NODES}/online": "1"})

    assert cpus_by_node(tmp_path) == {1: "2-3"}


def test_a_mask_does_where_there_is_no_list(tmp_path: Path) -> None:
    """Old kernels have only cpumap."""
    write_files(tmp_path, {f"{NODES}/node0/cpumap": "00000000,0000000f"})

    assert cpus_by_node(tmp_path) == {0: "0-3"}


def test_cpus_that_are_offline_are_left_out(tmp_path: Path) -> None:
    """A stale list may name them."""
    write_tree(tmp_path, MachineFacts())

    assert cpus_by_node(tmp_path, CpuSet((0, 2, 3))) == {0: "0", 1: "2-3"}


def test_distances_go_by_online_node(tmp_path: Path) -> None:
    """The n-th column is the n-th node that is online, whatever its id."""
    distances = {0: "10 40 80", 8: "40 10 80"}
    write_tree(tmp_path, MachineFacts(nodes={0: "0", 8: "1", 252: ""}, distances=distances))

    first, second, third = read_nodes(Tree(tmp_path), EVERYTHING)

    assert first.distances == {0: 10, 8: 40, 252: 80}
    assert second.distances == {0: 40, 8: 10, 252: 80}
    assert third.distances == {}


def test_distances_that_fit_no_node_are_not_known(tmp_path: Path) -> None:
    """A row with another number of columns can't be matched."""
    write_tree(tmp_path, MachineFacts(distances={0: "10 20 20", 1: "ten 10"}))

    assert [node.distances for node in read_nodes(Tree(tmp_path), EVERYTHING)] == [{}, {}]


def with_memory(root: Path) -> list[int]:
    """Return the nodes that memory may be had from."""
    return [node.id for node in read_nodes(Tree(root), EVERYTHING) if node.has_memory]


def test_memory_is_what_a_node_says_it_has(tmp_path: Path) -> None:
    """The sum for the node stands above the list of nodes that have any."""
    write_tree(tmp_path, MachineFacts(nodes={0: "0-1", 1: "2-3", 2: ""}))
    meminfo = {0: "Node 0 MemTotal:  8386704 kB\nNode 0 MemFree: 0 kB", 1: "Node 1 MemTotal: 0 kB"}
    write_files(
        tmp_path,
        {f"{NODES}/node{number}/meminfo": text for number, text in meminfo.items()}
        | {f"{NODES}/has_memory": "0-2"},
    )

    assert with_memory(tmp_path) == [0, 2]


def test_the_list_of_nodes_with_memory_does_without_sums(tmp_path: Path) -> None:
    """And without both, each is taken to have some."""
    write_tree(tmp_path, MachineFacts())
    assert with_memory(tmp_path) == [0, 1]

    write_files(tmp_path, {f"{NODES}/has_memory": "1"})

    assert with_memory(tmp_path) == [1]


def test_memory_that_our_cpuset_forbids_is_none_of_ours(tmp_path: Path) -> None:
    """The kernel refuses a policy for it."""
    write_tree(tmp_path, MachineFacts())
    write_files(tmp_path, {"proc/self/status": "Cpus_allowed_list:\t0-3\nMems_allowed_list:\t1"})

    assert with_memory(tmp_path) == [1]
