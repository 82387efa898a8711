"""The CPUs and the memory that each worker is bound to."""

from collections import Counter
from collections.abc import Sequence

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.job.options import NumaBinding, NumaMemory
from clusterrun.machine.machine import Machine
from clusterrun.planning.plan import MemoryPolicy
from msgspec.structs import replace

from tests.plans import BindingOptions, bind, machine, masks

NODE, NEAR, NONE = NumaBinding.NODE, NumaBinding.NEAR, NumaBinding.NONE
SOCKET = NumaBinding.SOCKET
TWO = {0: "0-3", 1: "4-7"}
THREE = {0: "0-3", 1: "4-7", 2: "8-11"}
# A package of four sub-NUMA clusters, of which 1 and 2 have GPUs.
CLUSTERS = {0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}
FAR_FROM_1 = {0: {0: 10, 1: 12, 2: 11, 3: 12}, 3: {0: 12, 1: 12, 2: 11, 3: 10}}
SIBLINGS = machine(
    {0: "0-1,6-7", 1: "2-3,8-9", 2: "4-5,10-11"},
    [0, 1],
    cores=[f"{cpu},{cpu + 6}" for cpu in range(6)],
)
ONE_CORE_LEFT = machine(
    {0: "0-3", 1: "4-5"},
    [0, 1, 1],
    packages=["0-3", "4-5"],
    cores=["0", "1", "2", "3", "4-5"],
)
ONE_LEFT = machine(TWO, [0, 1, 1], packages=["0-3", "4-7"], allowed="0-4")
"""A job that may use one CPU at the node of two of its GPUs."""
MAPPED = replace(
    ONE_LEFT, visible=tuple(replace(gpu, mapped_cpus=CpuSet((4,))) for gpu in ONE_LEFT.visible)
)
"""The user has given its only CPU to all GPUs."""

BOTH = machine(TWO, [0, 1])
MAPPED_AWAY = replace(
    BOTH,
    visible=(
        BOTH.visible[0],
        replace(BOTH.visible[1], numa_node=None, mapped_cpus=CpuSet((0,))),
    ),
)


def warnings(here: Machine, workers: int) -> list[str]:
    return [placement.warning for placement in bind(BindingOptions(NODE), here, workers)]


def test_a_worker_is_bound_to_the_node_of_its_gpu() -> None:
    """Workers have the order of the GPUs, not of the nodes."""
    found = bind(BindingOptions(NODE), machine(TWO, [1, 0]), 2)

    assert [str(placement.cpus) for placement in found] == ["4-7", "0-3"]
    assert [placement.numa_nodes for placement in found] == [(1,), (0,)]
    assert [gpu.index for placement in found for gpu in placement.gpus] == [0, 1]
    assert [placement.warning for placement in found] == ["", ""]


