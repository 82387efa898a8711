"""CPUs that only one worker uses."""

from pathlib import Path

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.job.options import NumaBinding
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Machine
from clusterrun.machine.tree import Tree
from msgspec.structs import replace

from tests.machine_trees import MachineFacts, PciDevice, write_files, write_tree
from tests.plans import BindingOptions, bind, machine

EXCLUSIVE, CORE_COMPLEX = NumaBinding.EXCLUSIVE, NumaBinding.CORE_COMPLEX
SMT = [f"{cpu},{cpu + 8}" for cpu in range(8)]
SMT_4 = [f"{cpu},{cpu + 4}" for cpu in range(4)]
TWO = {0: "0-3,8-11", 1: "4-7,12-15"}


def of_another_vendor() -> Machine:
    """Return a machine whose first GPU draws the desktop."""
    here = machine({0: "0-7"}, [0, 0, 0], visible=[1, 2])
    return replace(here, gpus=(replace(here.gpus[0], vendor="amd"), *here.gpus[1:]))


def sliced() -> Machine:
    """Return a machine with two MIG slices on the first GPU, and a whole GPU."""
    here = machine({0: "0-7"}, [0, 0, 0])
    first, second, third = here.gpus
    gpus = (first, replace(second, bdf=first.bdf), third)
    return replace(here, gpus=gpus, visible=gpus, pci_gpus=(here.pci_gpus[0], here.pci_gpus[2]))


def on_no_bus() -> Machine:
    """Return a machine whose GPUs differ by their UUIDs only."""
    here = machine({0: "0-7"}, [0, 0], pci_gpus=[])
    gpus = tuple(replace(gpu, bdf="") for gpu in here.gpus)
    return replace(here, gpus=gpus, visible=gpus)


def check(mode: NumaBinding, here: Machine, expected: list[str], warning: str = "") -> None:
    found = bind(BindingOptions(mode), here, len(expected))

    assert [str(each.cpus) for each in found] == expected
    assert {each.warning for each in found} == {warning}


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        # Four cores for three workers: two, one, one, siblings together.
        (machine(TWO, [0, 0, 0], cores=SMT), ["0-1,8-9", "2,10", "3,11"]),
        # CUDA_VISIBLE_DEVICES=1,0: each GPU keeps its CPUs.
        (machine(TWO, [0, 0], cores=SMT, visible=[1, 0]), ["2-3,10-11", "0-1,8-9"]),
        # Cores are ordered by cache, then by number.
        (machine({0: "0-7"}, [0, 0], caches=["0,2,4,6", "1,3,5,7"]), ["0,2,4,6", "1,3,5,7"]),
        # Two jobs with half of the GPUs each have different CPUs.
        (machine({0: "0-7"}, [0, 0], visible=[0]), ["0-3"]),
        (machine({0: "0-7"}, [0, 0, 0, 0], visible=[0, 1]), ["0-1", "2-3"]),
        (machine({0: "0-7"}, [0, 0, 0, 0], visible=[2, 3]), ["4-5", "6-7"]),
        # The parts are the same whichever GPUs a job sees and does not use.
        (machine({0: "0-7"}, [0, 0, 0, 0], visible=[2, 0, 1]), ["4-5"]),
        # A core that is kept for the system divides no node.
        (machine({0: "0-8"}, [0, 0, 0, 0], visible=[3], allowed="1-8"), ["7-8"]),
        # One thread of each core is half of the CPUs, and divides no node; half of the cores does.
        (machine({0: "0-7"}, [0, 0], cores=SMT_4, visible=[0], allowed="0-3"), ["0-1"]),
        (machine({0: "0-7"}, [0], cores=SMT_4, pci_gpus=[0, 0], allowed="0-1,4-5"), ["0-1,4-5"]),
        # A scheduler has divided the node already.
        (machine({0: "0-7"}, [0, 0], pci_gpus=[0] * 4, allowed="4-7"), ["4-5", "6-7"]),
        # Two jobs in one container, which has half of the CPUs, and all GPUs of the node or half.
        (machine({0: "0-7"}, [0, 0, 0, 0], visible=[0, 1], allowed="4-7"), ["4", "5"]),
        (machine({0: "0-7"}, [0, 0, 0, 0], visible=[2, 3], allowed="4-7"), ["6", "7"]),
        (machine({0: "0-7"}, [0, 0], visible=[1], pci_gpus=[0] * 4, allowed="4-7"), ["6-7"]),
        (of_another_vendor(), ["0-3", "4-7"]),
        (sliced(), ["0-1", "2-3", "4-7"]),
        (on_no_bus(), ["0-3", "4-7"]),
        # Broken firmware tables list all CPUs for each node: the nodes are divided as one.
        (machine(dict.fromkeys(range(4), "0-7"), [0, 3]), ["0-3", "4-7"]),
        # Workers without GPUs are spread over the nodes first.
        (machine(TWO, cores=SMT), ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]),
    ],
)
def test_exclusive_gives_whole_cores(here: Machine, expected: list[str]) -> None:
    """GPUs of one node divide its cores."""
    check(EXCLUSIVE, here, expected)


