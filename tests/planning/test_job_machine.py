"""The chosen GPUs of any vendor, and the NUMA node that a platform assigned to the job."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from clusterrun.errors import UsageError
from clusterrun.job.options import NumaBinding, StartMethod
from clusterrun.job.values import MappedGpu, WorkerCount
from clusterrun.machine.machine import Machine
from clusterrun.planning.job_machine import machine_for
from clusterrun.planning.plan import NodePlan
from clusterrun.planning.preparation import preparation_of
from clusterrun.planning.worker_slots import local_size
from msgspec.structs import replace

from tests.plans import gpu, job, machine, planned

EIGHT = machine({0: "0-3", 1: "4-7"}, [0] * 4 + [1] * 4)


def of(vendor: str, here: Machine = EIGHT) -> Machine:
    """Return the machine with the GPUs of another vendor."""
    return replace(
        here,
        gpus=tuple(replace(one, vendor=vendor) for one in here.gpus),
        visible=tuple(replace(one, vendor=vendor) for one in here.visible),
    )


def plan(
    here: Machine,
    *devices: str,
    environ: Mapping[str, str] | None = None,
    **values: Any,
) -> NodePlan:
    described = job(devices=devices, nproc_per_node=len(devices), **values)
    there = machine_for(described, here)
    return planned(described, there, local_size(described, there), environ)


def variables(found: NodePlan) -> dict[str, str]:
    return {name: value for name, value in found.env.items() if "VISIBLE" in name or "ZE_" in name}


@pytest.mark.parametrize(
    ("vendor", "environ", "expected"),
    [
        ("nvidia", {}, {"CUDA_VISIBLE_DEVICES": "5,0"}),
        ("", {}, {"CUDA_VISIBLE_DEVICES": "5,0"}),
        ("huawei", {}, {"ASCEND_RT_VISIBLE_DEVICES": "5,0"}),
        ("amd", {}, {"HIP_VISIBLE_DEVICES": "5,0"}),
        ("amd", {"ROCR_VISIBLE_DEVICES": "0,3,5"}, {"HIP_VISIBLE_DEVICES": "2,0"}),
        (
            "amd",
            {"CUDA_VISIBLE_DEVICES": "0,1,5"},
            {"CUDA_VISIBLE_DEVICES": "5,0", "HIP_VISIBLE_DEVICES": "5,0"},
        ),
    ],
)
def test_devices_set_the_vendors_variable(
    vendor: str, environ: dict[str, str], expected: dict[str, str]
) -> None:
    """Other vendors do not read CUDA_VISIBLE_DEVICES."""
    found = plan(of(vendor), "5", "0", environ=environ)

    assert variables(found) == expected
    assert [[gpu.index for gpu in worker.gpus] for worker in found.workers] == [[5], [0]]
    assert [worker.numa_nodes for worker in found.workers] == [(1,), (0,)]


def test_gpu_variable_is_set_before_imports() -> None:
    """Workers are forked from a process that sees the same GPUs."""
    described = job(devices=("5",), nproc_per_node=1)

    prepared = preparation_of(described, plan(EIGHT, "5"), {})

    assert prepared is not None
    assert prepared.known_variables["CUDA_VISIBLE_DEVICES"] == "5"
    assert "CUDA_VISIBLE_DEVICES" not in prepared.per_worker_variables


def test_intel_devices_are_in_bus_order() -> None:
    """The order of the mask is ignored: worker 0 has the first GPU on the bus."""
    found = plan(of("intel"), "5", "0")

    assert variables(found) == {"ZE_AFFINITY_MASK": "0,5"}
    assert [[gpu.index for gpu in worker.gpus] for worker in found.workers] == [[0], [5]]


def test_devices_are_chosen_among_the_visible_gpus() -> None:
    """Of 4,5,6,7 a user may choose 6,4, or a GPU by its UUID."""
    here = replace(EIGHT, visible=EIGHT.visible[4:], visible_origin="CUDA_VISIBLE_DEVICES=4,5, 6,7")

    assert variables(plan(here, "6", "4")) == {"CUDA_VISIBLE_DEVICES": "6,4"}
    assert variables(plan(here, "GPU-7")) == {"CUDA_VISIBLE_DEVICES": "7"}
    assert plan(here, "6", "4").visible_origin == "the test 6,4"
    assert machine_for(job(), here) is here


def test_several_models_are_selected_by_uuid() -> None:
    """The numbers are those of nvidia-smi, and the nodes are known."""
    models = tuple(replace(one, model="AB"[one.index % 2]) for one in EIGHT.gpus)
    unplaced = tuple(replace(one, numa_node=None, node_source="unknown") for one in models)
    here = replace(
        EIGHT, gpus=models, visible=unplaced, visible_warning="CUDA's order is not known"
    )

    found = plan(here, "5", "0")

    assert variables(found) == {"CUDA_VISIBLE_DEVICES": "GPU-5,GPU-0"}
    assert [worker.numa_nodes for worker in found.workers] == [(1,), (0,)]
    assert found.warnings == ()


NONE_FOUND = (
    "remove the test; to choose GPUs that clusterrun does not find, set their variable:\n"
    "  --env CUDA_VISIBLE_DEVICES=0,1 --nproc-per-node 2"
)


def sliced() -> Machine:
    """Return a machine whose first GPU is split into two slices."""
    here = machine({0: "0-3", 1: "4-7"}, [0, 1])
    slices = (replace(gpu(0, 0), uuid=f"MIG-{name}", parent="GPU-0") for name in "ab")
    return replace(here, gpus=(*here.gpus, *slices), visible_warning="GPU 0 is split")


def test_slices_are_selected_by_uuid() -> None:
    """CUDA finds no slice by number; each worker sees its own."""
    found = plan(sliced(), "MIG-b", "MIG-a", virtual_local_rank=True)

    assert variables(found) == {"CUDA_VISIBLE_DEVICES": "MIG-b,MIG-a"}
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in found.workers] == ["MIG-b", "MIG-a"]
    assert not any("slice" in warning or "split" in warning for warning in found.warnings)


def test_slice_is_bound_near_its_gpu() -> None:
    """CUDA shows it a slice of that GPU, wherever the GPU is in the list, and no whole GPU."""
    here = machine({0: "0-3", 1: "4-7"}, [0, 1])
    here = replace(here, gpus=(*here.gpus, replace(gpu(1, 1), uuid="MIG-a", parent="GPU-1")))

    (worker,) = planned(job(), here, 1).workers
    chosen = plan(here, "0", "1", gpus_per_worker=0)
    apart = plan(here, "0", "1", virtual_local_rank=True)

    assert (worker.numa_nodes, [gpu.index for gpu in worker.gpus]) == ((1,), [1])
    assert variables(chosen) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert [worker.numa_nodes for worker in chosen.workers] == [(1,), (1,)]
    assert [worker.numa_nodes for worker in apart.workers] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("here", "devices", "message", "hint"),
    [
        (
            EIGHT,
            "0 9",
            "the test: GPU 9 is not visible",
            "give some of 0-7 (NVML), as in --devices 0",
        ),
        (
            replace(EIGHT, visible=EIGHT.visible[:2], visible_origin="CUDA_VISIBLE_DEVICES=0,1"),
            "1 2",
            "the test: GPU 2 is not visible",
            "give some of 0-1 (CUDA_VISIBLE_DEVICES=0,1), as in --devices 1",
        ),
        (EIGHT, "1 GPU-1", "the test: GPU-1 names a GPU twice", "give each GPU once: --devices 1"),
        (
            EIGHT,
            "GPU-",
            "the test: GPU- is the beginning of several UUIDs",
            "give some of 0-7 (NVML), as in --devices 0",
        ),
        (
            sliced(),
            "MIG-c",
            "the test: MIG-c is not visible",
            "give some of 0-1,MIG-a,MIG-b (NVML), as in --devices 0",
        ),
        (
            replace(EIGHT, visible=(), visible_origin="CUDA_VISIBLE_DEVICES="),
            "0",
            "the test: no GPU is visible (CUDA_VISIBLE_DEVICES=)",
            NONE_FOUND,
        ),
    ],
)
def test_devices_with_a_missing_gpu(here: Machine, devices: str, message: str, hint: str) -> None:
    """The error names it, and the GPUs that are visible."""
    with pytest.raises(UsageError) as caught:
        plan(here, *devices.split())

    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("vendor", "name"), [("nvidia", "CUDA_VISIBLE_DEVICES"), ("intel", "ZE_AFFINITY_MASK")]
)
def test_devices_conflict_with_env(vendor: str, name: str) -> None:
    """The option and the job's own variable choose different GPUs."""
    with pytest.raises(UsageError) as caught:
        plan(of(vendor), "0", env={name: "1"})

    assert caught.value.message == f"the test and {name}=1 (--env) both choose the GPUs"


