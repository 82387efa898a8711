"""Properties of the binding that hold on any machine."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.cpuset import CpuSet
from clusterrun.job.job import TaskLayout
from clusterrun.job.options import NumaBinding, NumaMemory
from clusterrun.machine.machine import Machine
from clusterrun.planning.plan import assumed_world
from msgspec.structs import replace

from tests.plans import BindingOptions, bind, job, planned


def check_core_shares(here: Machine, workers: int, each_has: int | None) -> None:
    """By default no worker has less than a core, if it has more without binding; all have one rule.

    If there are GPUs that the job does not see, all that it does not use may have workers of others.
    """
    found = bind(BindingOptions(NumaBinding.AUTO, gpus_per_worker=each_has), here, workers)
    bus = {gpu.bdf for gpu in here.pci_gpus}
    unused = bus - {gpu.bdf for each in found for gpu in each.gpus}
    others = len(unused) if bus - {gpu.bdf for gpu in here.visible} else 0
    cores = _cores(here, here.allowed)
    masks = {each.cpus for each in found if each.cpus}
    fair = min(Fraction(1), Fraction(cores, workers))
    for count in range(1, min(5, len(masks)) + 1):
        for some in combinations(masks, count):
            together = CpuSet.union_of(some)
            inside = sum(1 for each in found if each.cpus and each.cpus <= together)
            assert _cores(here, together) >= inside * fair
    known = [each for each in found if "unknown" not in each.warning]
    assert all(each.cpus for each in known) or not any(each.cpus for each in known)
    nodes = [node.cpus for node in here.nodes if node.cpus & here.allowed]
    is_one_node = len(nodes) == 1 and here.allowed <= nodes[0]
    for each in found:
        if "without binding" in each.warning:
            assert each.warning.startswith("bound to its socket" if each.cpus else "not bound")
        # Which GPU of one node a worker uses makes no difference, if others use none of it.
        assert not (is_one_node and not others and " for " in each.warning)


def _cores(here: Machine, cpus: CpuSet) -> int:
    return sum(1 for core in here.cores if core & cpus)


def check_suggested_mode(
    here: Machine, mode: NumaBinding, workers: int, each_has: int | None
) -> None:
    """A mode that a warning suggests uses the idle CPUs in it, and gives no worker fewer cores."""
    plan = planned(job(numa_binding=mode, gpus_per_worker=each_has), here, workers)
    for warning in plan.warnings:
        if "--numa-binding" not in warning:
            continue
        named = NumaBinding(warning.rpartition(" ")[2])
        idle = CpuSet.parse(warning.removeprefix("no worker is bound to CPUs ").partition(", ")[0])
        now = [each.cpus or here.allowed for each in plan.workers]
        there = bind(BindingOptions(named, gpus_per_worker=each_has), here, workers)
        then = [each.cpus or here.allowed for each in there]

        assert idle
        assert not idle & CpuSet.union_of(now)
        assert idle <= CpuSet.union_of(then)
        assert len(CpuSet.union_of(then)) > len(CpuSet.union_of(now))
        for mask, other in zip(now, then, strict=True):
            assert _share(here, other, then) >= _share(here, mask, now)


def _share(here: Machine, mask: CpuSet, masks: Sequence[CpuSet]) -> float:
    return _cores(here, mask) / sum(1 for other in masks if other <= mask)


def check_tasks(here: Machine, mode: NumaBinding, memory: NumaMemory, slices: int = 1) -> None:
    """Tasks with a GPU each are placed as one job's workers, if the bus shows where all GPUs are.

    So are those with a slice (MIG) each, if all slices are listed.
    """
    bus = tuple(gpu for gpu in here.pci_gpus if gpu.numa_node is not None)
    placed = (gpu for gpu in (*here.visible, *here.gpus) if gpu.numa_node is not None)
    gpus = shown = tuple(dict.fromkeys(placed))
    if slices > 1:
        shown = tuple(
            replace(gpu, uuid=f"MIG-{gpu.index}-{at}", parent=gpu.uuid)
            for gpu in gpus
            for at in range(slices)
        )
    count = len(shown)
    if not count:
        return
    node = replace(here, gpus=gpus if slices == 1 else (*gpus, *shown), pci_gpus=bus, visible=shown)
    options = {"numa_binding": mode, "numa_memory": memory, "virtual_local_rank": True}
    together = planned(job(**options), node, count)
    for rank, worker in enumerate(together.workers):
        tasks = TaskLayout(
            GlobalRank(rank), count, LocalRank(rank), count, NodeRank(0), 1, own_cpus=False
        )
        spec = job(tasks=tasks, nproc_per_node=1, **options)
        seen = worker.gpus if slices == 1 else node.gpus
        own = replace(node, gpus=seen, visible=worker.gpus)
        alone = planned(spec, own, assumed_world(spec, 1))
        (task,) = alone.workers

        assert (task.gpus, task.cpus, task.memory) == (worker.gpus, worker.cpus, worker.memory)
        assert (task.numa_nodes, task.warning) == (worker.numa_nodes, worker.warning)
        assert task.env["LOCAL_RANK"] == "0"
        assert alone.env["OMP_NUM_THREADS"] == together.env["OMP_NUM_THREADS"]
