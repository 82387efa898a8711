"""Which CPUs a worker may use."""

from collections import Counter
from collections.abc import Sequence

import pytest
from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.job import NumaBinding, NumaMemory
from clusterrun.domain.machine import Machine
from clusterrun.domain.plan import MemoryPolicy
from clusterrun.planning.binding.node_binding import BindingOptions, place
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.plans import machine

NODE, NEAR, NONE = NumaBinding.NODE, NumaBinding.NEAR, NumaBinding.NONE
TWO = {0: "0-3", 1: "4-7"}
# A package of four sub-NUMA clusters, of which 1 and 2 have GPUs.
CLUSTERS = {0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}


def masks(mode: NumaBinding, here: Machine, workers: int) -> list[str | None]:
    """Return the CPUs of each worker as people write them."""
    found = place(BindingOptions(mode), here, workers)
    return [None if placement.cpus is None else str(placement.cpus) for placement in found]


def remarks(here: Machine, workers: int) -> list[str]:
    return [placement.remark for placement in place(BindingOptions(NODE), here, workers)]


def test_a_worker_is_bound_to_the_node_of_its_gpu() -> None:
    """In the order of the GPUs, which need not be that of the nodes."""
    found = place(BindingOptions(NODE), machine(TWO, [1, 0]), 2)

    assert [str(placement.cpus) for placement in found] == ["4-7", "0-3"]
    assert [placement.numa_nodes for placement in found] == [(1,), (0,)]
    assert [gpu.index for placement in found for gpu in placement.gpus] == [0, 1]
    assert [placement.remark for placement in found] == ["", ""]


def test_workers_follow_the_order_of_the_visible_list() -> None:
    """CUDA_VISIBLE_DEVICES=3,0 gives local rank 0 the last GPU."""
    here = machine(TWO, [0, 0, 1, 1], visible=[3, 0])

    assert masks(NODE, here, 2) == ["4-7", "0-3"]


def test_masks_are_cut_with_what_is_allowed() -> None:
    """A scheduler's cpuset is never widened."""
    assert masks(NODE, machine(TWO, [0, 1], allowed="2-5"), 2) == ["2-3", "4-5"]


def test_interleaved_cpus_are_sets() -> None:
    """On many machines even CPUs are on one node and odd ones on the other."""
    here = machine({0: "0,2,4,6", 1: "1,3,5,7"}, [1])

    assert masks(NODE, here, 1) == ["1,3,5,7"]


def test_a_cpuset_without_the_gpus_node_leaves_its_worker_unbound() -> None:
    """And says so; the other worker is bound."""
    here = machine({0: "0-15", 1: "16-31"}, [0, 1], allowed="0-15")

    assert masks(NODE, here, 2) == ["0-15", None]
    assert remarks(here, 2) == [
        "",
        "not bound: GPU 1 is local to node 1, but this job may use CPUs 0-15 only",
    ]


def test_a_gpu_of_unknown_place_leaves_its_worker_unbound() -> None:
    """Never node 0 for want of a better one."""
    here = machine(TWO, [None, 1])

    assert masks(NODE, here, 2) == [None, "4-7"]
    assert remarks(here, 2)[0] == (
        "not bound: the NUMA node of its GPU is unknown; give it with --numa-map"
    )


def test_a_machine_without_numa_binds_nobody_and_says_nothing() -> None:
    """There is nothing to choose."""
    here = machine({}, [None], allowed="0-3")

    assert masks(NODE, here, 1) == [None]
    assert remarks(here, 1) == [""]


def test_none_binds_nobody_and_keeps_the_gpus() -> None:
    """As asked for, so there is nothing to remark."""
    (only,) = place(BindingOptions(NONE), machine(TWO, [1]), 1)

    assert (only.cpus, only.numa_nodes, only.remark) == (None, (), "")
    assert only.gpus


def test_more_workers_than_gpus_are_not_bound() -> None:
    """Only the script knows which worker uses which."""
    found = place(BindingOptions(NODE), machine(TWO, [0, 1]), 4)

    assert [placement.cpus for placement in found] == [None] * 4
    assert [placement.gpus for placement in found] == [()] * 4
    assert found[0].remark == "not bound: 4 workers for 2 GPUs"


