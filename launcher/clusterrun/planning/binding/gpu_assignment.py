"""Which GPUs each worker of a node has, and where they are (docs/binding.md S4, decisions 2 and 3)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Gpu, Machine, NumaNode
from clusterrun.planning.binding.cpu_only_placement import spread

ValueT = TypeVar("ValueT")


class Spot(NamedTuple):
    """Where a GPU is, or a worker that has none: at a NUMA node, or at CPUs that the user named."""

    nodes: tuple[int, ...]
    cpus: CpuSet
    """All of them, those that this job may not use among them."""
    is_pinned: bool
    """The user has named the very CPUs: no mode adds to them."""


class Home(NamedTuple):
    """What a worker belongs to."""

    gpus: tuple[Gpu, ...]
    spots: tuple[Spot, ...]
    """One for each of its GPUs; one for a worker without GPUs; () where it has no place."""
    why_unbound: str = ""
    """Why it has no place; "" if it has."""
    is_usual: bool = True
    """Nobody but a strict job expects it to have a place."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """The ids of its nodes, in order."""
        return tuple(sorted({node for spot in self.spots for node in spot.nodes}))

    @property
    def cpus(self) -> CpuSet:
        """All CPUs of its spots."""
        return CpuSet.union_of(spot.cpus for spot in self.spots)


def for_each(homes: Sequence[Home], value_of: Callable[[Home], ValueT]) -> list[ValueT]:
    """Return the value of each home, worked out once for all with the same spots."""
    known: dict[tuple[Spot, ...], ValueT] = {}
    equal: dict[ValueT, ValueT] = {}
    for home in homes:
        if home.spots not in known:
            value = value_of(home)
            # Large sets are compared by identity first: equal ones had better be one.
            known[home.spots] = equal.setdefault(value, value)
    return [known[home.spots] for home in homes]


def homes_of(machine: Machine, workers: int, gpus_per_worker: int | None) -> tuple[Home, ...]:
    """Return the homes of this node's ``workers``, by local rank; at each, some CPU is allowed.

    Args:
        machine: what there is.
        workers: how many.
        gpus_per_worker: None if it is not set; a worker then has one, ``visible[rank]``.

    """
    visible = len(machine.visible)
    if not visible:
        return _without_gpus(machine, workers)
    each = gpus_per_worker or 1
    if workers * each > visible:
        # Only the script knows which worker uses which.
        plural = "" if visible == 1 else "s"
        why = f"not bound: {workers} workers for {visible} GPU{plural}"
        return (_unbound((), why, machine),) * workers
    blocks = (machine.visible[at : at + each] for at in range(0, workers * each, each))
    return tuple(_of_gpus(machine, block) for block in blocks)


def _without_gpus(machine: Machine, workers: int) -> tuple[Home, ...]:
    """Spread the workers over the nodes, where there are at least as many as nodes."""
    nodes = [node for node in machine.nodes if node.cpus & machine.allowed]
    # Of CPUs that no node lists, binding would make nothing.
    lost = machine.allowed - CpuSet.union_of(node.cpus for node in nodes)
    if not nodes or lost or workers < len(nodes):
        plural = "" if workers == 1 else "s"
        why = f"not bound: {workers} worker{plural} for {len(nodes)} NUMA nodes"
        if lost:
            why = f"not bound: no NUMA node has CPUs {CpuSet(lost)}"
        return (_unbound((), why, machine, is_usual=True),) * workers
    at = {node.id: Home((), (_spot_at(node),)) for node in nodes}
    return tuple(at[node.id] for node in spread(machine, nodes, workers))


def _of_gpus(machine: Machine, gpus: tuple[Gpu, ...]) -> Home:
    spots = [spot_of(machine, gpu) for gpu in gpus]
    known = tuple(spot for spot in spots if spot is not None)
    if len(known) < len(gpus):
        why = "not bound: nothing tells which NUMA node its GPU is local to"
        return _unbound(gpus, why, machine)
    home = Home(gpus, known)
    if home.cpus & machine.allowed:
        return home
    which = ", ".join(_where(gpu, spot) for gpu, spot in zip(gpus, known, strict=True))
    why = f"not bound: {which} but this job may only use {machine.allowed}"
    return _unbound(gpus, why, machine)


def _unbound(gpus: tuple[Gpu, ...], why: str, machine: Machine, *, is_usual: bool = False) -> Home:
    if not machine.nodes:
        return Home(gpus, (), "not bound: the kernel shows no NUMA nodes")
    return Home(gpus, (), why, is_usual=is_usual)


def spot_of(machine: Machine, gpu: Gpu) -> Spot | None:
    """Return where a GPU is; None where nothing tells."""
    if gpu.mapped_cpus:
        nodes = tuple(node.id for node in machine.nodes if node.cpus & gpu.mapped_cpus)
        return Spot(nodes, gpu.mapped_cpus, is_pinned=True)
    at = (_spot_at(node) for node in machine.nodes if node.id == gpu.numa_node and node.cpus)
    return next(at, None)


def _spot_at(node: NumaNode) -> Spot:
    return Spot((node.id,), node.cpus, is_pinned=False)


def _where(gpu: Gpu, spot: Spot) -> str:
    if spot.is_pinned:
        return f"GPU {gpu.index} is mapped to CPUs {spot.cpus}"
    return f"GPU {gpu.index} is local to node {gpu.numa_node}"
