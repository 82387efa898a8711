"""The machine as a job may use it, where ``nodes/`` can't say it: GPUs without an address, or place."""

from clusterrun.job.job import Job
from clusterrun.job.values import MappedGpu
from clusterrun.machine.machine import Machine
from clusterrun.planning.job_machine import machine_for
from msgspec.structs import replace

from tests.plans import job, machine, planned

TWO = machine({0: "0-3", 1: "4-7"}, [0, None])


def mapped(gpu: str) -> Job:
    return job(numa_map=(MappedGpu(gpu, 1),))


def test_machine_is_unchanged_without_options() -> None:
    assert machine_for(job(), TWO) is TWO


def test_mapped_gpu_has_another_node_and_origin() -> None:
    """The bus shows it there as well."""
    here = machine_for(mapped("20:00.0"), TWO)

    assert [gpu.node_source for gpu in here.visible] == ["sysfs numa_node", "the test"]
    assert [gpu.numa_node for gpu in here.pci_gpus] == [0, 1]


def test_gpu_without_pci_address_is_mapped_by_uuid() -> None:
    """The map moves only the GPU with this UUID."""
    gpus = tuple(replace(gpu, bdf="", numa_node=0) for gpu in TWO.gpus)
    here = machine_for(mapped("GPU-1"), replace(TWO, gpus=gpus, visible=gpus, pci_gpus=()))

    assert [gpu.numa_node for gpu in here.visible] == [0, 1]


def test_hidden_gpu_may_be_in_the_map() -> None:
    """One file serves all jobs of a machine."""
    here = replace(TWO, gpus=TWO.gpus[:1], visible=TWO.visible[:1])

    assert machine_for(mapped("20:00.0"), here).pci_gpus[1].numa_node == 1


def several_models() -> Machine:
    """Return a machine with GPUs of two models, whose order by CUDA is unknown."""
    here = machine({0: "0-3", 1: "4-7"}, [0, 1])
    models = tuple(replace(gpu, model="AB"[gpu.index]) for gpu in here.gpus)
    unplaced = tuple(replace(gpu, numa_node=None, node_source="unknown") for gpu in models)
    return replace(here, gpus=models, visible=unplaced, visible_warning="CUDA's order is not known")


def test_several_models_are_selected_by_uuid() -> None:
    """The numbers are those of nvidia-smi, and the nodes are known."""
    spec = job(devices=("1", "0"))

    found = planned(spec, machine_for(spec, several_models()), 2)

    assert found.env["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0"
    assert [worker.numa_nodes for worker in found.workers] == [(1,), (0,)]
    assert found.warnings == ()
