"""CPUs that only one worker may use (docs/binding.md S5: exclusive, core-complex)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from clusterrun.domain.counts import counted
from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine
from clusterrun.planning.binding.cores import cores_of, first_of_cache
from clusterrun.planning.binding.gpu_assignment import (
    Assignment,
    LocalCpus,
    Mask,
    gpus_of_jobs,
    local_cpus_of,
)


class _Claim(Struct, frozen=True):
    """One GPU of one worker, or a worker without GPUs, that gets a part of a pool."""

    worker: int
    device: str
    """The physical GPU; a name of its own for a worker without GPUs."""
    local: LocalCpus


class _Pool(Struct, frozen=True):
    """CPUs that are divided among claims: of one node, of nodes that overlap, or of --numa-map."""

    claims: list[_Claim]
    cpus: CpuSet
    allowed: CpuSet

    @property
    def is_mapped(self) -> bool:
        return self.claims[0].local.is_mapped


def of_exclusive(
    machine: Machine, assignments: Sequence[Assignment], *, by_cache: bool
) -> list[Mask]:
    """Return for each worker CPUs that no other has: whole cores, or the cores of whole L3 caches.

    If there are too few, or the cores are unknown, the workers share their nodes, with a remark.
    """
    parts: dict[int, list[CpuSet]] = defaultdict(list)
    remarks: dict[int, dict[str, None]] = defaultdict(dict)
    for pool in _pools(machine, assignments):
        cpus, remark = _divide(machine, pool, by_cache=by_cache)
        for worker, part in cpus.items():
            parts[worker].append(part)
            if remark:
                remarks[worker][remark] = None
    return [Mask(_union(parts[at]), "; ".join(remarks[at])) for at in range(len(assignments))]


def _union(parts: Sequence[CpuSet]) -> CpuSet:
    # Most workers have one part; workers that share CPUs share one object.
    return parts[0] if len(parts) == 1 else CpuSet.union_of(parts)


def _pools(machine: Machine, assignments: Sequence[Assignment]) -> list[_Pool]:
    claims_of: dict[LocalCpus, list[_Claim]] = defaultdict(list)
    for worker, assignment in enumerate(assignments):
        for at, local in enumerate(assignment.local):
            device = assignment.gpus[at].device if assignment.gpus else f"worker {worker}"
            claims_of[local].append(_Claim(worker, device, local))
    found = [local for local in claims_of if local.cpus & machine.allowed]
    mapped = CpuSet.union_of(local.cpus for local in found if local.is_mapped)
    pools: list[_Pool] = []
    for local in found:
        # Firmware tables may let nodes overlap, or list all CPUs for each: these are one pool.
        overlapping = [pool for pool in pools if _overlaps(pool, local)]
        claims = [*claims_of[local], *(claim for pool in overlapping for claim in pool.claims)]
        cpus = CpuSet.union_of([local.cpus, *(pool.cpus for pool in overlapping)])
        allowed = CpuSet((cpus & machine.allowed) - (frozenset() if local.is_mapped else mapped))
        pools = [pool for pool in pools if pool not in overlapping]
        pools.append(_Pool(sorted(claims, key=lambda claim: claim.worker), cpus, allowed))
    return pools


def _overlaps(pool: _Pool, local: LocalCpus) -> bool:
    if pool.is_mapped or local.is_mapped:
        return pool.is_mapped and local.is_mapped and pool.cpus == local.cpus
    return bool(pool.cpus & local.cpus)


def _divide(machine: Machine, pool: _Pool, *, by_cache: bool) -> tuple[Mapping[int, CpuSet], str]:
    """Return the CPUs of each worker of a pool, and a remark if they are not as asked."""
    workers = {claim.worker for claim in pool.claims}
    shared = dict.fromkeys(workers, CpuSet(pool.cpus & machine.allowed))
    if not machine.cores_known:
        return shared, "shares its node: the machine's cores are unknown"
    cores = cores_of(machine, pool.allowed)
    devices = _devices(machine, pool)
    among = (
        counted(len(workers), "worker")
        if len(workers) >= len(devices)
        else counted(len(devices), "GPU")
    )
    remark = ""
    if by_cache:
        caches = _whole_caches(machine, pool, cores)
        divided = _among_workers(caches, devices, pool.claims)
        if divided is not None:
            return divided, ""
        have = counted(len(caches), "whole L3 cache")
        remark = f"has cores of its own, but no L3 cache: {have} for {among}"
    divided = _among_workers(cores, devices, pool.claims)
    if divided is None:
        return shared, f"shares its node: {counted(len(cores), 'core')} for {among}"
    return divided, remark


def _whole_caches(machine: Machine, pool: _Pool, cores: Sequence[CpuSet]) -> list[CpuSet]:
    """Return the CPUs of each L3 cache; not of one that has CPUs of other jobs, too."""
    if not machine.caches:
        return []
    others = pool.cpus - pool.allowed
    cut = CpuSet.union_of(cache for cache in machine.caches if cache & others)
    whole: dict[int, set[int]] = defaultdict(set)
    for core in cores:
        if not core & cut:
            whole[first_of_cache(machine, core)].update(core)
    return [CpuSet(cpus) for cpus in whole.values()]


def _devices(machine: Machine, pool: _Pool) -> list[str]:
    """Return the GPUs that the pool is divided among, in bus order; those of other jobs, too.

    If the job may use the whole node, but not all of its GPUs, another job may use the others: both
    compute the same parts. A cpuset with a part of the node has been divided already.
    """
    own = list(dict.fromkeys(claim.device for claim in pool.claims))
    order = {gpu.bdf: at for at, gpu in enumerate(machine.pci_gpus)}
    own.sort(key=lambda device: order.get(device, len(order)))
    if pool.is_mapped:
        return own
    nodes = {node.id for node in machine.nodes if node.cpus & pool.cpus}
    local = {claim.local for claim in pool.claims}
    all_gpus = [gpu.bdf for gpu in gpus_of_jobs(machine) if gpu.numa_node in nodes]
    visible = {gpu.bdf for gpu in machine.visible if local_cpus_of(machine, gpu) in local}
    is_whole = len(pool.allowed) * len(all_gpus) > len(pool.cpus) * len(visible)
    shares = len(all_gpus) > len(visible) and is_whole and set(own) <= set(all_gpus)
    return all_gpus if shares else own


def _among_workers(
    units: Sequence[CpuSet], devices: Sequence[str], claims: Sequence[_Claim]
) -> dict[int, CpuSet] | None:
    """Return the CPUs of each worker; None if there are too few units."""
    workers_of: dict[str, set[int]] = defaultdict(set)
    for claim in claims:
        workers_of[claim.device].add(claim.worker)
    divided: dict[int, CpuSet] = {}
    for device, part in zip(devices, _cut(units, len(devices)), strict=True):
        # Slices of one GPU (MIG), or partitions (CPX), divide its part.
        workers = sorted(workers_of[device])
        for worker, own in zip(workers, _cut(part, len(workers)), strict=True):
            if not own:
                return None
            divided[worker] = CpuSet.union_of([divided.get(worker, ()), *own])
    return divided


def _cut(units: Sequence[CpuSet], parts: int) -> list[Sequence[CpuSet]]:
    """Return ``units`` in contiguous parts; the first ones are longer by one if needed."""
    if not parts:
        return []
    length, longer = divmod(len(units), parts)
    starts = [at * length + min(at, longer) for at in range(parts + 1)]
    return [units[start:end] for start, end in pairwise(starts)]
