"""The CPUs and the memory of each worker of a node (docs/binding.md S4 to S6), by pure functions."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.domain.counts import counted
from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine, NumaNode
from clusterrun.domain.plan import MemoryPolicy
from clusterrun.job.options import NumaBinding, NumaMemory
from clusterrun.planning.exclusive import divide
from clusterrun.planning.places import (
    Place,
    Placement,
    Request,
    assign,
    core_counter,
    cores_of,
    hidden_gpus,
    joined,
)


def place(machine: Machine, request: Request) -> tuple[Placement, ...]:
    """Return the workers of this node, by local rank, each with its GPUs, CPUs and memory."""
    workers = _bound(machine, request.mode, assign(machine, request))
    if request.memory is not NumaMemory.NONE:
        return tuple(_with_memory(machine, request.memory, worker) for worker in workers)
    if request.mode is NumaBinding.NONE:
        # Without binding, the place of the GPUs matters for a memory policy only.
        return tuple(replace(worker, remark="") for worker in workers)
    return tuple(workers)


def _bound(machine: Machine, mode: NumaBinding, workers: list[Placement]) -> list[Placement]:
    match mode:
        case NumaBinding.NONE:
            return [replace(worker, why_unbound="") for worker in workers]
        case NumaBinding.NODE:
            return _shared(machine, workers, _of_node(machine, workers))
        case NumaBinding.AUTO | NumaBinding.NEAR:
            masks = _of_near(machine, workers)
            return _shared(machine, workers, masks, unbind_if_short=True)
        case NumaBinding.SOCKET:
            return _shared(machine, workers, _of_socket(machine, workers), is_socket=True)
        case NumaBinding.EXCLUSIVE | NumaBinding.CORE_COMPLEX:
            return divide(machine, workers, by_cache=mode is NumaBinding.CORE_COMPLEX)
        case _:
            assert_never(mode)


def _shared(
    machine: Machine,
    workers: Sequence[Placement],
    masks: Mapping[Place, CpuSet],
    *,
    unbind_if_short: bool = False,
    is_socket: bool = False,
) -> list[Placement]:
    """Return the workers bound to the masks of their places, with a remark if these have too few cores.

    ``unbind_if_short`` unbinds those. Workers without GPUs are spread by cores already, and CPUs
    from --numa-map stay as they are.
    """
    cpus = [joined([masks[place] for place in worker.places]) for worker in workers]
    short = shortages(machine, cpus)
    bound = []
    for worker, own in zip(workers, cpus, strict=True):
        shortage = short.get(own) if worker.gpus else None
        is_mapped = any(place.is_mapped for place in worker.places)
        if not own:
            bound.append(worker)
        elif shortage and unbind_if_short and not is_mapped:
            remark = f"not bound: {shortage.workers} workers would share {shortage.cores}"
            bound.append(replace(worker, remark=remark))
        else:
            remarks = [_no_package(machine, worker, own)] if is_socket else []
            remarks += [f"{shortage.workers} workers share {shortage.cores}"] if shortage else []
            bound.append(replace(worker, cpus=own, remark="; ".join(filter(None, remarks))))
    return bound


def _no_package(machine: Machine, worker: Placement, cpus: CpuSet) -> str:
    places = [place for place in worker.places if not place.is_mapped]
    is_known = all(_packages_of(machine, place.cpus) for place in places)
    if is_known or cpus == machine.allowed:
        return ""
    return "bound to its node, not its package: the machine's packages are unknown"


def _places(workers: Iterable[Placement]) -> dict[Place, None]:
    return {place: None for worker in workers for place in worker.places}


def _of_node(machine: Machine, workers: Iterable[Placement]) -> dict[Place, CpuSet]:
    return {place: CpuSet(place.cpus & machine.allowed) for place in _places(workers)}


def _of_socket(machine: Machine, workers: Iterable[Placement]) -> dict[Place, CpuSet]:
    masks = _of_node(machine, workers)
    for place in masks:
        if not place.is_mapped:
            packages = CpuSet.union_of([place.cpus, *_packages_of(machine, place.cpus)])
            masks[place] = CpuSet(packages & machine.allowed)
    return masks


def _packages_of(machine: Machine, cpus: CpuSet) -> list[CpuSet]:
    """Return the packages that some of ``cpus`` are in."""
    return [package for package in machine.packages if package & cpus]


def _of_near(machine: Machine, workers: Sequence[Placement]) -> dict[Place, CpuSet]:
    """Return for each place its CPUs, and those of idle nodes of the same package.

    Each idle node is added to the nearest node with workers. If there are fewer idle nodes than
    nearest nodes, the cores of the idle nodes are divided among these.
    """
    masks = _of_node(machine, workers)
    own = {node for place in masks if not place.is_mapped for node in place.nodes}
    used = {node for place in masks for node in place.nodes}
    owners = [node for node in machine.nodes if node.id in own]
    extended = {node.id: CpuSet(node.cpus & machine.allowed) for node in owners}
    sharers = Counter(
        node
        for worker in workers
        for node in {n for place in worker.places if not place.is_mapped for n in place.nodes}
    )
    idle = [
        node
        for node in machine.nodes
        if node.id not in used and node.cpus & machine.allowed and not _is_for_others(node, machine)
    ]
    nearest = {node.id: _nearest_owners(node, machine, owners) for node in idle}
    for node in idle:
        takers = nearest[node.id]
        together = [other for other in idle if nearest[other.id] == takers]
        if len(together) >= len(takers):
            _add(takers, [CpuSet(node.cpus & machine.allowed)], extended, sharers)
        elif node is together[0]:
            cpus = CpuSet.union_of(other.cpus for other in together)
            _add(takers, cores_of(machine, CpuSet(cpus & machine.allowed)), extended, sharers)
    return {
        place: mask if place.is_mapped else extended[place.nodes[0]]
        for place, mask in masks.items()
    }


def _is_for_others(idle: NumaNode, machine: Machine) -> bool:
    """Return whether the node has a GPU that is hidden from this job, and no cpuset divides the node."""
    is_whole = idle.cpus <= machine.allowed
    return is_whole and any(gpu.numa_node == idle.id for gpu in hidden_gpus(machine))


def _nearest_owners(idle: NumaNode, machine: Machine, owners: Iterable[NumaNode]) -> list[int]:
    """Return the nearest nodes with workers in the package of ``idle``; [] if that is unknown."""
    package = CpuSet.union_of(_packages_of(machine, idle.cpus))
    distances = {node.id: idle.distances.get(node.id, 0) for node in owners if node.cpus & package}
    least = min(distances.values(), default=0)
    return sorted(node for node, distance in distances.items() if distance == least)


def _add(
    takers: Sequence[int],
    units: Sequence[CpuSet],
    extended: dict[int, CpuSet],
    sharers: Mapping[int, int],
) -> None:
    """Add each unit of CPUs to the node whose workers have the fewest CPUs each."""
    if not takers:
        return
    sizes = {node: len(extended[node]) for node in takers}
    turns = []
    for unit in units:
        smallest = min(takers, key=lambda node: (sizes[node] / sharers[node], node))
        sizes[smallest] += len(unit)
        turns.append(smallest)
    # Neighbouring units go to the same node.
    for node, unit in zip(sorted(turns), units, strict=True):
        extended[node] = CpuSet(extended[node] | unit)


def _with_memory(machine: Machine, mode: NumaMemory, worker: Placement) -> Placement:
    has_memory = {node.id for node in machine.nodes if node.cpus and node.has_memory}
    nodes = tuple(node for node in worker.nodes if node in has_memory)
    if nodes:
        return replace(worker, memory=MemoryPolicy(mode.value, nodes))
    why = "no memory policy: it has no NUMA node"
    if worker.nodes:
        unusable = ",".join(map(str, worker.nodes))
        why = f"no memory policy: this job may not use the memory of node {unusable}"
    return replace(worker, remark="; ".join(filter(None, [worker.remark, why])))


class Shortage(Struct, frozen=True):
    """The workers whose CPUs are all in one mask."""

    workers: int
    cores: str
    """The cores that they share: ``1 core (CPUs 16) of the 17 that this job may use``."""


def shortages(machine: Machine, masks: Sequence[CpuSet]) -> Mapping[CpuSet, Shortage]:
    """Return the masks with fewer cores than workers, while other allowed cores have fewer workers each.

    On a machine with too few cores for all workers, no mask counts if all are equally full.
    ``masks`` has the CPUs of each worker; empty if it is not bound.
    """
    workers, count = Counter(masks), core_counter(machine)
    total, allowed = len(masks), count(machine.allowed)
    found = {}
    for mask in filter(None, workers):
        inside = sum(number for other, number in workers.items() if other and other <= mask)
        cores = count(mask)
        if inside > cores and inside * (allowed - cores) > (total - inside) * cores:
            share = counted(cores, "core")
            share += f" (CPUs {mask}) of the {allowed} that this job may use"
            found[mask] = Shortage(inside, share)
    return found


def threads_per_worker(machine: Machine, placements: Sequence[Placement]) -> int:
    """Return the physical cores that every worker of this node can have to itself, at least 1.

    It is one number for the node, the smallest of all workers: the OpenMP runtime reads it when it
    is loaded, and in a forked worker that was before the fork. A cgroup's CPU limit counts, too
    (docs/binding.md S8, decision 7).
    """
    count = core_counter(machine)
    masks = Counter(placement.cpus for placement in placements)
    unbound = masks.pop(None, 0)
    shares = [count(machine.allowed) // len(placements)] if unbound else []
    shares += _shares_of({mask: number for mask, number in masks.items() if mask}, machine)
    if machine.cpu_quota is not None:
        shares.append(int(machine.cpu_quota / len(placements)))
    return max(1, min(shares))


def _shares_of(masks: Mapping[CpuSet, int], machine: Machine) -> Iterator[int]:
    """Yield for each mask the cores per worker; ``masks`` has the number of workers of each."""
    count = core_counter(machine)
    on_cpu: dict[int, list[CpuSet]] = defaultdict(list)
    for mask in masks:
        for cpu in mask:
            on_cpu[cpu].append(mask)
    for mask in masks:
        # Firmware tables may let nodes overlap: workers of an overlapping mask use these CPUs, too.
        meeting = {other for cpu in mask for other in on_cpu[cpu]}
        yield count(mask) // sum(masks[other] for other in meeting)
