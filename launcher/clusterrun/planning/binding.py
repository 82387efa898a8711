"""Chooses the CPUs and the memory of each worker of a node (docs/binding.md S4 to S6)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import assert_never

from msgspec.structs import replace

from clusterrun.bounds import counted
from clusterrun.cpuset import CpuSet
from clusterrun.job.options import NumaBinding, NumaMemory
from clusterrun.machine.machine import Machine, NumaNode
from clusterrun.planning.placement import (
    BindingRequest,
    LocalCpus,
    Placement,
    assign,
    core_by_cpu,
    cores_of,
    joined,
    usable,
)
from clusterrun.planning.plan import MemoryPolicy

Group = tuple[CpuSet, ...]
"""The masks that include some core; cores with the same masks are interchangeable."""


def bind_own_workers(machine: Machine, request: BindingRequest) -> tuple[Placement, ...]:
    """Return this agent's workers with their GPUs, CPUs and memory, by local rank."""
    placed = zip(request.slots, bind_workers(machine, request), strict=True)
    return tuple(placement for slot, placement in placed if slot.is_ours)


def bind_workers(machine: Machine, request: BindingRequest) -> list[Placement]:
    """Return the worker of each slot with its GPUs, CPUs and memory.

    Other jobs' and tasks' workers are planned too, so that all of them divide the node's CPUs as one
    job would.
    """
    placed = _bound(machine, request, assign(machine, request))
    if request.memory is not NumaMemory.NONE:
        return [_with_memory(machine, request, worker) for worker in placed]
    if request.mode is NumaBinding.NONE:
        # Without binding, the GPUs' NUMA node matters only for a memory policy.
        return [replace(worker, warning="") for worker in placed]
    return placed


def _bound(machine: Machine, request: BindingRequest, workers: list[Placement]) -> list[Placement]:
    if request.mode in {NumaBinding.AUTO, NumaBinding.NEAR}:
        return _near(machine, request, workers)
    workers = [usable(machine, worker) for worker in workers]
    match request.mode:
        case NumaBinding.NONE:
            return [replace(worker, why_unbound="") for worker in workers]
        case NumaBinding.NODE:
            bound = _with_masks(workers, _of_node(machine, workers))
        case NumaBinding.SOCKET:
            bound = _with_masks(workers, _of_socket(machine, workers))
            bound = [_add_warning(worker, _no_package(machine, worker)) for worker in bound]
        case NumaBinding.EXCLUSIVE | NumaBinding.CORE_COMPLEX:
            # Few jobs use these modes.
            from clusterrun.planning.exclusive import divide

            by_cache = request.mode is NumaBinding.CORE_COMPLEX
            return divide(machine, workers, by_cache=by_cache)
        case _:
            assert_never(request.mode)
    return _with_warnings(machine, bound)


def _near(machine: Machine, request: BindingRequest, workers: list[Placement]) -> list[Placement]:
    """Return all workers bound by one rule: the narrowest that makes no worker worse off (decision 8).

    The rules are near, the socket, and no binding. CPUs from --numa-map are never changed.
    """
    workers = [usable(machine, it) if it.is_mapped else it for it in workers]
    why = ""
    for rule in (_of_node if request.hides_others else _of_near, _of_socket):
        bound = _with_masks(workers, rule(machine, workers))
        worse = _why_worse(machine, bound)
        if not worse:
            warning = why and f"bound to its socket, not its NUMA node: {why}"
            return _with_warnings(machine, [_add_warning(worker, warning) for worker in bound])
        why = why or worse
    bound = _with_masks(workers, _of_node(machine, workers))
    unbound = (it if it.is_mapped else replace(it, cpus=None) for it in bound)
    return _with_warnings(machine, [_add_warning(it, f"not bound: {why}") for it in unbound])