@pytest.mark.parametrize("workers", range(1, 9))
def test_fewer_workers_than_gpus_have_the_first_ones(workers: int) -> None:
    """Rank r uses visible[r], as every script does that calls set_device(LOCAL_RANK)."""
    here = machine(TWO, [0, 1, 1, 0, 0, 0, 1, 1], visible=[7, 6, 5, 4, 3, 2, 1, 0])

    found = place(BindingOptions(NODE), here, workers)

    assert [gpu.index for each in found for gpu in each.gpus] == [7, 6, 5, 4, 3, 2, 1, 0][:workers]
    nodes = [1, 1, 0, 0, 0, 1, 1, 0][:workers]
    assert [str(each.cpus) for each in found] == [TWO[node] for node in nodes]
    assert {each.remark for each in found} == {""}


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (1, [None]),
        (2, ["0-3", "4-7"]),
        (4, ["0-3", "0-3", "4-7", "4-7"]),
        (5, ["0-3", "0-3", "0-3", "4-7", "4-7"]),
    ],
)
def test_without_gpus_workers_spread_in_blocks(
    workers: int, expected: Sequence[str | None]
) -> None:
    """From as many as there are nodes; fewer would leave nodes idle."""
    here = machine(TWO)

    assert masks(NODE, here, workers) == expected
    assert set(remarks(here, workers)) == {""}


@pytest.mark.parametrize(
    ("allowed", "workers", "expected"),
    [
        # Of two nodes the reserved cores are missing: one worker each all the same.
        ("1-3,4-7", 2, {"1-3": 1, "4-7": 1}),
        ("0-3,4", 4, {"0-3": 4}),
        ("0-3,4", 5, {"0-3": 4, "4": 1}),
        ("0-2,4", 4, {"0-2": 3, "4": 1}),
        ("0-3,4-5", 3, {"0-3": 2, "4-5": 1}),
        ("0-3,4-7", 16, {"0-3": 8, "4-7": 8}),
    ],
)
def test_without_gpus_workers_spread_by_the_cores_that_are_allowed(
    allowed: str, workers: int, expected: dict[str, int]
) -> None:
    """A node with a single CPU for this job is no place for half of its workers."""
    here = machine(TWO, allowed=allowed)

    assert Counter(masks(NODE, here, workers)) == expected
    assert set(remarks(here, workers)) == {""}


def test_without_gpus_siblings_count_as_one_core() -> None:
    """Four CPUs of two cores are no more than two CPUs of two cores."""
    here = machine({0: "0-3", 1: "4-5"}, cores=["0-1", "2-3", "4", "5"])

    assert masks(NODE, here, 2) == ["0-3", "4-5"]


ONE_LEFT = machine({0: "0-3", 1: "4-7"}, [0, 1, 1], packages=["0-3", "4-7"], allowed="0-4")
"""A job that may use one CPU at the node of two of its GPUs."""


@pytest.mark.parametrize("mode", [NumaBinding.AUTO, NEAR])
def test_near_leaves_workers_alone_that_would_share_too_few_cores(mode: NumaBinding) -> None:
    """Others have cores to spare: binding must not make it worse."""
    found = place(BindingOptions(mode, NumaMemory.PREFERRED), ONE_LEFT, 3)

    assert [str(each.cpus) for each in found] == ["0-3", "None", "None"]
    assert [each.numa_nodes for each in found] == [(0,), (), ()]
    assert {each.remark for each in found[1:]} == {
        "not bound: 2 workers would share 1 core (CPUs 4) of the 5 that this job may use"
    }
    assert found[1].memory == MemoryPolicy(NumaMemory.PREFERRED, (1,))


@pytest.mark.parametrize("mode", [NODE, NumaBinding.SOCKET])
def test_a_mode_that_is_asked_for_binds_and_says_how_few_cores_there_are(mode: NumaBinding) -> None:
    """The user may know better."""
    found = place(BindingOptions(mode), ONE_LEFT, 3)

    assert [str(each.cpus) for each in found] == ["0-3", "4", "4"]
    assert {each.remark for each in found[1:]} == {
        "2 workers share 1 core (CPUs 4) of the 5 that this job may use"
    }


def test_siblings_of_a_core_are_no_room_for_two() -> None:
    """Two CPUs of one core for two workers are one core."""
    cores = ["0", "1", "2", "3", "4-5"]
    here = machine({0: "0-3", 1: "4-5"}, [0, 1, 1], packages=["0-3", "4-5"], cores=cores)

    assert masks(NEAR, here, 3) == ["0-3", None, None]


def test_a_machine_that_is_full_everywhere_is_bound_as_ever() -> None:
    """No core is freer than others; and one worker more does not count as crowded."""
    here = machine(TWO, [0] * 8 + [1] * 8, packages=["0-3", "4-7"])

    assert masks(NEAR, here, 16) == ["0-3"] * 8 + ["4-7"] * 8
    assert {each.remark for each in place(BindingOptions(NEAR), here, 16)} == {""}


