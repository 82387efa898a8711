"""The GPUs of each worker, and the CPUs local to them (docs/binding.md S4, decisions 2 and 3)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Gpu, Machine, NumaNode
from clusterrun.planning.binding.spread import spread

ValueT = TypeVar("ValueT")


class LocalCpus(NamedTuple):
    """The CPUs local to a GPU, or those chosen for a worker without GPUs: a node's, or the user's."""

    nodes: tuple[int, ...]
    cpus: CpuSet
    """All of them, including those that this job may not use."""
    is_mapped: bool
    """--numa-map lists exactly these CPUs: no mode adds others."""


class Assignment(NamedTuple):
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


class Mask(NamedTuple):
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
        plural = "" if visible == 1 else "s"
        why = f"not bound: {workers} workers for {visible} GPU{plural}"
        return (_unbound(machine, (), why, is_remarkable=True),) * workers
    blocks = (machine.visible[at : at + each] for at in range(0, workers * each, each))
    return tuple(_with_gpus(machine, block) for block in blocks)


def _without_gpus(machine: Machine, workers: int) -> tuple[Assignment, ...]:
    """Spread the workers over the nodes, if there are at least as many workers as nodes."""
    nodes = [node for node in machine.nodes if node.cpus & machine.allowed]
    # Binding would take away the CPUs that belong to no node.
    stray = CpuSet(machine.allowed - CpuSet.union_of(node.cpus for node in nodes))
    if not nodes or stray or workers < len(nodes):
        plural = "" if workers == 1 else "s"
        why = f"not bound: {workers} worker{plural} for {len(nodes)} NUMA nodes"
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
