"""The machine as a job may use it.

``--numa-map`` overrides the NUMA nodes of GPUs (docs/binding.md S3.1), ``--devices`` selects GPUs, and a
platform may assign a NUMA node.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from clusterrun.cpuset import CpuSet, number_ranges
from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job
from clusterrun.job.values import MappedGpu
from clusterrun.machine.machine import Gpu, Machine
from clusterrun.planning.variables import uses_uuids
from clusterrun.planning.worker_slots import why_no_gpu


def machine_for(job: Job, machine: Machine) -> Machine:
    """Return ``machine`` as ``job`` may use it. Every plan is made from that.

    Raises:
        UsageError: --numa-map or --devices names a GPU, NUMA node or CPU that the machine lacks.

    """
    machine = with_numa_map(machine, job.setting("numa_map"))
    return _on_assigned_node(job, _with_devices(machine, job.setting("devices")))


def with_numa_map(machine: Machine, numa_map: Setting[tuple[MappedGpu, ...]]) -> Machine:
    """Return the machine with the GPUs' local NUMA nodes and CPUs replaced by those of a map.

    Raises:
        UsageError: the map names a GPU, NUMA node or CPU that the machine lacks.

    """
    for entry in numa_map.value:
        devices = _devices(machine, entry, numa_map.origin)
        machine = _with_entry(machine, entry, devices, numa_map.origin)
    return machine


def _devices(machine: Machine, entry: MappedGpu, origin: str) -> frozenset[str]:
    found = {gpu.device for gpu in machine.gpus if _is_named(gpu, entry.gpu)}
    # A map of the whole machine may include GPUs that a container hides.
    found |= {gpu.bdf for gpu in machine.pci_gpus if _is_address(entry.gpu, gpu.bdf)}
    if not found:
        known = ", ".join(f"{gpu.index} ({gpu.device})" for gpu in machine.gpus) or "none"
        raise UsageError(
            f"{origin}: this machine has no GPU {entry.gpu}",
            f"give a GPU by index, PCI address or UUID; this machine has: {known}",
        )
    return frozenset(found)


def _is_named(gpu: Gpu, name: str) -> bool:
    if name.isdecimal():
        return gpu.index == int(name)
    is_uuid = bool(gpu.uuid) and name.lower() in {gpu.uuid.lower(), gpu.parent.lower()}
    return is_uuid or _is_address(name, gpu.bdf)


def _is_address(name: str, bdf: str) -> bool:
    # NVML and nvidia-smi write eight digits of the domain, lspci often none.
    whole = name.lower() if name.count(":") == 2 else f":{name.lower()}"
    return whole.lstrip("0") == bdf.lstrip("0")


def _with_entry(
    machine: Machine, entry: MappedGpu, devices: frozenset[str], origin: str
) -> Machine:
    node, cpus = None, CpuSet()
    if isinstance(entry.place, int):
        node = _expect_node(machine, entry, entry.place, origin)
    else:
        cpus = _expect_cpus(machine, entry, entry.place, origin)

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
        known = ",".join(number_ranges(with_cpus)) or "none"
        raise UsageError(
            f"{origin}: {entry}, but this machine has no NUMA node {number} with CPUs",
            f"give a NUMA node that has CPUs ({known}), or the CPUs themselves",
        )
    return number


def _expect_cpus(machine: Machine, entry: MappedGpu, cpus: CpuSet, origin: str) -> CpuSet:
    known = CpuSet.union_of([*machine.cores, machine.allowed])
    unknown = CpuSet(cpus - known)
    if unknown:
        raise UsageError(
            f"{origin}: {entry}, but this machine has no CPUs {unknown}",
            f"give CPUs of this machine ({known}); for a NUMA node, give {entry.gpu}=node0",
        )
    return cpus


def _with_devices(machine: Machine, chosen: Setting[tuple[str, ...]]) -> Machine:
    """Return the machine with only the GPUs of ``--devices`` visible (docs/binding.md S2).

    GPUs keep their numbers: if 4,5,6,7 are visible, 6,4 may be selected. Intel's runtime always uses
    bus order.
    """
    if not chosen.value:
        return machine
    gpus = [_find(machine, name, chosen) for name in chosen.value]
    for at, name in enumerate(chosen.value):
        if gpus[at] in gpus[:at]:
            raise UsageError(
                f"{chosen.origin}: {name} names a GPU twice",
                f"give each GPU once: --devices {_valid_devices(machine, chosen.value)}",
            )
    if gpus[0].vendor == "intel":
        gpus.sort(key=lambda gpu: gpu.index)
    visible_warning = machine.visible_warning
    if uses_uuids(machine, gpus):
        # By UUID, the runtime finds them whatever order it numbers them in.
        known = {gpu.uuid: gpu for gpu in machine.gpus}
        gpus, visible_warning = [known.get(gpu.uuid, gpu) for gpu in gpus], ""
    origin = f"{chosen.origin} {','.join(chosen.value)}"
    return replace(
        machine, visible=tuple(gpus), visible_origin=origin, visible_warning=visible_warning
    )


def _find(machine: Machine, name: str, chosen: Setting[tuple[str, ...]]) -> Gpu:
    origin = chosen.origin
    if not machine.visible:
        raise UsageError(
            f"{origin}: no GPU is visible ({why_no_gpu(machine)})",
            f"remove {origin}; to choose GPUs that clusterrun does not find, set their variable:\n"
            "  --env CUDA_VISIBLE_DEVICES=0,1 --nproc-per-node 2",
        )
    found = _gpus_of(machine, name)
    if len(found) == 1:
        return found[0]
    wrong = "is the beginning of several UUIDs" if found else "is not visible"
    kind = "GPU " if name.isdecimal() else ""
    raise UsageError(
        f"{origin}: {kind}{name} {wrong}",
        f"give some of {_names(_candidates(machine))} ({machine.visible_origin}),"
        f" as in --devices {_valid_devices(machine, chosen.value)}",
    )


def _candidates(machine: Machine) -> list[Gpu]:
    ids = {gpu.uuid for gpu in machine.visible}
    # The slices of a visible GPU can be selected by UUID.
    return [*machine.visible, *(gpu for gpu in machine.gpus if gpu.parent in ids - {""})]


def _gpus_of(machine: Machine, name: str) -> list[Gpu]:
    gpus = _candidates(machine)
    return [gpu for gpu in gpus if gpu.uuid == name] or [gpu for gpu in gpus if _matches(gpu, name)]


def _valid_devices(machine: Machine, chosen: Sequence[str]) -> str:
    """Return a valid value for ``--devices``: the valid ones of the chosen names, else one GPU."""
    valid: dict[Gpu, str] = {}
    for name in chosen:
        gpus = _gpus_of(machine, name)
        if len(gpus) == 1:
            valid.setdefault(gpus[0], name)
    return ",".join(valid.values()) or _names(machine.visible[:1])


def _matches(gpu: Gpu, name: str) -> bool:
    if name.isdecimal():
        return not gpu.parent and gpu.index == int(name)
    return gpu.uuid.lower().startswith(name.lower())


def _names(gpus: Sequence[Gpu]) -> str:
    numbers = number_ranges(gpu.index for gpu in gpus if not gpu.parent)
    return ",".join([*numbers, *(gpu.uuid for gpu in gpus if gpu.parent)])


def _on_assigned_node(job: Job, machine: Machine) -> Machine:
    """Restrict the job to the CPUs of the NUMA node that its platform assigned to it.

    All workers get this node, wherever their GPUs are, because the other nodes belong to other jobs.
    A node that does not exist, or has no allowed CPU, is ignored.
    """
    node = next((node for node in machine.nodes if node.id == job.numa_node), None)
    allowed = CpuSet(node.cpus & machine.allowed) if node else CpuSet()
    if node is None or not allowed:
        return machine
    visible = tuple(replace(gpu, numa_node=node.id) for gpu in machine.visible)
    return replace(machine, allowed=allowed, visible=visible)