@pytest.mark.parametrize(
    ("mode", "here", "expected"),
    [
        # CUDA_VISIBLE_DEVICES=3,0 gives local rank 0 the last GPU.
        (NODE, machine(TWO, [0, 0, 1, 1], visible=[3, 0]), ["4-7", "0-3"]),
        # A scheduler's cpuset is never widened.
        (NODE, machine(TWO, [0, 1], allowed="2-5"), ["2-3", "4-5"]),
        # Even CPUs are on one node and odd CPUs on the other.
        (NODE, machine({0: "0,2,4,6", 1: "1,3,5,7"}, [1]), ["1,3,5,7"]),
        # Without GPUs: four CPUs of two cores count as two CPUs of two cores.
        (NODE, machine({0: "0-3", 1: "4-5"}, cores=["0-1", "2-3", "4", "5"]), ["0-3", "4-5"]),
        # Without GPUs: memory is a node too, and a cpuset may hold one node only.
        (NODE, machine({0: "0-3", 1: "4-7", 2: ""}, allowed="4-5"), ["4-5", "4-5"]),
        # Without GPUs: binding would take away the CPUs that no node lists.
        (NODE, machine({0: "0-3"}, allowed="0-5"), [None, None]),
        # The package of the GPU's node, whichever GPUs are local to its other nodes.
        (SOCKET, machine(CLUSTERS, [1, 2], packages=["0-3", "4-7"], allowed="1-7"), ["1-3", "4-7"]),
        # Nodes that are idle are added to others by near only.
        (NODE, machine(CLUSTERS, [1, 2]), ["2-3", "4-5"]),
        (NEAR, machine(CLUSTERS, [1, 2]), ["0-3", "4-7"]),
        (NumaBinding.AUTO, machine(CLUSTERS, [1, 2]), ["0-3", "4-7"]),
        # Both idle nodes are nearest to node 2.
        (NEAR, machine(CLUSTERS, [1, 2], distances=FAR_FROM_1), ["2-3", "0-1,4-7"]),
        # A node with two workers has fewer CPUs for each than one of the same size with one.
        (NEAR, machine(CLUSTERS, [1, 2, 2]), ["2-3,6-7", "0-1,4-5", "0-1,4-5"]),
        # The memory of the other package is far.
        (NEAR, machine(TWO, [0], packages=["0-3", "4-7"]), ["0-3"]),
        # The packages of these CPUs are unknown.
        (NEAR, machine(CLUSTERS, [1, 2], packages=["9"]), ["2-3", "4-5"]),
        # Broken firmware tables list all CPUs for each node.
        (NEAR, machine(dict.fromkeys(range(4), "0-7"), [0, 3]), ["0-7", "0-7"]),
        # Another job may use the hidden GPU and its node, and has the idle node beside it.
        (NEAR, machine(CLUSTERS, [1, 2], visible=[0]), ["0-3"]),
        (NEAR, machine(CLUSTERS, [1, 2], visible=[1]), ["4-7"]),
        (NEAR, machine(CLUSTERS, [1, 2, 2], visible=[1]), ["0-1,4-5"]),
        # The bus shows the second GPU, which the user has mapped elsewhere, at a node that is idle.
        (NEAR, MAPPED_AWAY, ["0-7"]),
        # A cpuset has divided that node: no other job may use this part.
        (NEAR, machine(CLUSTERS, [1], pci_gpus=[1, 2], allowed="0-4,6-7"), ["0-4,6-7"]),
        # Another job in the same cpuset may use the GPU that this one was not to see.
        (NEAR, machine(CLUSTERS, [1, 2], visible=[0], allowed="0-4,6-7"), ["0-3"]),
        (NEAR, machine(CLUSTERS, [1, 2], visible=[1], allowed="0-4,6-7"), ["4,6-7"]),
        # Too few idle nodes: the cores of one are divided among the nearest nodes.
        (NEAR, machine(THREE, [0, 1]), ["0-3,8-9", "4-7,10-11"]),
        (NEAR, machine(THREE, [2, 1]), ["2-3,8-11", "0-1,4-7"]),
        # Three workers with four CPUs each, for which the first node needs none of the third.
        (NEAR, machine({0: "0-7", 1: "8-9", 2: "10-11"}, [0, 0, 1]), ["0-7", "0-7", "8-11"]),
        (NEAR, machine(THREE, [0, 0, 1]), ["0-3,8-11", "0-3,8-11", "4-7"]),
        (
            NEAR,
            machine({0: "0-1", 1: "2-3", 2: "4-5", 3: "6-8"}, [0, 1, 2]),
            ["0-1,6", "2-3,7", "4-5,8"],
        ),
        # Five clusters: two idle ones for three.
        (
            NEAR,
            machine({0: "0-2", 1: "3-5", 2: "6-8", 3: "9-11", 4: "12-14"}, [0, 2, 4]),
            ["0-4", "5-9", "10-14"],
        ),
        # Siblings stay together when the cores of an idle node are divided.
        (NEAR, SIBLINGS, ["0-1,4,6-7,10", "2-3,5,8-9,11"]),
        # Two CPUs of one core are not enough for two workers: no worker is bound.
        (NEAR, ONE_CORE_LEFT, [None, None, None]),
        # Another node of the package has enough cores for all.
        (
            NEAR,
            machine({0: "0", 1: "1-3", 2: "4-7"}, [0, 0, 1, 2], packages=["0-3", "4-7"]),
            ["0-3", "0-3", "0-3", "4-7"],
        ),
        # A part of an idle node stays that part, whichever cores are kept for the system.
        (NEAR, machine(THREE, [0, 1], allowed="2-11"), ["2-3,8-9", "4-7,10-11"]),
        # So does a node's last core.
        (NEAR, machine(CLUSTERS, [1, 2], allowed="1,3-7"), ["1,3", "4-7"]),
    ],
)
def test_masks(mode: NumaBinding, here: Machine, expected: list[str | None]) -> None:
    """A worker is bound to allowed CPUs near its GPU, in the order of the visible GPUs."""
    assert masks(here, mode, len(expected)) == expected