def test_what_the_user_has_mapped_is_bound_however_crowded() -> None:
    """With the remark."""
    gpus = tuple(replace(gpu, mapped_cpus=CpuSet((4,))) for gpu in ONE_LEFT.visible)
    here = replace(ONE_LEFT, visible=gpus)

    found = place(BindingOptions(NEAR), here, 3)

    assert [str(each.cpus) for each in found] == ["4"] * 3
    assert found[0].remark == "3 workers share 1 core (CPUs 4) of the 5 that this job may use"


def test_without_gpus_only_nodes_with_cpus_of_ours_count() -> None:
    """Memory is a node too, and a cpuset may hold one node only."""
    here = machine({0: "0-3", 1: "4-7", 2: ""}, allowed="4-5")

    assert masks(NODE, here, 2) == ["4-5", "4-5"]


def test_without_gpus_no_cpu_is_bound_away() -> None:
    """CPUs that no node lists stay in use: then no worker is bound."""
    assert masks(NODE, machine({0: "0-3"}, allowed="0-5"), 2) == [None, None]


def test_near_shares_out_the_idle_nodes_of_a_package() -> None:
    """Of nodes as near, the workers with the fewest CPUs gain; node alone leaves them idle."""
    here = machine(CLUSTERS, [1, 2])

    assert masks(NODE, here, 2) == ["2-3", "4-5"]
    assert masks(NEAR, here, 2) == ["0-3", "4-7"]
    assert masks(NumaBinding.AUTO, here, 2) == ["0-3", "4-7"]


def test_near_gives_a_node_to_the_nearest() -> None:
    """By the distances of the idle node."""
    distances = {0: {0: 10, 1: 12, 2: 11, 3: 12}, 3: {0: 12, 1: 12, 2: 11, 3: 10}}
    here = machine(CLUSTERS, [1, 2], distances=distances)

    assert masks(NEAR, here, 2) == ["2-3", "0-1,4-7"]


def test_near_counts_cpus_by_worker() -> None:
    """A node with two workers is poorer than one of the same size with one."""
    here = machine(CLUSTERS, [1, 2, 2])

    assert masks(NEAR, here, 3) == ["2-3,6-7", "0-1,4-5", "0-1,4-5"]


@pytest.mark.parametrize(
    ("nodes", "gpus", "expected"),
    [
        # A package of three clusters, of which one has no GPU.
        ({0: "0-3", 1: "4-7", 2: "8-11"}, [0, 1], ["0-3,8-9", "4-7,10-11"]),
        ({0: "0-3", 1: "4-7", 2: "8-11"}, [2, 1], ["2-3,8-11", "0-1,4-7"]),
        # Three workers with four CPUs each, for which the first node needs none of the third.
        ({0: "0-7", 1: "8-9", 2: "10-11"}, [0, 0, 1], ["0-7", "0-7", "8-11"]),
        ({0: "0-3", 1: "4-7", 2: "8-11"}, [0, 0, 1], ["0-3,8-11", "0-3,8-11", "4-7"]),
        ({0: "0-1", 1: "2-3", 2: "4-5", 3: "6-8"}, [0, 1, 2], ["0-1,6", "2-3,7", "4-5,8"]),
        # Five clusters: two idle ones for three.
        (
            {0: "0-2", 1: "3-5", 2: "6-8", 3: "9-11", 4: "12-14"},
            [0, 2, 4],
            ["0-4", "5-8,9", "10-14"],
        ),
    ],
)
def test_near_deals_out_the_cores_of_too_few_idle_nodes(
    nodes: dict[int, str], gpus: list[int], expected: list[str]
) -> None:
    """One idle node for two that are as near gives half of its cores to each."""
    found = masks(NEAR, machine(nodes, gpus), len(gpus))

    assert found == [str(CpuSet.parse(cpus)) for cpus in expected]


def test_near_deals_out_whole_cores() -> None:
    """Siblings stay together."""
    cores = [f"{cpu},{cpu + 6}" for cpu in range(6)]
    here = machine({0: "0-1,6-7", 1: "2-3,8-9", 2: "4-5,10-11"}, [0, 1], cores=cores)

    assert masks(NEAR, here, 2) == ["0-1,4,6-7,10", "2-3,5,8-9,11"]


def test_near_stays_in_the_package() -> None:
    """The other socket's memory is far."""
    here = machine(TWO, [0], packages=["0-3", "4-7"])

    assert masks(NEAR, here, 1) == ["0-3"]


def test_near_without_known_packages_is_node() -> None:
    """Nothing is guessed."""
    here = machine(CLUSTERS, [1, 2], packages=["9"])

    assert masks(NEAR, here, 2) == ["2-3", "4-5"]


