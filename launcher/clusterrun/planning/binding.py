"""The CPUs and the memory of each worker of a node (docs/binding.md S4 to S6), by pure functions."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
    assign_others,
    core_counter,
    cores_of,
    joined,
)
from clusterrun.planning.plan import MemoryPolicy


def place(machine: Machine, request: BindingRequest) -> tuple[Placement, ...]:
    """Return the workers of this node, by local rank, each with its GPUs, CPUs and memory."""
    return place_all(machine, request)[0]


def place_all(
    machine: Machine, request: BindingRequest
) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
    """Return the workers of this node, and those that other jobs or tasks may have beside them.

    All are planned together, so that jobs and tasks that share a node stay apart, and use its CPUs
    as one job would.
    """
    own = assign(machine, request)
    placed = _bound(machine, request, [*own, *assign_others(machine, own)])
    count = len(own)
    workers, others = placed[:count], placed[count:]
    if request.memory is not NumaMemory.NONE:
        workers = [_with_memory(machine, request, worker) for worker in workers]
    elif request.mode is NumaBinding.NONE:
        # Without binding, the NUMA node of the GPUs matters for a memory policy only.
        workers = [replace(worker, remark="") for worker in workers]
    return tuple(workers), tuple(others)


def _bound(machine: Machine, request: BindingRequest, workers: list[Placement]) -> list[Placement]:
    match request.mode:
        case NumaBinding.NONE:
            return [replace(worker, why_unbound="") for worker in workers]
        case NumaBinding.NODE:
            return _shared(machine, request, workers, _of_node(machine, workers))
        case NumaBinding.AUTO | NumaBinding.NEAR:
            masks = (_of_node if request.unseen else _of_near)(machine, workers)
            return _shared(machine, request, workers, masks)
        case NumaBinding.SOCKET:
            return _shared(machine, request, workers, _of_socket(machine, workers))
        case NumaBinding.EXCLUSIVE | NumaBinding.CORE_COMPLEX:
            # Few jobs ask for CPUs of their own.
            from clusterrun.planning.exclusive import divide

            by_cache = request.mode is NumaBinding.CORE_COMPLEX
            return divide(machine, workers, by_cache=by_cache)
        case _:
            assert_never(request.mode)


def _shared(
    machine: Machine,
    request: BindingRequest,
    workers: Sequence[Placement],
    masks: Mapping[LocalCpus, CpuSet],
) -> list[Placement]:
    """Return the workers bound to the masks of their local CPUs, with a remark if they share too few cores.

    Auto and near leave those unbound to whom binding does harm (decision 8): they share too few
    cores with each other, or have under half of what is there for each, other jobs included.
    Workers without GPUs are spread by cores already, and CPUs from --numa-map stay as they are.
    """
    cpus = [joined([masks[local] for local in worker.local_cpus]) for worker in workers]
    of_job = [own for worker, own in zip(workers, cpus, strict=True) if not worker.is_other]
    shares, ours = Shares(machine, cpus, request.unseen), Shares(machine, of_job)
    short = {mask for mask in set(of_job) if mask and ours.is_short(mask)}
    poor = {mask for mask in set(cpus) if mask and shares.is_under_half(mask)}
    counting = (
        " (a GPU of others counts as a worker)" if len(of_job) < len(cpus) + request.unseen else ""
    )
    is_near = request.mode in {NumaBinding.AUTO, NumaBinding.NEAR}
    bound = []
    for worker, own in zip(workers, cpus, strict=True):
        is_mapped = any(local.is_mapped for local in worker.local_cpus)
        may_unbind = is_near and worker.gpus and not is_mapped
        if not own:
            bound.append(worker)
        elif may_unbind and own in short:
            why = ours.sentence(own, is_bound=False)
            bound.append(replace(worker, remark=f"not bound: {why}"))
        elif may_unbind and own in poor:
            why = shares.sentence(own, is_bound=False) + counting
            bound.append(replace(worker, remark=f"not bound: {why}"))
        else:
            remarks = (
                [_no_package(machine, worker, own)] if request.mode is NumaBinding.SOCKET else []
            )
            if own in short and worker.gpus:
                remarks.append(ours.sentence(own, is_bound=True))
            bound.append(replace(worker, cpus=own, remark="; ".join(filter(None, remarks))))
    return bound


def _no_package(machine: Machine, worker: Placement, cpus: CpuSet) -> str:
    local_cpus = [local for local in worker.local_cpus if not local.is_mapped]
    is_known = all(_packages_of(machine, local.cpus) for local in local_cpus)
    if is_known or cpus == machine.allowed:
        return ""
    return "bound to its NUMA node, not its package: the machine's packages are unknown"


def _of_node(machine: Machine, workers: Iterable[Placement]) -> dict[LocalCpus, CpuSet]:
    # Most workers share theirs, and large sets take time.
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
    """Return the packages that some of ``cpus`` are in."""
    return [package for package in machine.packages if package & cpus]


def _of_near(machine: Machine, workers: Sequence[Placement]) -> dict[LocalCpus, CpuSet]:
    """Return the local CPUs of each worker, and those of idle nodes of the same package.

    Each idle node is added to the nearest node with workers. If there are fewer idle nodes than
    nearest nodes, the cores of the idle nodes are divided among these.
    """
    masks = _of_node(machine, workers)
    own = {node for local in masks if not local.is_mapped for node in local.nodes}
    used = {node for local in masks for node in local.nodes}
    owners = [node for node in machine.nodes if node.id in own]
    extended = {node.id: CpuSet(node.cpus & machine.allowed) for node in owners}
    sharers = Counter(
        node
        for worker in workers
        for node in {n for local in worker.local_cpus if not local.is_mapped for n in local.nodes}
    )
    idle = [node for node in machine.nodes if node.id not in used and node.cpus & machine.allowed]
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
        local: mask if local.is_mapped else extended[local.nodes[0]]
        for local, mask in masks.items()
    }


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


def _with_memory(machine: Machine, request: BindingRequest, worker: Placement) -> Placement:
    nodes_near = set(worker.nodes)
    if nodes_near and request.memory is NumaMemory.BIND and request.mode is not NumaBinding.NONE:
        # All that it may use is on these nodes: the OOM killer acts when they are full.
        cpus = worker.cpus or machine.allowed
        nodes_near |= {node.id for node in machine.nodes if node.cpus & cpus}
    has_memory = {node.id for node in machine.nodes if node.cpus and node.has_memory}
    nodes = tuple(sorted(nodes_near & has_memory))
    if nodes:
        return replace(worker, memory=MemoryPolicy(request.memory.value, nodes))
    why = "no memory policy: it has no NUMA node"
    if worker.nodes:
        unusable = ",".join(map(str, worker.nodes))
        why = f"no memory policy: this job may not use the memory of node {unusable}"
    return replace(worker, remark="; ".join(filter(None, [worker.remark, why])))


class Shares:
    """The number of cores that a worker has to itself, if each is bound to its mask.

    Workers in a mask are those that can run nowhere else. ``even`` is the share of a worker if none
    is bound.
    """

    def __init__(self, machine: Machine, masks: Iterable[CpuSet | None], unseen: int = 0) -> None:
        """Take the CPUs of each worker; None or empty: it is not bound. Of ``unseen`` none are known."""
        self._cores = core_counter(machine)
        self._workers = Counter(mask or machine.allowed for mask in masks)
        self.even = self._cores(machine.allowed) / (self._workers.total() + unseen)
        self._masks_at: dict[int, list[CpuSet]] = defaultdict(list)
        for mask in self._workers:
            for cpu in mask:
                self._masks_at[cpu].append(mask)

    def of(self, mask: CpuSet) -> float:
        return self._cores(mask) / self._workers_in(mask)

    def is_short(self, mask: CpuSet) -> bool:
        """Return whether a worker has less than a core, and would have more without binding."""
        return self.of(mask) < min(1.0, self.even)

    def is_under_half(self, mask: CpuSet) -> bool:
        """Return whether a worker would have more than twice as many cores without binding."""
        return self.of(mask) < self.even / 2

    def least(self) -> float:
        """Return a share that no worker exceeds if all use it."""
        shares = []
        for mask in self._workers:
            # Firmware tables may let nodes overlap: workers of an overlapping mask use these CPUs, too.
            meeting = self._meeting(mask)
            workers = sum(self._workers[other] for other in meeting)
            shares += [self.of(mask), self._cores(joined(list(meeting))) / workers]
        return min(shares)

    def used(self) -> CpuSet:
        """Return the CPUs that some worker may use."""
        return CpuSet.union_of(self._workers)

    def sentence(self, mask: CpuSet, *, is_bound: bool) -> str:
        """Return how few cores the workers in ``mask`` have there, or would have."""
        count = self._workers_in(mask)
        have = "has" if count == 1 else "share"
        would = have if is_bound else "would have" if count == 1 else "would share"
        cores = f"{counted(count, 'worker')} {would} {counted(self._cores(mask), 'core')}"
        even = f"{round(self.even, 1):g}"
        each = f"{'it' if count == 1 else 'each'} {'would have' if is_bound else 'has'} {even}"
        return f"{cores} (CPUs {mask}); without binding {each}"

    def _meeting(self, mask: CpuSet) -> set[CpuSet]:
        """Return the masks that have some CPU of ``mask``, itself included."""
        return {mask, *(other for cpu in mask for other in self._masks_at[cpu])}

    def _workers_in(self, mask: CpuSet) -> int:
        return sum(self._workers[other] for other in self._meeting(mask) if other <= mask)


def threads_per_worker(machine: Machine, placements: Sequence[Placement]) -> int:
    """Return the physical cores that every worker of this node can have to itself, at least 1.

    It is one number for the node, the smallest of all workers: the OpenMP runtime reads it when it
    is loaded, and in a forked worker that was before the fork. A cgroup's CPU limit counts, too
    (docs/binding.md S8, decision 7).
    """
    share = Shares(machine, [placement.cpus for placement in placements]).least()
    if machine.cpu_quota is not None:
        share = min(share, machine.cpu_quota / len(placements))
    return max(1, int(share))