@pytest.mark.parametrize(
    ("mode", "here", "expected", "why"),
    [
        (
            NODE,
            machine({0: "0-15", 1: "16-31"}, [0, 1], allowed="0-15"),
            ["0-15", None],
            "not bound: GPU 1 is local to NUMA node 1, but this job may use CPUs 0-15 only",
        ),
        # Node 0 is not taken instead.
        (
            NODE,
            machine(TWO, [None, 1]),
            [None, "4-7"],
            "not bound: the NUMA node of its GPU is unknown; give it with --numa-map",
        ),
        # The kernel shows no node to bind to: nothing to warning.
        (NODE, machine({}, [None], allowed="0-3"), [None], ""),
        # Which part of the node is near which worker's GPU is unknown.
        (
            NumaBinding.EXCLUSIVE,
            machine({0: "0-7"}, [0]),
            [None, None],
            "not bound: 2 workers for 1 GPU",
        ),
        # The user has set these modes, and has mapped all GPUs to one CPU.
        *(
            (
                mode,
                ONE_LEFT,
                ["0-3", "4", "4"],
                "2 workers share 1 core (CPUs 4); without binding each would have 1.7",
            )
            for mode in (NODE, SOCKET)
        ),
        (
            NEAR,
            MAPPED,
            ["4", "4", "4"],
            "3 workers share 1 core (CPUs 4); without binding each would have 1.7",
        ),
        # A worker of others may need the only core.
        (
            NumaBinding.AUTO,
            machine({0: "0", 1: "1-9"}, [0, 0], packages=["0", "1-9"], visible=[0]),
            [None],
            (
                "not bound: 2 workers would share 1 core (CPUs 0); without binding each has 5"
                " (a GPU of others counts as a worker)"
            ),
        ),
        # Others that share too few cores elsewhere are no reason.
        (
            NumaBinding.AUTO,
            machine({0: "0", 1: "1-9"}, [0, 0, 1], packages=["0", "1-9"], visible=[2]),
            ["1-9"],
            "",
        ),
        # All workers are bound by one rule.
        (
            NumaBinding.AUTO,
            machine({0: "0-15", 1: "16-31"}, [0, 1], packages=["0-15", "16-31"], allowed="0-15"),
            [None, None],
            "not bound: a GPU is local to NUMA node 1, but this job may use CPUs 0-15 only",
        ),
        (
            NumaBinding.AUTO,
            machine({0: "0-3", 1: "4-7", 2: "8-9"}, [0, 1, 2], allowed="8-9"),
            ["8-9", "8-9", "8-9"],
            (
                "bound to its socket, not its NUMA node:"
                " GPUs are local to NUMA nodes 0,1, but this job may use CPUs 8-9 only"
            ),
        ),
        (
            NumaBinding.AUTO,
            machine({0: "0", 1: "1-3", 2: "4-7"}, [0, 0, 1, 2], packages=["0-3", "4-7"]),
            ["0-3", "0-3", "0-3", "4-7"],
            (
                "bound to its socket, not its NUMA node:"
                " 2 workers would share 1 core (CPUs 0); without binding each has 2"
            ),
        ),
        # CPUs from --numa-map stay, also where they are not allowed.
        (
            NumaBinding.AUTO,
            replace(
                ONE_LEFT,
                visible=(
                    *ONE_LEFT.visible[:2],
                    replace(ONE_LEFT.visible[2], mapped_cpus=CpuSet((3,))),
                ),
            ),
            ["0-3", "4", "3"],
            "",
        ),
        # Without GPUs: one core of two would have two workers.
        (
            NumaBinding.AUTO,
            machine({0: "0", 1: "1"}, packages=["0", "1"]),
            [None, None, None],
            "not bound: 2 workers would share 1 core (CPUs 0); without binding each has 0.7",
        ),
        (
            NODE,
            machine({0: "0", 1: "1"}, packages=["0", "1"]),
            ["0", "0", "1"],
            "2 workers share 1 core (CPUs 0); without binding each would have 0.7",
        ),
        (
            NumaBinding.AUTO,
            machine({0: "0", 1: "1"}, packages=["0", "1"]),
            ["0"] * 2 + ["1"] * 2,
            "",
        ),
        # With the workers of others everything is full; without them it is not.
        (
            NumaBinding.AUTO,
            machine({0: "0", 1: "1"}, [0, 0, 1, 1], packages=["0", "1"], visible=[0, 1]),
            [None, None],
            "not bound: 2 workers would share 1 core (CPUs 0); without binding each has 1",
        ),
        # A hidden GPU's CPUs are left to others, unless a cpuset has divided the node.
        (NEAR, machine(TWO, [0, 1], visible=[0], allowed="0-7"), ["0-3"], ""),
        (NEAR, machine(TWO, [0, 1], visible=[0], allowed="0-6"), ["0-3"], ""),
        (NEAR, machine(TWO, [0], pci_gpus=[0, 1], allowed="0-5"), ["0-5"], ""),
        (NEAR, machine(TWO, [0, 1], visible=[0], allowed="0-3"), ["0-3"], ""),
        # All cores are equally full.
        (
            NEAR,
            machine(TWO, [0] * 8 + [1] * 8, packages=["0-3", "4-7"]),
            ["0-3"] * 8 + ["4-7"] * 8,
            "",
        ),
    ],
)
def test_warnings(mode: NumaBinding, here: Machine, expected: list[str | None], why: str) -> None:
    """A worker that is not bound, or poorly, has the reason; others have no warning."""
    found = bind(BindingOptions(mode), here, len(expected))

    assert [it.cpus and str(it.cpus) for it in found] == expected
    assert {it.warning for it in found} - {""} == {why} - {""}
    if why.startswith("not bound"):
        assert all(bool(it.warning) is (it.cpus is None) for it in found)


