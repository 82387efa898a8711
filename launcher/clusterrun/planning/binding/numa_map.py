"""``--numa-map``: the user's own places of GPUs, which replace those of the machine's tables (docs/binding.md S3.1)."""

from msgspec.structs import replace

from clusterrun.domain.cpuset import CpuSet, runs
from clusterrun.domain.facts import Fact
from clusterrun.domain.machine import Gpu, Machine
from clusterrun.errors import UsageError
from clusterrun.job.values import MappedGpu


def with_map(machine: Machine, numa_map: Fact[tuple[MappedGpu, ...]]) -> Machine:
    """Return the machine with its GPUs placed as the user's map has them.

    Raises:
        UsageError: the map names a GPU, a node or a CPU that is not on the machine.

    """
    for entry in numa_map.value:
        devices = _devices(machine, entry, numa_map.origin)
        machine = _with_entry(machine, entry, devices, numa_map.origin)
    return machine


def _devices(machine: Machine, entry: MappedGpu, origin: str) -> frozenset[str]:
    found = {gpu.device for gpu in machine.gpus if _is_named(gpu, entry.gpu)}
    # A map of the whole machine may also name GPUs that a container hides.
    found |= {gpu.bdf for gpu in machine.pci_gpus if _is_address(entry.gpu, gpu.bdf)}
    if not found:
        known = ", ".join(f"{gpu.index} ({gpu.device})" for gpu in machine.gpus) or "none"
        raise UsageError(
            f"{origin}: this machine has no GPU {entry.gpu}",
            f"name a GPU by index, PCI address or UUID; this machine has: {known}",
        )
    return frozenset(found)


def _is_named(gpu: Gpu, name: str) -> bool:
    if name.isdecimal():
        return gpu.index == int(name)
    is_uuid = bool(gpu.uuid) and name.lower() in {gpu.uuid.lower(), gpu.parent.lower()}
    return is_uuid or _is_address(name, gpu.bdf)


def _is_address(name: str, bdf: str) -> bool:
    # NVML and nvidia-smi write eight digits of domain, lspci often none.
    whole = name.lower() if name.count(":") == 2 else f":{name.lower()}"
    return whole.lstrip("0") == bdf.lstrip("0")


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
        known = ",".join(runs(with_cpus)) or "none"
        raise UsageError(
            f"{origin}: {entry}, but this machine has no node {number} with CPUs",
            f"name a NUMA node that has CPUs ({known}), or the CPUs themselves",
        )
    return number


def _expect_cpus(machine: Machine, entry: MappedGpu, cpus: CpuSet, origin: str) -> CpuSet:
    known = CpuSet.union_of([*machine.cores, machine.allowed])
    unknown = CpuSet(cpus - known)
    if unknown:
        raise UsageError(
            f"{origin}: {entry}, but this machine has no CPUs {unknown}",
            f"name CPUs of this machine ({known}); for a node, type {entry.gpu}=node0",
        )
    return cpus