def test_nothing_is_prepared_for_workers_that_are_spawned() -> None:
    """Each worker executes a new interpreter."""
    described = job(start_method=StartMethod.SPAWN)

    assert preparation_of(described, plan(EIGHT, "0"), {}) is None


NODES = {0: "0-7", 1: "8-15"}


def cpus_of_workers(*gpus: int | None, workers: int, allowed: str = "0-15") -> list[str]:
    """Return the CPUs of each worker of a job that has node 1."""
    assigned = job(numa_node=1)
    here = machine_for(assigned, machine(NODES, gpus, allowed=allowed))
    plan = planned(assigned, here, workers)
    return [str(worker.cpus) for worker in plan.workers]


@pytest.mark.parametrize(
    "gpus", [(1, 1), (), (0, None)], ids=["local", "none", "of another node and of an unknown one"]
)
def test_workers_stay_on_the_assigned_node(gpus: Sequence[int | None]) -> None:
    """The CPUs of the other NUMA node are another job's, even if they are idle."""
    assert cpus_of_workers(*gpus, workers=2) == ["8-15", "8-15"]


def test_invalid_assigned_node_is_ignored() -> None:
    """The variable is from another machine, or disagrees with the cpuset, which is used."""
    assert cpus_of_workers(0, workers=1, allowed="0-7") == ["0-7"]


def test_no_worker_is_bound_if_binding_is_off() -> None:
    """The user has set ``--numa-binding none``."""
    assigned = job(numa_node=1, numa_binding=NumaBinding.NONE)

    plan = planned(assigned, machine_for(assigned, machine(NODES)), 1)

    assert plan.workers[0].cpus is None


def test_worker_per_cpu_counts_assigned_cpus() -> None:
    """``--nproc-per-node cpu`` starts eight workers."""
    assigned = job(numa_node=1, nproc_per_node=WorkerCount.CPU)

    assert local_size(assigned, machine_for(assigned, machine(NODES))) == 8


def test_the_numa_map_is_applied() -> None:
    """``--numa-map`` comes before any table of the machine."""
    mapped = machine_for(job(numa_map=(MappedGpu("0", 1),)), machine(NODES, [0]))

    assert mapped.visible[0].numa_node == 1