def test_mode_none_keeps_the_gpus() -> None:
    """The user has set this mode, so there is no warning."""
    (only,) = bind(BindingOptions(NONE), machine(TWO, [1]), 1)

    assert (only.cpus, only.numa_nodes, only.warning) == (None, (), "")
    assert only.gpus


def test_more_workers_than_gpus_are_not_bound() -> None:
    """Only the script knows which worker uses which GPU."""
    found = bind(BindingOptions(NODE), machine(TWO, [0, 1]), 4)

    assert [placement.cpus for placement in found] == [None] * 4
    assert [placement.gpus for placement in found] == [()] * 4
    assert found[0].warning == "not bound: 4 workers for 2 GPUs"


@pytest.mark.parametrize("mode", [NODE, NumaBinding.AUTO, NumaBinding.NEAR, NumaBinding.SOCKET])
def test_more_workers_than_gpus_on_a_single_node(mode: NumaBinding) -> None:
    """Whichever GPU a worker uses, it is near: no warning, and the memory policy of one per GPU."""
    here = machine({0: "0-7", 1: "8-15"}, [0], allowed="0-5")

    found = bind(BindingOptions(mode, NumaMemory.BIND, gpus_per_worker=0), here, 2)

    assert [(str(it.cpus), it.numa_nodes, it.warning) for it in found] == [("0-5", (0,), "")] * 2
    assert [it.memory and it.memory.nodes for it in found] == [(0,)] * 2


@pytest.mark.parametrize("workers", range(1, 9))
def test_fewer_workers_than_gpus_have_the_first_ones(workers: int) -> None:
    """Rank r uses visible[r], as every script does that calls set_device(LOCAL_RANK)."""
    here = machine(TWO, [0, 1, 1, 0, 0, 0, 1, 1], visible=[7, 6, 5, 4, 3, 2, 1, 0])

    found = bind(BindingOptions(NODE), here, workers)

    assert [gpu.index for each in found for gpu in each.gpus] == [7, 6, 5, 4, 3, 2, 1, 0][:workers]
    nodes = [1, 1, 0, 0, 0, 1, 1, 0][:workers]
    assert [str(each.cpus) for each in found] == [TWO[node] for node in nodes]
    assert {each.warning for each in found} == {""}


