"""CPUs that a worker has to itself."""

from pathlib import Path

import pytest
from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.job import NumaBinding
from clusterrun.domain.machine import Machine
from clusterrun.machine.inspect import inspect
from clusterrun.planning.binding.node_binding import BindingOptions, place
from msgspec.structs import replace

from tests.machine_trees import MachineFacts, PciDevice, write_tree
from tests.plans import machine

EXCLUSIVE, CORE_COMPLEX = NumaBinding.EXCLUSIVE, NumaBinding.CORE_COMPLEX
SMT = [f"{cpu},{cpu + 8}" for cpu in range(8)]
TWO = {0: "0-3,8-11", 1: "4-7,12-15"}


def masks(mode: NumaBinding, here: Machine, workers: int) -> list[str]:
    """Return the CPUs of each worker as people write them."""
    return [str(found.cpus) for found in place(BindingOptions(mode), here, workers)]


def remarks(mode: NumaBinding, here: Machine, workers: int) -> set[str]:
    return {found.remark for found in place(BindingOptions(mode), here, workers)}


def test_cores_are_whole_and_the_rest_goes_to_the_first() -> None:
    """Four cores for three workers: two, one, one, siblings together."""
    here = machine(TWO, [0, 0, 0], cores=SMT)

    assert masks(EXCLUSIVE, here, 3) == ["0-1,8-9", "2,10", "3,11"]
    assert remarks(EXCLUSIVE, here, 3) == {""}


def test_slices_follow_the_gpus_and_not_the_ranks() -> None:
    """CUDA_VISIBLE_DEVICES=1,0: each GPU keeps its CPUs."""
    here = machine(TWO, [0, 0], cores=SMT, visible=[1, 0])

    assert masks(EXCLUSIVE, here, 2) == ["2-3,10-11", "0-1,8-9"]


def test_cores_of_a_cache_stay_together() -> None:
    """By cache first, then by number."""
    here = machine({0: "0-7"}, [0, 0], caches=["0,2,4,6", "1,3,5,7"])

    assert masks(EXCLUSIVE, here, 2) == ["0,2,4,6", "1,3,5,7"]


def test_the_share_of_hidden_gpus_is_left_to_them() -> None:
    """Two jobs with half of the GPUs each: neither meets the other's CPUs."""
    first = machine({0: "0-7"}, [0, 0, 0, 0], visible=[0, 1])
    second = machine({0: "0-7"}, [0, 0, 0, 0], visible=[2, 3])

    assert masks(EXCLUSIVE, first, 2) == ["0-1", "2-3"]
    assert masks(EXCLUSIVE, second, 2) == ["4-5", "6-7"]


def test_a_cpuset_of_our_own_is_used_up() -> None:
    """A scheduler has divided the node already."""
    here = machine({0: "0-7"}, [0, 0, 0, 0], visible=[2, 3], allowed="4-7")

    assert masks(EXCLUSIVE, here, 2) == ["4-5", "6-7"]


def test_a_container_that_sees_its_own_cpus_alone_has_a_cpuset(tmp_path: Path) -> None:
    """Lxcfs hides the rest of a node, whose CPUs no other job divides then."""
    devices = [PciDevice(f"0000:{bus}:00.0", numa_node=0) for bus in (17, 18, 19, 20)]
    facts = MachineFacts(online="4-7", nodes={0: "0-15"}, packages=(), devices=devices)
    root = write_tree(tmp_path, facts)

    here = inspect(root, {"CUDA_VISIBLE_DEVICES": "2,3"}, CpuSet(range(4, 8)), "container")

    assert masks(EXCLUSIVE, here, 2) == ["4-5", "6-7"]
    assert str(here.nodes[0].cpus) == "0-15"


def test_gpus_of_another_vendor_have_no_share() -> None:
    """They draw the desktop."""
    here = machine({0: "0-7"}, [0, 0, 0], visible=[1, 2])
    desktop = replace(here, gpus=(replace(here.gpus[0], vendor="amd"), *here.gpus[1:]))

    assert masks(EXCLUSIVE, desktop, 2) == ["0-3", "4-7"]


