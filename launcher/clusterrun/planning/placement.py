"""Assigns to each worker of a node the CPUs that are local to its GPUs (docs/binding.md S4)."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heapreplace

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import counted
from clusterrun.cpuset import CpuSet
from clusterrun.job.job import MAIN
from clusterrun.job.options import NumaBinding, NumaMemory
from clusterrun.machine.machine import Gpu, Machine, NumaNode, PciGpu
from clusterrun.planning.plan import MemoryPolicy, WorkerSlot


class BindingRequest(Struct, frozen=True):
    """The workers of a node, and the job's options for binding them."""

    slots: Sequence[WorkerSlot]
    mode: NumaBinding
    memory: NumaMemory = NumaMemory.NONE

    @property
    def hides_others(self) -> bool:
        """Whether other tasks have GPUs that the bus does not show, so no NUMA node is known to be idle."""
        return any(slot.program is None and slot.gpus is None for slot in self.slots)


class LocalCpus(Struct, frozen=True):
    """CPUs that are local to a GPU, or assigned to a worker without GPUs."""

    nodes: tuple[int, ...]
    """Ids of NUMA nodes."""
    cpus: CpuSet
    """Including CPUs that this job may not use."""
    is_mapped: bool = False
    """Whether they come from --numa-map, so that no mode adds others."""


class Placement(Struct, frozen=True):
    """A worker with its GPUs, their local CPUs, and what the worker is bound to."""

    gpus: tuple[Gpu, ...]
    local_cpus: tuple[LocalCpus, ...]
    """One per GPU; one for a worker without GPUs; () if it can't be bound."""
    cpus: CpuSet | None = None
    """Allowed CPUs to bind to, never empty; None: not bound."""
    memory: MemoryPolicy | None = None
    warning: str = ""
    """Why it is not bound as requested; "" if it is, or if the reason is common."""
    why_unbound: str = ""
    """Why ``local_cpus`` is (), even if the reason is common; "" if it is not (), if the mode is none, and
    for services without GPUs."""
    is_other: bool = False
    """It is not this job's worker, but stands for a GPU of another job or task."""

    @property
    def is_mapped(self) -> bool:
        """Whether --numa-map lists some of its local CPUs, which no rule replaces."""
        return any(local.is_mapped for local in self.local_cpus)

    @property
    def local_nodes(self) -> tuple[int, ...]:
        """The ids of the NUMA nodes of its local CPUs."""
        return tuple(sorted({node for local in self.local_cpus for node in local.nodes}))

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """The ids of the NUMA nodes for which ``cpus`` were chosen; () if it is not bound."""
        return self.local_nodes if self.cpus else ()


def assign(machine: Machine, request: BindingRequest) -> list[Placement]:
    """Return the worker of each slot with its local CPUs, not bound yet."""
    slots = request.slots
    without_gpus = iter(_main_without_gpus(machine, request))
    found = []
    for slot in slots:
        if slot.program is None:
            gpus = slot.gpus or ()
            local_cpus = tuple(local for gpu in gpus if (local := cpus_near(machine, gpu)))
            found.append(Placement(gpus, local_cpus, is_other=True))
        elif slot.gpus:
            found.append(_with_gpus(machine, slot.gpus))
        elif slot.program == MAIN:
            found.append(next(without_gpus))
        else:
            # Services without GPUs are never bound.
            found.append(Placement((), ()))
    return found


