"""Reading a large machine and planning for it is fast: every start waits for it."""

import time
from pathlib import Path

import pytest
from clusterrun.job.options import NumaBinding
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import Tree
from clusterrun.planning.worker_slots import local_size
from clusterrun.report.machine import siblings

from tests.machine_trees import KFD, KfdNode, MachineFacts, write_tree
from tests.plans import BindingOptions, bind, job, machine, planned

LIMIT = 0.3
"""Seconds of processor time: ten times what reading and planning may take."""

MINUTES_ONCE = 10
"""Seconds of processor time: ten times what 10,000 workers take."""


@pytest.mark.parametrize(
    "mode", [NumaBinding.NEAR, NumaBinding.EXCLUSIVE, NumaBinding.CORE_COMPLEX]
)
def test_large_machine_is_read_and_planned_fast(eight_gpus: Path, mode: NumaBinding) -> None:
    """A DGX A100 has 256 CPUs. This holds for every mode of binding."""
    rounds = []
    for _ in range(5):
        began = time.process_time()
        found = inspect(Tree(eight_gpus), {}, None, "large")
        places = bind(BindingOptions(mode), found, 8)
        rounds.append(time.process_time() - began)

    assert (len(found.cores), len(found.caches), len(found.nodes)) == (128, 16, 8)
    assert [gpu.numa_node for gpu in found.visible] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert [place.warning for place in places] == [""] * 8
    assert min(rounds) < LIMIT


def test_64_partitions_are_read_fast(tmp_path: Path) -> None:
    """KFD's long tables are parsed once, not for each GPU."""
    parts = [
        KfdNode(f"0000:{gpu:02x}:00.0", partition=part, links={int(gpu > 4): 20})
        for gpu in range(1, 9)
        for part in range(8)
    ]
    facts = MachineFacts(kfd=(KfdNode(), KfdNode(), *parts))
    for properties in write_tree(tmp_path, facts).glob(f"{KFD}/*/properties"):
        with properties.open("a") as file:
            file.writelines(f"property_{number} {number}\n" for number in range(50))
    rounds = []
    for _ in range(3):
        began = time.process_time()
        found = inspect(Tree(tmp_path), {}, None, "large")
        rounds.append(time.process_time() - began)

    assert [gpu.numa_node for gpu in found.visible] == [0] * 32 + [1] * 32
    assert {gpu.node_source for gpu in found.visible} == {"KFD io_links"}
    assert min(rounds) < LIMIT


@pytest.mark.parametrize(("mode", "gpus"), [("auto", 0), ("exclusive", 5000)])
def test_planning_time_is_linear_in_workers(mode: str, gpus: int) -> None:
    """A node starts its maximum of workers; planning once took minutes."""
    nodes = {number: f"{number * 1000}-{number * 1000 + 999}" for number in range(5)}
    here = machine(nodes, [number % 5 for number in range(gpus)])
    described = job(nproc_per_node=gpus or 10_000, numa_binding=NumaBinding(mode))

    began = time.process_time()
    size = local_size(described, here)
    found = planned(described, here, size)
    taken = time.process_time() - began

    assert len(found.workers) == size
    assert all(worker.cpus for worker in found.workers)
    assert taken < MINUTES_ONCE


def test_cpus_of_32768_cores_are_named_fast() -> None:
    """In proportion to their number."""
    cores = [frozenset({2 * number, 2 * number + 1}) for number in range(32768)]
    began = time.process_time()

    assert siblings(cores) == "0-65535"
    assert time.process_time() - began < 10 * LIMIT