@pytest.mark.parametrize(
    ("here", "expected", "warning"),
    [
        (
            machine({0: "0-3"}, [0, 0, 0], cores=["0,2", "1,3"]),
            ["0-3"] * 3,
            "shares its NUMA node: 2 cores for 3 workers",
        ),
        (
            machine({0: "0-3"}, [0, 0, 0], cores=["0,2", "1,3"], visible=[0]),
            ["0-3"],
            "shares its NUMA node: 2 cores for 3 GPUs",
        ),
        (
            machine(TWO, [0, 1], cores_known=False),
            ["0-3,8-11", "4-7,12-15"],
            "shares its NUMA node: the machine's cores are unknown",
        ),
    ],
)
def test_workers_share_cores_that_cannot_be_divided(
    here: Machine, expected: list[str], warning: str
) -> None:
    """A warning gives the reason."""
    check(EXCLUSIVE, here, expected, warning)


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        # Three caches for two workers: two and one.
        (machine({0: "0-5"}, [0, 0], caches=["0-1", "2-3", "4-5"]), ["0-3", "4-5"]),
        # Small cores that are in no L3 cache.
        (machine({0: "0-9"}, [0, 0], caches=["0-3", "4-7"]), ["0-3", "4-7"]),
        # A processor that is split into nodes lists its L3 cache for all of them.
        (machine({0: "0-3", 1: "4-7"}, [0, 1], caches=["0-7"]), ["0-3", "4-7"]),
    ],
)
def test_whole_caches(here: Machine, expected: list[str]) -> None:
    """A worker has all cores of its caches that its node has."""
    check(CORE_COMPLEX, here, expected)


def test_container_cpuset_divides_the_node(tmp_path: Path) -> None:
    """Lxcfs hides the other CPUs of the node, so no other job divides its own ones."""
    devices = [
        PciDevice(f"0000:{bus}:00.0", numa_node=0, minor=minor)
        for bus, minor in ((17, None), (18, None), (19, 2), (20, 3))
    ]
    facts = MachineFacts(online="4-7", nodes={0: "0-15"}, packages=(), devices=devices)
    root = write_tree(tmp_path, facts)

    here = inspect(Tree(root), {}, CpuSet(range(4, 8)), "container")

    check(EXCLUSIVE, here, ["4-5", "6-7"])
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
        check(EXCLUSIVE, inspect(Tree(root), chosen, CpuSet.parse(affinity), "node7"), [cpus])


def test_threads_of_one_core_on_two_nodes_go_to_one_worker() -> None:
    """The tables of a virtual machine split its cores, but workers do not share cores."""
    here = machine({0: "0-1", 1: "2-3"}, [0, 1], cores=["0,2", "1,3"])

    check(EXCLUSIVE, here, ["0,2", "1,3"])
    # The other node is another job's.
    check(EXCLUSIVE, replace(here, visible=here.visible[:1]), ["0,2"])
    # No GPU is there.
    check(EXCLUSIVE, machine({0: "0-1", 1: "2-3"}, [0], cores=["0,2", "1,3"]), ["0-1"])


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("0", "2", "shares the cores of CPUs 0,2"),
        ("0-1", "1,3", "shares the cores of CPUs 1,3"),
        ("0,2", "1,3", ""),
    ],
)
def test_cpus_from_a_map_that_are_of_one_core(first: str, second: str, why: str) -> None:
    """The user has chosen them: they stay, with a warning."""
    here = machine({0: "0-3"}, [0, 0], cores=["0,2", "1,3"])
    visible = tuple(
        replace(gpu, mapped_cpus=CpuSet.parse(cpus))
        for gpu, cpus in zip(here.visible, (first, second), strict=True)
    )

    check(EXCLUSIVE, replace(here, visible=visible), [first, second], why)


@pytest.mark.parametrize(
    ("caches", "why"),
    [
        (["0-5"], "1 whole L3 cache for 2 workers"),
        ([], "0 whole L3 caches for 2 workers"),
        (["0-2", "3-7"], "1 whole L3 cache for 2 workers"),
        (["0-3"], "1 whole L3 cache for 2 workers"),
    ],
    ids=["one", "not known", "one of two is cut", "cores without one"],
)
def test_too_few_caches_are_divided(caches: list[str], why: str) -> None:
    """Workers have cores of their own, and a warning; a cache that other jobs use belongs to no worker."""
    here = machine({0: "0-7"}, [0, 0], caches=caches, allowed="0-5")

    check(CORE_COMPLEX, here, ["0-2", "3-5"], f"has cores of its own, but no L3 cache: {why}")


def test_a_cache_for_two_gpus_of_one_worker() -> None:
    """Each GPU would need one."""
    here = machine({0: "0-7"}, [0, 0], caches=["0-7"])

    (found,) = bind(BindingOptions(CORE_COMPLEX, gpus_per_worker=2), here, 1)

    why = "has cores of its own, but no L3 cache: 1 whole L3 cache for 2 GPUs"
    assert (str(found.cpus), found.warning) == ("0-7", why)


def test_a_worker_of_several_gpus_has_the_parts_of_all() -> None:
    """Each has two GPUs; those of the second worker are local to different nodes."""
    here = machine(TWO, [0, 0, 0, 1], cores=SMT)

    found = bind(BindingOptions(EXCLUSIVE, gpus_per_worker=2), here, 2)

    assert [str(each.cpus) for each in found] == ["0-2,8-10", "3-7,11-15"]
    assert [each.numa_nodes for each in found] == [(0,), (0, 1)]


def test_gpu_at_a_forbidden_node_has_no_part() -> None:
    """The worker has the part of its other GPU."""
    here = machine({0: "0-3", 1: "4-7"}, [0, 1], allowed="0-3")

    (found,) = bind(BindingOptions(EXCLUSIVE, gpus_per_worker=2), here, 1)

    assert (str(found.cpus), found.warning) == ("0-3", "")
