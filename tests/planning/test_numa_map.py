"""Places of GPUs that the user sets."""

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.options import NumaBinding
from clusterrun.job.values import MappedGpu
from clusterrun.machine.machine import Machine
from clusterrun.planning.job_machine import with_numa_map
from msgspec.structs import replace

from tests.plans import BindingOptions, bind, machine, masks

HERE = machine({0: "0-3", 1: "4-7", 2: ""}, [0, None])


def mapped(*entries: MappedGpu, here: Machine = HERE) -> Machine:
    return with_numa_map(here, Setting(entries, "--numa-map"))


def masks_of(here: Machine, mode: NumaBinding = NumaBinding.NODE) -> list[str | None]:
    """Return the CPUs of one worker for each GPU."""
    return masks(here, mode, len(here.visible))


@pytest.mark.parametrize(
    "name", ["1", "0000:20:00.0", "20:00.0", "00000000:20:00.0", "GPU-1", "gpu-1"]
)
def test_gpu_is_mapped_by_any_name(name: str) -> None:
    """It is named by index, PCI address with any domain, or UUID."""
    here = mapped(MappedGpu(name, 1))

    assert masks_of(here) == ["0-3", "4-7"]
    assert (here.visible[1].node_source, here.pci_gpus[1].numa_node) == ("--numa-map", 1)
    assert (here.visible[0].node_source, here.pci_gpus[0].numa_node) == ("sysfs numa_node", 0)


def test_gpu_without_pci_address_is_mapped_by_uuid() -> None:
    """The map moves only the GPU with this UUID."""
    gpus = tuple(replace(gpu, bdf="", numa_node=0) for gpu in HERE.gpus)
    here = mapped(MappedGpu("GPU-1", 1), here=replace(HERE, gpus=gpus, visible=gpus, pci_gpus=()))

    assert masks_of(here) == ["0-3", "4-7"]


def test_mapped_cpus_are_used_exactly() -> None:
    """No mode adds CPUs to them; CPUs that are not allowed are excluded."""
    here = mapped(MappedGpu("1", CpuSet.parse("2-5")), here=replace(HERE, allowed=CpuSet(range(5))))

    assert masks_of(here) == ["0-3", "2-4"]
    assert masks_of(here, NumaBinding.NEAR) == ["0-3", "2-4"]
    assert masks_of(here, NumaBinding.SOCKET) == ["0-4", "2-4"]
    assert masks_of(here, NumaBinding.EXCLUSIVE) == ["0-1", "2-4"]
    assert bind(BindingOptions(NumaBinding.NODE), here, 2)[1].numa_nodes == (0, 1)


def test_gpus_mapped_to_the_same_cpus_divide_them() -> None:
    """They divide the mapped CPUs as GPUs of a node divide its CPUs."""
    cpus = CpuSet.parse("2-5")
    here = mapped(MappedGpu("0", cpus), MappedGpu("1", cpus))

    assert masks_of(here, NumaBinding.EXCLUSIVE) == ["2-3", "4-5"]


def test_a_machine_without_numa_can_be_mapped() -> None:
    """The CPUs belong to no node."""
    here = mapped(MappedGpu("0", CpuSet((1,))), here=machine({}, [None], allowed="0-3"))

    assert masks_of(here) == ["1"]


def test_a_hidden_gpu_may_be_in_the_map() -> None:
    """One file serves all jobs of a machine."""
    here = replace(HERE, gpus=HERE.gpus[:1], visible=HERE.visible[:1])

    assert mapped(MappedGpu("20:00.0", 1), here=here).pci_gpus[1].numa_node == 1


def test_cpus_that_this_job_may_not_use() -> None:
    """The worker is not bound, with a warning."""
    here = mapped(MappedGpu("0", CpuSet((6, 7))), here=replace(HERE, allowed=CpuSet(range(4))))

    (first, _) = bind(BindingOptions(NumaBinding.NODE), here, 2)

    assert first.cpus is None
    assert (
        first.warning
        == "not bound: GPU 0 is mapped to CPUs 6-7, but this job may use CPUs 0-3 only"
    )


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (MappedGpu("2", 1), "this machine has no GPU 2"),
        (MappedGpu("GPU-x", 1), "this machine has no GPU GPU-x"),
        (MappedGpu("0", 7), "0=node 7, but this machine has no NUMA node 7 with CPUs"),
        (MappedGpu("0", 2), "0=node 2, but this machine has no NUMA node 2 with CPUs"),
        (MappedGpu("0", CpuSet((7, 8))), "0=7-8, but this machine has no CPUs 8"),
    ],
)
def test_map_with_missing_gpu_node_or_cpu(entry: MappedGpu, complaint: str) -> None:
    """The error names the origin and the mistake."""
    with pytest.raises(UsageError) as caught:
        mapped(entry)

    assert caught.value.message == f"--numa-map: {complaint}"
    assert caught.value.hint
