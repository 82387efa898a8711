"""The GPUs of each worker and of other jobs, and the CPUs local to them (docs/binding.md S4, decisions 2 and 3)."""

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from typing import TypeVar

from msgspec import Struct

from clusterrun.domain.counts import counted
from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Gpu, Machine, NumaNode, PciGpu
from clusterrun.planning.binding.cores import CoreCounter

ValueT = TypeVar("ValueT")


class LocalCpus(Struct, frozen=True):
    """The CPUs local to a GPU, or those chosen for a worker without GPUs: a node's, or the user's."""

    nodes: tuple[int, ...]
    cpus: CpuSet
    """All of them, including those that this job may not use."""
    is_mapped: bool
    """--numa-map lists exactly these CPUs: no mode adds others."""


class Assignment(Struct, frozen=True):
    """The GPUs of one worker and the CPUs local to them."""

    gpus: tuple[Gpu, ...]
    local: tuple[LocalCpus, ...]
    """One for each of its GPUs; one for a worker without GPUs; () if it is not bound."""
    why_unbound: str = ""
    """Why it is not bound; "" if it is."""
    is_remarkable: bool = False
    """Whether the reason is worth a remark if the job is not strict."""

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({node for local in self.local for node in local.nodes}))

    @property
    def cpus(self) -> CpuSet:
        return CpuSet.union_of(local.cpus for local in self.local)


class Mask(Struct, frozen=True):
    """The CPUs that one worker is to be bound to."""

    cpus: CpuSet
    """Empty: not bound."""
    remark: str
    """Why they are not what was asked for; "" if they are."""


def for_each(
    assignments: Sequence[Assignment], value_of: Callable[[Assignment], ValueT]
) -> list[ValueT]:
    """Return the value of each assignment, computed once for all with the same local CPUs."""
    known: dict[tuple[LocalCpus, ...], ValueT] = {}
    equal: dict[ValueT, ValueT] = {}
    for assignment in assignments:
        if assignment.local not in known:
            value = value_of(assignment)
            # Comparing large sets is fast only if equal ones are one object.
            known[assignment.local] = equal.setdefault(value, value)
    return [known[assignment.local] for assignment in assignments]


def assign_gpus(
    machine: Machine, workers: int, gpus_per_worker: int | None
) -> tuple[Assignment, ...]:
    """Return the assignments of this node's ``workers`` by local rank; each has an allowed CPU.

    Without ``gpus_per_worker`` a worker has one GPU, ``visible[rank]``.
    """
    visible = len(machine.visible)
    if not visible:
        return _without_gpus(machine, workers)
    each = gpus_per_worker or 1
    if workers * each > visible:
        # Only the script knows which worker uses which GPU.
        why = f"not bound: {workers} workers for {counted(visible, 'GPU')}"
        return (_unbound(machine, (), why, is_remarkable=True),) * workers
    blocks = (machine.visible[at : at + each] for at in range(0, workers * each, each))
    return tuple(_with_gpus(machine, block) for block in blocks)


def _without_gpus(machine: Machine, workers: int) -> tuple[Assignment, ...]:
    """Spread the workers over the nodes, if there are at least as many workers as nodes."""
    nodes = [node for node in machine.nodes if node.cpus & machine.allowed]
    # Binding would take away the CPUs that belong to no node.
    stray = CpuSet(machine.allowed - CpuSet.union_of(node.cpus for node in nodes))
    if not nodes or stray or workers < len(nodes):
        why = f"not bound: {counted(workers, 'worker')} for {len(nodes)} NUMA nodes"
        if stray:
            why = f"not bound: CPUs {stray} belong to no NUMA node"
        return (_unbound(machine, (), why),) * workers
    at = {node.id: Assignment((), (_at_node(node),)) for node in nodes}
    return tuple(at[node.id] for node in spread(machine, nodes, workers))


def _with_gpus(machine: Machine, gpus: tuple[Gpu, ...]) -> Assignment:
    local = [local_cpus_of(machine, gpu) for gpu in gpus]
    known = tuple(cpus for cpus in local if cpus is not None)
    if len(known) < len(gpus):
        why = "not bound: the NUMA node of its GPU is unknown; give it with --numa-map"
        return _unbound(machine, gpus, why, is_remarkable=True)
    assignment = Assignment(gpus, known)
    if assignment.cpus & machine.allowed:
        return assignment
    where = ", ".join(_where(gpu, cpus) for gpu, cpus in zip(gpus, known, strict=True))
    why = f"not bound: {where}, but this job may use CPUs {machine.allowed} only"
    return _unbound(machine, gpus, why, is_remarkable=True)


def _unbound(
    machine: Machine, gpus: tuple[Gpu, ...], why: str, *, is_remarkable: bool = False
) -> Assignment:
    if not machine.nodes:
        return Assignment(gpus, (), "not bound: the kernel shows no NUMA nodes")
    return Assignment(gpus, (), why, is_remarkable=is_remarkable)


def local_cpus_of(machine: Machine, gpu: Gpu) -> LocalCpus | None:
    """Return the CPUs local to a GPU; None if its place is unknown."""
    if gpu.mapped_cpus:
        nodes = tuple(node.id for node in machine.nodes if node.cpus & gpu.mapped_cpus)
        return LocalCpus(nodes, gpu.mapped_cpus, is_mapped=True)
    at = (_at_node(node) for node in machine.nodes if node.id == gpu.numa_node and node.cpus)
    return next(at, None)


def _at_node(node: NumaNode) -> LocalCpus:
    return LocalCpus((node.id,), node.cpus, is_mapped=False)


def _where(gpu: Gpu, local: LocalCpus) -> str:
    if local.is_mapped:
        return f"GPU {gpu.index} is mapped to CPUs {local.cpus}"
    return f"GPU {gpu.index} is local to node {gpu.numa_node}"


def spread(machine: Machine, nodes: list[NumaNode], workers: int) -> list[NumaNode]:
    """Return the node of each worker, in blocks in the order of ``nodes``.

    Workers go one by one to the node that leaves each of its workers the most allowed cores, so
    the smallest number of cores per worker is as large as possible. A small node may get none.
    """
    counter = CoreCounter(machine)
    cores = [counter.count(CpuSet(node.cpus & machine.allowed)) for node in nodes]
    placed = [0] * len(nodes)
    # Of two that leave as many cores per worker, the larger node gets the worker, then the first.
    queue = [(-float(count), -count, at) for at, count in enumerate(cores)]
    heapify(queue)
    for _ in range(workers):
        _, _, at = queue[0]
        placed[at] += 1
        heapreplace(queue, (-cores[at] / (placed[at] + 1), -cores[at], at))
    return [node for node, count in zip(nodes, placed, strict=True) for _ in range(count)]


def gpus_of_jobs(machine: Machine) -> tuple[PciGpu, ...]:
    """Return the GPUs that this job or others may use, in bus order.

    GPUs known to be of another vendor are left out: mostly, they drive a display.
    """
    vendors = {gpu.vendor for gpu in machine.visible}
    others = {gpu.bdf for gpu in machine.gpus if gpu.vendor not in vendors}
    return tuple(gpu for gpu in machine.pci_gpus if gpu.bdf not in others)


def hidden_gpus(machine: Machine) -> tuple[PciGpu, ...]:
    """Return those of ``gpus_of_jobs`` that this job may not use."""
    own = {gpu.bdf for gpu in machine.visible}
    return tuple(gpu for gpu in gpus_of_jobs(machine) if gpu.bdf not in own)