def _main_without_gpus(machine: Machine, request: BindingRequest) -> list[Placement]:
    """Return the main program's workers that have no GPU of their own: all of its workers or none."""
    main = [slot for slot in request.slots if slot.program == MAIN and not slot.gpus]
    if not main:
        return []
    if main[0].gpus is not None:
        return _without_gpus(machine, len(main))
    # Only the script knows which worker uses which GPU. On a single NUMA node that makes no difference,
    # unless other jobs need a part of the node.
    of_services = {gpu for slot in request.slots for gpu in slot.gpus or ()}
    gpus = [gpu for gpu in machine.visible if gpu not in of_services]
    seen = {gpu.bdf for gpu in gpus}
    is_alone = all(gpu.bdf in seen for gpu in gpus_of_jobs(machine))
    if is_alone and not binding_matters(request.mode, machine, len(main)):
        return _without_gpus(machine, len(main))
    why = f"not bound: {counted(len(main), 'worker')} for {counted(len(gpus), 'GPU')}"
    return [_unbound(machine, (), why, warning=why)] * len(main)


def binding_matters(mode: NumaBinding, machine: Machine, workers: int) -> bool:
    """Return whether binding may leave a worker fewer CPUs than it would have unbound."""
    if mode.divides and workers > 1:
        return True
    allowed = machine.allowed
    nodes = _nodes_with_cpus(machine)
    if nodes:
        return len(nodes) > 1 or bool(allowed - nodes[0].cpus)
    # A kernel without NUMA. One package counts as one node; several or unknown ones may be several nodes.
    return len([package for package in machine.packages if package & allowed]) != 1


def _without_gpus(machine: Machine, workers: int) -> list[Placement]:
    """Spread the workers over the NUMA nodes, if there are at least as many workers as nodes."""
    nodes = _nodes_with_cpus(machine)
    # Binding would lose CPUs that belong to no node.
    stray = CpuSet(machine.allowed - CpuSet.union_of(node.cpus for node in nodes))
    if not nodes or stray or workers < len(nodes):
        why = f"not bound: {counted(workers, 'worker')} for {len(nodes)} NUMA nodes"
        if stray:
            why = f"not bound: CPUs {stray} belong to no NUMA node"
        return [_unbound(machine, (), why)] * workers
    at = {
        node.id: Placement((), (LocalCpus(_equal_nodes(machine, node), node.cpus),))
        for node in nodes
    }
    return [at[node.id] for node in spread(machine, nodes, workers)]


def _nodes_with_cpus(machine: Machine) -> list[NumaNode]:
    """Return the NUMA nodes with allowed CPUs; of nodes with equal CPUs (by firmware tables), the first."""
    first = {node.cpus: node for node in reversed(machine.nodes) if node.cpus & machine.allowed}
    return [node for node in machine.nodes if first.get(node.cpus) is node]


def _equal_nodes(machine: Machine, node: NumaNode) -> tuple[int, ...]:
    return tuple(other.id for other in machine.nodes if other.cpus == node.cpus)


def spread(machine: Machine, nodes: list[NumaNode], workers: int) -> list[NumaNode]:
    """Return the NUMA node of each worker, in blocks in the order of ``nodes``.

    Each worker goes to the node where it leaves the most allowed cores per worker, which maximises the
    smallest number of cores per worker. A small node may get no worker.
    """
    count = core_counter(machine)
    cores = [count(CpuSet(node.cpus & machine.allowed)) for node in nodes]
    placed = [0] * len(nodes)
    # If two nodes leave as many cores per worker, the larger one gets the worker, then the first.
    queue = [(-float(count), -count, at) for at, count in enumerate(cores)]
    heapify(queue)
    for _ in range(workers):
        _, _, at = queue[0]
        placed[at] += 1
        heapreplace(queue, (-cores[at] / (placed[at] + 1), -cores[at], at))
    return [node for node, count in zip(nodes, placed, strict=True) for _ in range(count)]


def _with_gpus(machine: Machine, gpus: tuple[Gpu, ...]) -> Placement:
    local_cpus = tuple(local for gpu in gpus if (local := cpus_near(machine, gpu)))
    if len(local_cpus) < len(gpus):
        why = "not bound: the NUMA node of its GPU is unknown; give it with --numa-map"
        return _unbound(machine, gpus, why, warning=why)
    return Placement(gpus, local_cpus)