def _why_worse(machine: Machine, bound: Sequence[Placement]) -> str:
    """Return why some worker is better off without binding; "" if none is."""
    own = [worker for worker in bound if not worker.is_other and not worker.is_mapped]
    if unusable := {node for worker in own if not worker.cpus for node in worker.local_nodes}:
        nodes = ",".join(map(str, sorted(unusable)))
        where = (
            f"GPUs are local to NUMA nodes {nodes}"
            if len(unusable) > 1
            else f"a GPU is local to NUMA node {nodes}"
        )
        return f"{where}, but this job may use CPUs {machine.allowed} only"
    masks = [worker.cpus for worker in own]
    others = [worker.cpus for worker in bound if worker.is_other]
    shares = CoreShares(machine, masks)
    for overfull in shares.overfull_sets():
        return shares.sentence(overfull, is_bound=False)
    shares = CoreShares(machine, masks, others)
    for overfull in shares.overfull_sets():
        counting = "(a GPU of others counts as a worker)"
        return f"{shares.sentence(overfull, is_bound=False)} {counting}"
    return ""


def _with_masks(workers: Iterable[Placement], masks: Mapping[LocalCpus, CpuSet]) -> list[Placement]:
    """Return the workers, each bound to the union of the masks of its local CPUs."""
    return [
        replace(worker, cpus=joined([masks[local] for local in worker.local_cpus]) or None)
        for worker in workers
    ]


def _with_warnings(machine: Machine, bound: list[Placement]) -> list[Placement]:
    """Return the workers with a warning for those that share too few cores."""
    shares = CoreShares(machine, [worker.cpus for worker in bound if not worker.is_other])
    few: dict[CpuSet, str] = {}
    for overfull in shares.overfull_sets():
        few |= dict.fromkeys(overfull, shares.sentence(overfull, is_bound=True))
    return [_add_warning(it, few.get(it.cpus)) if it.cpus else it for it in bound]


def _add_warning(worker: Placement, warning: str | None) -> Placement:
    """Add a warning to a worker of this job that has local CPUs."""
    if not warning or worker.is_other or not worker.local_cpus:
        return worker
    return replace(worker, warning="; ".join(filter(None, [worker.warning, warning])))


def _no_package(machine: Machine, worker: Placement) -> str:
    local_cpus = [local for local in worker.local_cpus if not local.is_mapped]
    is_known = all(_packages_of(machine, local.cpus) for local in local_cpus)
    if is_known or worker.cpus == machine.allowed:
        return ""
    return "bound to its NUMA node, not its socket: the machine's sockets are unknown"


def _of_node(machine: Machine, workers: Iterable[Placement]) -> dict[LocalCpus, CpuSet]:
    # Each once, because most workers share them and operations on large sets take time.
    local_cpus = dict.fromkeys(local for worker in workers for local in worker.local_cpus)
    return {local: CpuSet(local.cpus & machine.allowed) for local in local_cpus}


def _of_socket(machine: Machine, workers: Iterable[Placement]) -> dict[LocalCpus, CpuSet]:
    masks = _of_node(machine, workers)
    for local in masks:
        if not local.is_mapped:
            packages = CpuSet.union_of([local.cpus, *_packages_of(machine, local.cpus)])
            masks[local] = CpuSet(packages & machine.allowed)
    return masks


def _packages_of(machine: Machine, cpus: CpuSet) -> list[CpuSet]:
    """Return the packages that contain some of ``cpus``."""
    return [package for package in machine.packages if package & cpus]


def _of_near(machine: Machine, workers: Sequence[Placement]) -> dict[LocalCpus, CpuSet]:
    """Return the local CPUs of each worker, extended by idle NUMA nodes of the same package.

    Each idle node is added to the nearest node with workers. If there are fewer idle nodes than
    nearest nodes, the cores of the idle nodes are divided among the nearest nodes.
    """
    # CPUs that are not allowed count here, so that reserving cores for the system moves no others.
    local_cpus = dict.fromkeys(local for worker in workers for local in worker.local_cpus)
    own = {node for local in local_cpus if not local.is_mapped for node in local.nodes}
    used = {node for local in local_cpus for node in local.nodes}
    owners = [node for node in machine.nodes if node.id in own]
    extended = {node.id: node.cpus for node in owners}
    sharers = Counter(
        node
        for worker in workers
        for node in {n for local in worker.local_cpus if not local.is_mapped for n in local.nodes}
    )
    idle = [node for node in machine.nodes if node.id not in used and node.cpus]
    nearest = {node.id: _nearest_owners(node, machine, owners) for node in idle}
    for node in idle:
        takers = nearest[node.id]
        together = [other for other in idle if nearest[other.id] == takers]
        if len(together) >= len(takers):
            _add(takers, [node.cpus], extended, sharers)
        elif node is together[0]:
            cpus = CpuSet.union_of(other.cpus for other in together)
            _add(takers, cores_of(machine, cpus), extended, sharers)
    allowed = {number: CpuSet(cpus & machine.allowed) for number, cpus in extended.items()}
    return {
        local: CpuSet(local.cpus & machine.allowed) if local.is_mapped else allowed[local.nodes[0]]
        for local in local_cpus
    }