def test_nodes_that_are_all_equal_are_shared() -> None:
    """Broken firmware tables list all CPUs for each node."""
    here = machine(dict.fromkeys(range(4), "0-7"), [0, 3])

    assert masks(NEAR, here, 2) == ["0-7", "0-7"]


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Return any machine: overlapping, empty and sparse nodes, GPUs anywhere or nowhere."""
    cpus = st.frozensets(st.integers(0, 15), max_size=16)
    ids = draw(st.lists(st.integers(0, 255), unique=True, max_size=5))
    nodes = {number: str(CpuSet(draw(cpus))) for number in sorted(ids)}
    places: st.SearchStrategy[int | None] = st.none() | st.integers(0, 255)
    if ids:
        places = st.none() | st.sampled_from(ids)
    allowed = CpuSet(draw(st.frozensets(st.integers(0, 15), min_size=1)))
    packages = [str(CpuSet(draw(cpus))) for _ in range(draw(st.integers(1, 3)))]
    gpus = draw(st.lists(places, max_size=8))
    return machine(nodes, gpus, allowed=str(allowed), packages=packages)


@given(machines(), st.sampled_from(NumaBinding), st.integers(1, 12))
def test_masks_are_never_empty_and_never_outside(
    here: Machine, mode: NumaBinding, workers: int
) -> None:
    """Whatever the machine is like, a worker gets CPUs that it may use, or is left alone."""
    found = place(BindingOptions(mode), here, workers)

    assert len(found) == workers
    assert all(
        placement.cpus is None or (placement.cpus and placement.cpus <= here.allowed)
        for placement in found
    )
    assert all((placement.cpus is None) == (placement.numa_nodes == ()) for placement in found)


@given(machines(), st.integers(1, 12))
def test_near_never_narrows_node(here: Machine, workers: int) -> None:
    """The default may only add to what torchrun's mode gives; a worker that is left alone has all."""
    pairs = zip(
        place(BindingOptions(NODE), here, workers),
        place(BindingOptions(NEAR), here, workers),
        strict=True,
    )

    assert all(
        (by_node.cpus or here.allowed) <= (near.cpus or here.allowed) for by_node, near in pairs
    )


def test_socket_is_the_package() -> None:
    """Of the GPU's node, whatever else hangs there."""
    here = machine(CLUSTERS, [1, 2], packages=["0-3", "4-7"], allowed="1-7")

    assert masks(NumaBinding.SOCKET, here, 2) == ["1-3", "4-7"]


def test_near_leaves_a_node_to_the_gpus_that_are_hidden_there() -> None:
    """Another job may use them; of a node that a cpuset has cut, the part is ours alone."""
    hidden = machine(CLUSTERS, [1, 2], visible=[0])
    cut = machine(CLUSTERS, [1, 2], visible=[0], allowed="0-4,6-7")

    assert masks(NEAR, hidden, 1) == ["0-3,6-7"]
    assert masks(NEAR, cut, 1) == ["0-4,6-7"]


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
    """Blocks of the visible list, bound to the nodes of all its GPUs."""
    here = machine(TWO, [0, 0, 0, 1])

    found = place(BindingOptions(NODE, gpus_per_worker=each), here, workers)

    assert [None if it.cpus is None else str(it.cpus) for it in found] == expected
    if expected[0]:
        indices = [gpu.index for it in found for gpu in it.gpus]
        assert indices == [*range(workers * each)]


def test_memory_is_of_the_node_that_has_some() -> None:
    """Of the nodes of its GPUs, not of those that near adds."""
    here = machine(CLUSTERS, [1, 2], without_memory=[2])

    first, second = place(BindingOptions(NEAR, NumaMemory.PREFERRED), here, 2)

    assert (first.memory, first.remark) == (MemoryPolicy(NumaMemory.PREFERRED, (1,)), "")
    assert second.memory is None
    assert second.remark == "no memory policy: this job may not use the memory of node 2"


def test_memory_without_binding() -> None:
    """Memory may be asked for alone; who asks for nothing hears nothing."""
    here = machine(TWO, [1, None])

    first, second = place(BindingOptions(NONE, NumaMemory.BIND), here, 2)

    assert (first.cpus, first.memory) == (None, MemoryPolicy(NumaMemory.BIND, (1,)))
    assert second.remark == (
        "not bound: the NUMA node of its GPU is unknown; give it with --numa-map;"
        " no memory policy: it has no NUMA node"
    )
    assert [found.remark for found in place(BindingOptions(NONE), here, 2)] == ["", ""]