def test_slices_of_one_gpu_share_its_part() -> None:
    """Two MIG slices on the first GPU, a whole one beside it."""
    here = machine({0: "0-7"}, [0, 0, 0])
    first, second, third = here.gpus
    sliced = (first, replace(second, bdf=first.bdf), third)
    here = replace(here, gpus=sliced, visible=sliced, pci_gpus=(here.pci_gpus[0], here.pci_gpus[2]))

    assert masks(EXCLUSIVE, here, 3) == ["0-1", "2-3", "4-7"]


def test_gpus_that_are_on_no_bus_are_still_several() -> None:
    """Nothing but their UUIDs tells them apart."""
    here = machine({0: "0-7"}, [0, 0], pci_gpus=[])
    gpus = tuple(replace(gpu, bdf="") for gpu in here.gpus)

    assert masks(EXCLUSIVE, replace(here, gpus=gpus, visible=gpus), 2) == ["0-3", "4-7"]


def test_fewer_cores_than_workers() -> None:
    """They share the node, and one line says so."""
    here = machine({0: "0-3"}, [0, 0, 0], cores=["0,2", "1,3"])

    assert masks(EXCLUSIVE, here, 3) == ["0-3"] * 3
    assert remarks(EXCLUSIVE, here, 3) == {"shares its node: 2 cores for 3 workers"}


def test_cores_that_are_not_known() -> None:
    """Half a core for one worker and half for another is no division."""
    here = machine(TWO, [0, 1], cores_known=False)

    assert masks(EXCLUSIVE, here, 2) == ["0-3,8-11", "4-7,12-15"]
    assert remarks(EXCLUSIVE, here, 2) == {"shares its node: the machine's cores are unknown"}


def test_whole_caches() -> None:
    """Three caches for two workers: two and one."""
    here = machine({0: "0-5"}, [0, 0], caches=["0-1", "2-3", "4-5"])

    assert masks(CORE_COMPLEX, here, 2) == ["0-3", "4-5"]
    assert remarks(CORE_COMPLEX, here, 2) == {""}


def test_a_cache_that_spans_nodes_is_whole_on_each() -> None:
    """On a processor that is split into nodes, L3 is listed for all of them."""
    here = machine({0: "0-3", 1: "4-7"}, [0, 1], caches=["0-7"])

    assert masks(CORE_COMPLEX, here, 2) == ["0-3", "4-7"]
    assert remarks(CORE_COMPLEX, here, 2) == {""}


@pytest.mark.parametrize(
    ("caches", "why"),
    [
        (["0-5"], "1 whole L3 cache for 2 workers"),
        ([], "0 whole L3 caches for 2 workers"),
        (["0-2", "3-7"], "1 whole L3 cache for 2 workers"),
    ],
    ids=["one", "not known", "one of two is cut"],
)
def test_too_few_caches_are_divided(caches: list[str], why: str) -> None:
    """By cores, and one line says so; a cache that other jobs use, too, belongs to no worker."""
    here = machine({0: "0-7"}, [0, 0], caches=caches, allowed="0-5")

    assert masks(CORE_COMPLEX, here, 2) == ["0-2", "3-5"]
    assert remarks(CORE_COMPLEX, here, 2) == {f"has cores of its own, but no L3 cache: {why}"}


def test_nodes_that_are_all_equal_are_one_pool() -> None:
    """Broken firmware tables list all CPUs for each node."""
    here = machine(dict.fromkeys(range(4), "0-7"), [0, 3])

    assert masks(EXCLUSIVE, here, 2) == ["0-3", "4-7"]


def test_workers_without_gpus_divide_their_nodes() -> None:
    """They are spread over the nodes first."""
    assert masks(EXCLUSIVE, machine(TWO, cores=SMT), 4) == [
        "0-1,8-9",
        "2-3,10-11",
        "4-5,12-13",
        "6-7,14-15",
    ]


def test_a_worker_of_several_gpus_has_the_parts_of_all() -> None:
    """Two GPUs each, of which the second worker's are at different nodes."""
    here = machine(TWO, [0, 0, 0, 1], cores=SMT)

    found = place(BindingOptions(EXCLUSIVE, gpus_per_worker=2), here, 2)

    assert [str(each.cpus) for each in found] == ["0-2,8-10", "3-7,11-15"]
    assert [each.numa_nodes for each in found] == [(0,), (0, 1)]