def _nearest_owners(idle: NumaNode, machine: Machine, owners: Iterable[NumaNode]) -> list[int]:
    """Return the nearest nodes with workers in the package of ``idle``; [] if the package is unknown."""
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
    """Add each unit (a node or a core) to the node whose workers have the fewest CPUs each."""
    if not takers:
        return
    sizes = {node: len(extended[node]) for node in takers}
    turns = []
    for unit in units:
        smallest = min(takers, key=lambda node: (sizes[node] / sharers[node], node))
        sizes[smallest] += len(unit)
        turns.append(smallest)
    # Sorted, so that neighbouring units go to the same node.
    for node, unit in zip(sorted(turns), units, strict=True):
        extended[node] = CpuSet(extended[node] | unit)


def _with_memory(machine: Machine, request: BindingRequest, worker: Placement) -> Placement:
    nodes_near = set(worker.local_nodes)
    if nodes_near and request.memory is NumaMemory.BIND and request.mode is not NumaBinding.NONE:
        # Include all nodes with its CPUs, because the OOM killer acts when the bound nodes are full.
        cpus = worker.cpus or machine.allowed
        nodes_near |= {node.id for node in machine.nodes if node.cpus & cpus}
    has_memory = {node.id for node in machine.nodes if node.cpus and node.has_memory}
    nodes = tuple(sorted(nodes_near & has_memory))
    if nodes:
        return replace(worker, memory=MemoryPolicy(request.memory.value, nodes))
    why = "no memory policy: it has no NUMA node"
    if worker.local_nodes:
        unusable = ",".join(map(str, worker.local_nodes))
        why = f"no memory policy: this job may not use the memory of NUMA node {unusable}"
    return replace(worker, warning="; ".join(filter(None, [worker.warning, why])))