@pytest.mark.parametrize(
    ("allowed", "workers", "expected"),
    [
        # Workers are bound if there are at least as many as nodes.
        ("0-7", 1, {None: 1}),
        ("0-7", 2, {"0-3": 1, "4-7": 1}),
        ("0-7", 5, {"0-3": 3, "4-7": 2}),
        ("0-7", 16, {"0-3": 8, "4-7": 8}),
        # Of two nodes the reserved cores are missing: one worker each all the same.
        ("1-7", 2, {"1-3": 1, "4-7": 1}),
        # A node of which the job may use one CPU does not get half of the workers.
        ("0-4", 4, {"0-3": 4}),
        ("0-4", 5, {"0-3": 4, "4": 1}),
        ("0-2,4", 4, {"0-2": 3, "4": 1}),
        ("0-5", 3, {"0-3": 2, "4-5": 1}),
    ],
)
def test_without_gpus_workers_spread_by_the_cores_that_are_allowed(
    allowed: str, workers: int, expected: dict[str | None, int]
) -> None:
    """They are in blocks, in the order of the nodes."""
    here = machine(TWO, allowed=allowed)

    assert masks(here, NODE, workers) == [*Counter(expected).elements()]
    assert set(warnings(here, workers)) == {""}


@pytest.mark.parametrize("mode", [NumaBinding.AUTO, NEAR])
def test_near_does_not_bind_workers_to_too_few_cores(mode: NumaBinding) -> None:
    """Other cores are idle, so a bound worker would have less. The others have the same rule."""
    found = bind(BindingOptions(mode, NumaMemory.PREFERRED), ONE_LEFT, 3)

    assert [each.cpus for each in found] == [None, None, None]
    assert [each.numa_nodes for each in found] == [(), (), ()]
    assert {each.warning for each in found} == {
        "not bound: 2 workers would share 1 core (CPUs 4); without binding each has 1.7"
    }
    assert found[1].memory == MemoryPolicy("preferred", (1,))


@pytest.mark.parametrize(
    ("gpus", "kept"),
    [
        ([0], [0]),
        ([0], [0, 8]),
        ([0], [15]),
        ([0] * 4, [0]),
        ([0] * 4, [0, 1, 2, 3]),
        ([0, 0, 0, 0, 1, 1], [0]),
        ([0], range(7)),
    ],
)
def test_reserved_cores_do_not_change_the_binding(gpus: list[int], kept: Sequence[int]) -> None:
    """Each worker has the CPUs that it has without them, less these, while a core is left for each."""
    here = machine({0: "0-7", 1: "8-15"}, gpus, packages=["0-7", "8-15"])
    less = replace(here, allowed=CpuSet(here.allowed - set(kept)))

    found, whole = (bind(BindingOptions(NumaBinding.AUTO), it, len(gpus)) for it in (less, here))

    assert [each.cpus for each in found] == [(each.cpus or CpuSet()) - set(kept) for each in whole]
    assert {each.warning for each in found} == {""}


@pytest.mark.parametrize(
    ("mode", "expected"), [("auto", ["0-3", "0-3"]), ("exclusive", ["0-1", "2-3"])]
)
def test_nodes_with_the_same_cpus_are_one(mode: str, expected: list[str]) -> None:
    """Without GPUs: two workers are enough for three such nodes, and have the memory of all."""
    here = machine(dict.fromkeys(range(3), "0-3"))

    found = bind(BindingOptions(NumaBinding(mode), NumaMemory.PREFERRED), here, 2)

    assert [str(each.cpus) for each in found] == expected
    assert [each.memory and each.memory.nodes for each in found] == [(0, 1, 2)] * 2
    assert bind(BindingOptions(NODE), machine({0: "0-3", 1: "0-3", 2: "4-5"}), 1)[0].cpus is None


def test_overlapping_masks_are_checked_together() -> None:
    """Six workers have two GPUs each, and any two nodes a core for each of two workers."""
    gpus = [0, 1, 0, 1, 1, 2, 1, 2, 0, 2, 0, 2]
    here = machine({at: str(at) for at in range(6)}, gpus, packages=["0-2", "3-5"])

    found = bind(BindingOptions(NumaBinding.AUTO, gpus_per_worker=2), here, 6)
    by_name = bind(BindingOptions(NODE, gpus_per_worker=2), here, 6)

    assert {(each.cpus, each.warning) for each in found} == {
        (None, "not bound: 6 workers would share 3 cores (CPUs 0-2); without binding each has 1")
    }
    assert [str(each.cpus) for each in by_name] == ["0-1", "0-1", "1-2", "1-2", "0,2", "0,2"]
    assert {each.warning for each in by_name} == {
        "6 workers share 3 cores (CPUs 0-2); without binding each would have 1"
    }


