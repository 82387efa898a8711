"""Half a machine: where a platform gives each of its two NUMA nodes to another job."""

from clusterrun.domain.job import MappedGpu, NumaBinding, WorkerCount
from clusterrun.planning.job_machine import machine_for
from clusterrun.planning.node_plan import plan_node
from clusterrun.planning.worker_count import local_size

from tests.plans import job, machine, world

NODES = {0: "0-7", 1: "8-15"}


def cpus_of_workers(*gpus: int | None, workers: int, allowed: str = "0-15") -> list[str]:
    """Return the CPUs of each worker of a job that has node 1."""
    assigned = job(numa_node=1)
    plan = plan_node(
        assigned,
        machine_for(assigned, machine(NODES, gpus, allowed=allowed)),
        world(workers),
        unset=(),
        error_files=None,
        environ={},
    )
    return [str(worker.cpus) for worker in plan.workers]


def test_workers_stay_on_the_assigned_node() -> None:
    """The CPUs of the other one are another job's, idle as they may look."""
    assert cpus_of_workers(1, 1, workers=2) == ["8-15", "8-15"]


def test_workers_without_gpus_too() -> None:
    """There is no node to spread them over."""
    assert cpus_of_workers(workers=2) == ["8-15", "8-15"]


def test_whatever_the_gpu_is_local_to() -> None:
    """A GPU that hangs elsewhere, or nowhere, changes nothing."""
    assert cpus_of_workers(0, None, workers=2) == ["8-15", "8-15"]


def test_a_node_that_is_not_ours_assigns_nothing() -> None:
    """The variable came from another machine, or the cpuset says otherwise: that holds."""
    assert cpus_of_workers(0, workers=1, allowed="0-7") == ["0-7"]


def test_nobody_is_bound_where_binding_is_off() -> None:
    """``--numa-binding none`` is the user's, as everywhere."""
    assigned = job(numa_node=1, numa_binding=NumaBinding.NONE)
    plan = plan_node(
        assigned,
        machine_for(assigned, machine(NODES)),
        world(1),
        unset=(),
        error_files=None,
        environ={},
    )

    assert plan.workers[0].cpus is None


def test_one_worker_per_cpu_counts_the_assigned_ones() -> None:
    """``--nproc-per-node cpu``."""
    assigned = job(numa_node=1, nproc_per_node=WorkerCount.CPU)

    assert local_size(assigned, machine_for(assigned, machine(NODES))) == 8


def test_gpus_are_where_the_user_says() -> None:
    """``--numa-map`` comes before any table of the machine."""
    mapped = machine_for(job(numa_map=(MappedGpu("0", 1),)), machine(NODES, [0]))

    assert mapped.visible[0].numa_node == 1