class CoreShares:
    """How many cores each worker has if each is bound to its mask (decision 8)."""

    def __init__(
        self,
        machine: Machine,
        masks: Iterable[CpuSet | None],
        others: Iterable[CpuSet | None] = (),
    ) -> None:
        """``masks`` are our workers' CPUs, ``others`` those of other jobs' workers; None: not bound."""
        own = Counter(mask or machine.allowed for mask in masks)
        self._own = own.keys()
        # Others first, because our workers get what these leave.
        self._workers = Counter(mask or machine.allowed for mask in others) + own
        core_of = core_by_cpu(machine)
        self._cores_of = {
            mask: frozenset(core_of.get(cpu, -1 - cpu) for cpu in mask)
            for mask in {machine.allowed, *self._workers}
        }
        masks_at: dict[int, list[CpuSet]] = defaultdict(list)
        for mask in self._workers:
            for core in self._cores_of[mask]:
                masks_at[core].append(mask)
        self._groups = Counter(map(tuple, masks_at.values()))
        """The number of cores of each group."""
        self._groups_of: dict[CpuSet, list[Group]] = defaultdict(list)
        for group in self._groups:
            for mask in group:
                self._groups_of[mask].append(group)
        self._all_cores = len(self._cores_of[machine.allowed])
        self._all_workers = self._workers.total()
        self.even = self._all_cores / max(1, self._all_workers)
        """The cores of each worker if none is bound."""

    def of(self, mask: CpuSet) -> float:
        """Return the cores of a mask, per worker whose mask lies within it."""
        cores = self._cores_of[mask]
        overlapping = {other for group in self._groups_of[mask] for other in group}
        return len(cores) / sum(
            self._workers[other] for other in overlapping if self._cores_of[other] <= cores
        )

    def overfull_sets(self) -> Iterator[list[CpuSet]]:
        """Yield sets of masks, each with one of ours, that have too few cores together.

        That is, their workers can't each have a core, or as much of a core as without binding.
        """
        if self._all_cores < self._all_workers:
            return self._overfull_sets(self._all_cores, self._all_workers)
        return self._overfull_sets(1, 1)

    def whole_cores(self) -> int:
        """Return how many cores each worker can have for itself."""
        cores = self._all_cores // self._all_workers
        while cores and (overfull := next(self._overfull_sets(cores, 1), None)):
            cores = self._cores(overfull) // self._count(overfull)
        return cores

    def used(self) -> CpuSet:
        """Return the CPUs of all masks."""
        return CpuSet.union_of(self._workers)

    def sentence(self, overfull: Sequence[CpuSet], *, is_bound: bool) -> str:
        """Return how few cores the workers of these masks share, or would share if they were bound."""
        count = self._count(overfull)
        have = "has" if count == 1 else "share"
        would = have if is_bound else "would have" if count == 1 else "would share"
        cores = f"{counted(count, 'worker')} {would} {counted(self._cores(overfull), 'core')}"
        even = f"{round(self.even, 1):g}"
        each = f"{'it' if count == 1 else 'each'} {'would have' if is_bound else 'has'} {even}"
        return f"{cores} (CPUs {CpuSet.union_of(overfull)}); without binding {each}"

    def _within(self, masks: Iterable[CpuSet]) -> list[CpuSet]:
        """Return all masks that lie within the union of these masks."""
        cores = frozenset[int]().union(*(self._cores_of[mask] for mask in masks))
        return [mask for mask in self._workers if self._cores_of[mask] <= cores]

    def _cores(self, overfull: Iterable[CpuSet]) -> int:
        return len(frozenset[int]().union(*(self._cores_of[mask] for mask in overfull)))

    def _count(self, overfull: Iterable[CpuSet]) -> int:
        return sum(self._workers[mask] for mask in overfull)

    def _overfull_sets(self, need: int, supply: int) -> Iterator[list[CpuSet]]:
        """Yield sets of masks with too few cores if a worker needs ``need`` units and a core has ``supply``.

        This is a maximum flow from workers to cores (Ford-Fulkerson). If no augmenting path is left
        for a mask, the masks reached from it have too few cores.
        """
        free = {group: count * supply for group, count in self._groups.items()}
        taken: Counter[tuple[CpuSet, Group]] = Counter()
        for mask, workers in self._workers.items():
            missing = workers * need
            while missing:
                path, reached = self._path(mask, free, taken)
                if not path:
                    full = self._within(reached)
                    if self._own & full:
                        yield full
                    break
                last = path[-1][1]
                amount = min(
                    missing,
                    free[last],
                    *(taken[taker, group] for (_, group), (taker, _) in pairwise(path)),
                )
                missing -= amount
                free[last] -= amount
                for taker, group in path:
                    taken[taker, group] += amount
                for (_, group), (taker, _) in pairwise(path):
                    taken[taker, group] -= amount

    def _path(
        self, mask: CpuSet, free: Mapping[Group, int], taken: Mapping[tuple[CpuSet, Group], int]
    ) -> tuple[list[tuple[CpuSet, Group]], list[CpuSet]]:
        """Return an augmenting path from ``mask`` to a group with free cores, and the masks reached.

        Each mask of the path takes cores of its group from the next mask. The path is [] if no cores
        can be freed for ``mask``.
        """
        paths: dict[CpuSet, list[tuple[CpuSet, Group]]] = {mask: []}
        queue, seen = [mask], set[Group]()
        for taker in queue:
            for group in self._groups_of[taker]:
                if group in seen:
                    continue
                seen.add(group)
                path = [*paths[taker], (taker, group)]
                if free[group]:
                    return path, queue
                for other in group:
                    if other not in paths and taken[other, group]:
                        paths[other] = path
                        queue.append(other)
        return [], queue


def threads_per_worker(machine: Machine, placements: Sequence[Placement]) -> int:
    """Return the physical cores that every worker of this node can have for itself, at least 1.

    It is one number for the node, the minimum over its workers: the OpenMP runtime reads it when it
    is loaded, which for forked workers is before the fork. A cgroup's CPU limit is included
    (docs/binding.md S8, decision 7).
    """
    cores = CoreShares(machine, [placement.cpus for placement in placements]).whole_cores()
    if machine.cpu_quota is not None:
        cores = min(cores, int(machine.cpu_quota / len(placements)))
    return max(1, cores)