def usable(machine: Machine, worker: Placement) -> Placement:
    """Return the worker, without local CPUs if this job may use none of them."""
    if not worker.local_cpus or not all(
        local.cpus.isdisjoint(machine.allowed) for local in worker.local_cpus
    ):
        return worker
    where = ", ".join(
        f"GPU {gpu.index} is mapped to CPUs {local.cpus}"
        if local.is_mapped
        else f"GPU {gpu.index} is local to NUMA node {gpu.numa_node}"
        for gpu, local in zip(worker.gpus, worker.local_cpus, strict=True)
    )
    why = f"not bound: {where}, but this job may use CPUs {machine.allowed} only"
    return replace(worker, local_cpus=(), warning=why, why_unbound=why)


def cpus_near(machine: Machine, gpu: Gpu) -> LocalCpus | None:
    """Return the local CPUs of a GPU; None if unknown."""
    if gpu.mapped_cpus:
        nodes = tuple(node.id for node in machine.nodes if node.cpus & gpu.mapped_cpus)
        return LocalCpus(nodes, gpu.mapped_cpus, is_mapped=True)
    found = (node for node in machine.nodes if node.id == gpu.numa_node and node.cpus)
    return next((LocalCpus((node.id,), node.cpus) for node in found), None)


def _unbound(machine: Machine, gpus: tuple[Gpu, ...], why: str, *, warning: str = "") -> Placement:
    if not machine.nodes:
        why, warning = "not bound: the kernel shows no NUMA nodes", ""
    return Placement(gpus, (), warning=warning, why_unbound=why)


def gpus_of_jobs(machine: Machine) -> list[PciGpu]:
    """Return the GPUs that this job or others may use, in bus order.

    GPUs known to be of another vendor are excluded: usually they drive a display.
    """
    vendors = {gpu.vendor for gpu in machine.visible}
    others = {gpu.bdf for gpu in machine.gpus if gpu.vendor not in vendors}
    return [gpu for gpu in machine.pci_gpus if gpu.bdf not in others]


def core_by_cpu(machine: Machine) -> dict[int, int]:
    """Return the index in ``machine.cores`` of each CPU's core."""
    return {cpu: at for at, core in enumerate(machine.cores) for cpu in core}


def core_counter(machine: Machine) -> Callable[[CpuSet], int]:
    """Return a function that counts the cores of a set of CPUs; a CPU without a known core counts as one."""
    core_of = core_by_cpu(machine)
    return lambda cpus: len({core_of.get(cpu, -1 - cpu) for cpu in cpus})


def cores_of(machine: Machine, cpus: CpuSet) -> list[CpuSet]:
    """Return the part of each core that is in ``cpus``, sorted by L3 cache and lowest CPU."""
    cores = [CpuSet(core & cpus) for core in machine.cores if core & cpus]
    cores += [CpuSet((cpu,)) for cpu in cpus - CpuSet.union_of(cores)]

    def order(core: CpuSet) -> tuple[int, int]:
        at = cache_of(machine, core)
        return min(core) if at is None else at, min(core)

    return sorted(cores, key=order)


def cache_of(machine: Machine, core: CpuSet) -> int | None:
    """Return the lowest CPU that shares the core's L3 cache; None if it has none or it is unknown."""
    return next((min(cache) for cache in machine.caches if min(core) in cache), None)


def joined(sets: Sequence[CpuSet]) -> CpuSet:
    """Return the union. A single set is returned itself, because comparing identical objects is fast."""
    return sets[0] if len(sets) == 1 else CpuSet.union_of(sets)


def unions(sets: Iterable[CpuSet]) -> list[CpuSet]:
    """Return the union of each group of sets that overlap, directly or through others."""
    found: list[CpuSet] = []
    for cpus in sets:
        overlapping = [other for other in found if other & cpus]
        found = [other for other in found if not other & cpus]
        found.append(joined([cpus, *overlapping]))
    return found