@pytest.mark.parametrize(
    ("workers", "each", "expected"),
    [
        (2, 2, ["0-3", "0-7"]),
        (1, 4, ["0-7"]),
        (1, 2, ["0-3"]),
        (4, 1, ["0-3", "0-3", "0-3", "4-7"]),
        (2, 1, ["0-3", "0-3"]),
        (3, 2, [None, None, None]),
    ],
)
def test_workers_of_several_gpus(workers: int, each: int, expected: list[str | None]) -> None:
    """A worker has a block of the visible GPUs, and is bound to all their nodes."""
    here = machine(TWO, [0, 0, 0, 1])

    found = bind(BindingOptions(NODE, gpus_per_worker=each), here, workers)

    assert [None if it.cpus is None else str(it.cpus) for it in found] == expected
    if expected[0]:
        indices = [gpu.index for it in found for gpu in it.gpus]
        assert indices == [*range(workers * each)]


def test_memory_policy_has_the_gpus_nodes() -> None:
    """The memory is that of the nodes of its GPUs, not of those that near adds."""
    here = machine(CLUSTERS, [1, 2], without_memory=[2])

    first, second = bind(BindingOptions(NEAR, NumaMemory.PREFERRED), here, 2)

    assert (first.memory, first.warning) == (MemoryPolicy("preferred", (1,)), "")
    assert second.memory is None
    assert second.warning == "no memory policy: this job may not use the memory of NUMA node 2"


def test_memory_is_bound_to_all_nodes_of_the_mask() -> None:
    """With the GPU's node alone, half of the memory would be lost to a worker of two nodes."""
    here = machine(CLUSTERS, [1, 2], without_memory=[2])

    def policies(mode: NumaBinding) -> list[MemoryPolicy | None]:
        return [found.memory for found in bind(BindingOptions(mode, NumaMemory.BIND), here, 2)]

    assert policies(NEAR) == [MemoryPolicy("bind", (0, 1)), MemoryPolicy("bind", (3,))]
    assert policies(NODE) == [MemoryPolicy("bind", (1,)), None]
    assert policies(NONE) == [MemoryPolicy("bind", (1,)), None]


def test_memory_policy_of_an_unbound_worker() -> None:
    """It runs on any allowed CPU, so that all nodes of these count; without binding the GPU's does."""
    here = machine(
        {0: "0-3", 1: "4-7", 2: "8-9", 3: "10-11", 4: ""},
        [1, 1],
        packages=["0-3", "4-7", "8-11"],
        allowed="0-4,8-9",
        without_memory=[2],
    )

    def policies(mode: NumaBinding, memory: NumaMemory) -> list[tuple[int, ...]]:
        found = bind(BindingOptions(mode, memory), here, 2)
        assert {each.cpus for each in found} == {None}
        return [each.memory.nodes for each in found if each.memory]

    assert policies(NumaBinding.AUTO, NumaMemory.BIND) == [(0, 1)] * 2
    assert policies(NumaBinding.AUTO, NumaMemory.PREFERRED) == [(1,)] * 2
    assert policies(NONE, NumaMemory.BIND) == [(1,)] * 2


def test_memory_without_binding() -> None:
    """A memory policy can be set without binding; without both there is no warning."""
    here = machine(TWO, [1, None])

    first, second = bind(BindingOptions(NONE, NumaMemory.BIND), here, 2)

    assert (first.cpus, first.memory) == (None, MemoryPolicy("bind", (1,)))
    assert second.warning == (
        "not bound: the NUMA node of its GPU is unknown; give it with --numa-map;"
        " no memory policy: it has no NUMA node"
    )
    assert [found.warning for found in bind(BindingOptions(NONE), here, 2)] == ["", ""]
    (_, unplaced) = bind(BindingOptions(NumaBinding.AUTO, NumaMemory.BIND), here, 2)
    assert (unplaced.memory, unplaced.warning) == (None, second.warning)
