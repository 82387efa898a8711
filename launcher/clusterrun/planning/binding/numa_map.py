"""``--numa-map``: where the user says that GPUs are, before any table of the machine (docs/binding.md S3.1)."""

from msgspec.structs import replace

from clusterrun.domain.cpuset import CpuSet, runs
from clusterrun.domain.facts import Fact
from clusterrun.domain.job import MappedGpu
from clusterrun.domain.machine import Gpu, Machine
from clusterrun.errors import UsageError


def with_map(machine: Machine, said: Fact[tuple[MappedGpu, ...]]) -> Machine:
    """Return the machine as the user's map has it.

    Raises:
        UsageError: the map names a GPU, a node or a CPU that isn't there.

    """
    for entry in said.value:
        devices = _devices(machine, entry, said.origin)
        machine = _with_entry(machine, entry, devices, said.origin)
    return machine


def _devices(machine: Machine, entry: MappedGpu, origin: str) -> frozenset[str]:
    """Return the physical GPU that an entry names."""
    found = {gpu.device for gpu in machine.gpus if _is_named(gpu, entry.gpu)}
    # A map of the whole machine names GPUs too that a container hides.
    found |= {gpu.bdf for gpu in machine.pci_gpus if _is_address(entry.gpu, gpu.bdf)}
    if not found:
        there = ", ".join(f"{gpu.index} ({gpu.device})" for gpu in machine.gpus) or "none"
        raise UsageError(
            f"{origin}: there is no GPU {entry.gpu} here",
            f"name a GPU by index, PCI address or UUID; here are: {there}",
        )
    return frozenset(found)


def _is_named(gpu: Gpu, name: str) -> bool:
    if name.isdecimal():
        return gpu.index == int(name)
    is_uuid = bool(gpu.uuid) and name.lower() in {gpu.uuid.lower(), gpu.parent.lower()}
    return is_uuid or _is_address(name, gpu.bdf)


def _is_address(name: str, bdf: str) -> bool:
    # NVML and nvidia-smi write eight digits of domain, lspci often none.
    domain, *rest = (
        name.lower().split(":") if name.count(":") == 2 else ["", *name.lower().split(":")]
    )
    own_domain, *own_rest = bdf.split(":")
    return domain.lstrip("0") == own_domain.lstrip("0") and rest == own_rest


def _with_entry(
    machine: Machine, entry: MappedGpu, devices: frozenset[str], origin: str
) -> Machine:
    place = entry.place
    if isinstance(place, int):
        node = _expect_node(machine, entry, place, origin)
        cpus = CpuSet()
    else:
        node, cpus = None, _expect_cpus(machine, entry, place, origin)

    def moved(gpu: Gpu) -> Gpu:
        if gpu.device not in devices:
            return gpu
        return replace(gpu, numa_node=node, mapped_cpus=cpus, node_source=origin)

    return replace(
        machine,
        gpus=tuple(map(moved, machine.gpus)),
        visible=tuple(map(moved, machine.visible)),
        pci_gpus=tuple(
            replace(gpu, numa_node=node) if gpu.bdf in devices else gpu for gpu in machine.pci_gpus
        ),
    )


def _expect_node(machine: Machine, entry: MappedGpu, number: int, origin: str) -> int:
    with_cpus = [node.id for node in machine.nodes if node.cpus]
    if number not in with_cpus:
        there = ",".join(runs(with_cpus)) or "none"
        raise UsageError(
            f"{origin}: {entry}, but there is no node {number} with CPUs here",
            f"name a NUMA node that has CPUs, here {there}, or give the CPUs themselves",
        )
    return number


def _expect_cpus(machine: Machine, entry: MappedGpu, cpus: CpuSet, origin: str) -> CpuSet:
    there = CpuSet.union_of([*machine.cores, machine.allowed])
    strange = CpuSet(cpus - there)
    if strange:
        raise UsageError(
            f"{origin}: {entry}, but there are no CPUs {strange} here",
            f"name CPUs of this machine: {there}; a node is written as {entry.gpu}=node 0",
        )
    return cpus
