"""Divides CPUs among workers so that none shares them (docs/binding.md S5: exclusive, core-complex)."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import counted
from clusterrun.cpuset import CpuSet
from clusterrun.machine.machine import Machine
from clusterrun.planning.placement import (
    LocalCpus,
    Placement,
    cache_of,
    core_by_cpu,
    cores_of,
    joined,
    unions,
)


class Pool(Struct):
    """CPUs to divide among workers: of one NUMA node, of overlapping ones, or from --numa-map."""

    local_cpus: list[LocalCpus]
    cpus: CpuSet
    allowed: CpuSet
    """The CPUs to divide."""
    workers_of: dict[str, list[int]]
    """Indices of the workers of each GPU, in bus order; a worker without GPUs counts as a GPU."""
    has_others: bool = False


def divide(machine: Machine, workers: Sequence[Placement], *, by_cache: bool) -> list[Placement]:
    """Return the workers bound to CPUs that no other has: whole cores, or cores of whole L3 caches.

    Other jobs' workers get their parts too, in bus order. If there are too few cores, or the cores are
    unknown, the workers share their NUMA nodes, with a warning.
    """
    parts: dict[int, list[CpuSet]] = defaultdict(list)
    warnings: dict[int, dict[str, None]] = defaultdict(dict)
    for pool in _pools(machine, workers):
        cpus, warning = _divided(machine, pool, by_cache=by_cache)
        for at, part in cpus.items():
            parts[at].append(part)
            warnings[at] |= {warning: None} if warning else {}
    bound = [
        replace(worker, cpus=joined(parts[at]), warning="; ".join(warnings[at]))
        if at in parts
        else worker
        for at, worker in enumerate(workers)
    ]
    return _with_shared_cores(machine, bound)


def _with_shared_cores(machine: Machine, bound: Sequence[Placement]) -> list[Placement]:
    """Return the workers with a warning for those that share cores and have no other warning.

    CPUs from --numa-map may overlap, or be threads of one core.
    """
    core_of = core_by_cpu(machine)
    cores_of_each = [
        {core_of[cpu] for cpu in worker.cpus or () if cpu in core_of} for worker in bound
    ]
    workers_on = Counter(core for cores in cores_of_each for core in cores)
    found = []
    for worker, own in zip(bound, cores_of_each, strict=True):
        cpus = CpuSet.union_of(machine.cores[core] for core in own if workers_on[core] > 1)
        warning = worker.warning or (f"shares the cores of CPUs {cpus}" if cpus else "")
        found.append(replace(worker, warning=warning))
    return found


def _whole_cores(machine: Machine, cpus: CpuSet) -> CpuSet:
    """Return CPUs and their SMT siblings."""
    return CpuSet.union_of([cpus, *(core for core in machine.cores if core & cpus)])


def _pools(machine: Machine, workers: Sequence[Placement]) -> list[Pool]:
    local_cpus = dict.fromkeys(local for worker in workers for local in worker.local_cpus)
    usable = [local for local in local_cpus if local.cpus & machine.allowed]
    mapped = CpuSet.union_of(local.cpus for local in usable if local.is_mapped)
    pools = [
        Pool([local], local.cpus, CpuSet(local.cpus & machine.allowed), {})
        for local in usable
        if local.is_mapped
    ]
    at_nodes = [local for local in usable if not local.is_mapped]
    # In firmware tables, NUMA nodes may overlap, have all CPUs each, or split a core. These are one pool.
    for around in unions(_whole_cores(machine, local.cpus) for local in at_nodes):
        together = [local for local in at_nodes if local.cpus & around]
        cpus = joined([local.cpus for local in together])
        pools.append(Pool(together, cpus, CpuSet((cpus & machine.allowed) - mapped), {}))
    pool_of = {local: pool for pool in pools for local in pool.local_cpus}
    for at, worker in enumerate(workers):
        for number, local in enumerate(worker.local_cpus):
            device = worker.gpus[number].device if worker.gpus else f"worker {at}"
            if local in pool_of:
                pool_of[local].workers_of.setdefault(device, []).append(at)
                pool_of[local].has_others |= worker.is_other
    order = {gpu.bdf: at for at, gpu in enumerate(machine.pci_gpus)}
    for pool in pools:
        devices = sorted(pool.workers_of, key=lambda device: order.get(device, len(order)))
        pool.workers_of = {device: pool.workers_of[device] for device in devices}
    return pools


def _divided(machine: Machine, pool: Pool, *, by_cache: bool) -> tuple[Mapping[int, CpuSet], str]:
    """Return the CPUs of each worker of a pool, and a warning if they are not as requested."""
    workers = {at for sharers in pool.workers_of.values() for at in sharers}
    shared = dict.fromkeys(workers, CpuSet(pool.cpus & machine.allowed))
    if not machine.cores_known:
        return shared, "shares its NUMA node: the machine's cores are unknown"
    cores = cores_of(machine, pool.allowed)
    among = counted(len(workers), "worker")
    if pool.has_others or len(workers) < len(pool.workers_of):
        among = counted(len(pool.workers_of), "GPU")
    warning = ""
    if by_cache:
        caches = _whole_caches(machine, pool, cores)
        own = _among_workers(caches, pool)
        if own is not None:
            return own, ""
        have = counted(len(caches), "whole L3 cache")
        warning = f"has cores of its own, but no L3 cache: {have} for {among}"
    own = _among_workers(cores, pool)
    if own is None:
        return shared, f"shares its NUMA node: {counted(len(cores), 'core')} for {among}"
    return own, warning


def _whole_caches(machine: Machine, pool: Pool, cores: Sequence[CpuSet]) -> list[CpuSet]:
    """Return the CPUs of each L3 cache, except caches that other jobs also use."""
    others = pool.cpus - pool.allowed
    cut = CpuSet.union_of(cache for cache in machine.caches if cache & others)
    whole: dict[int, set[int]] = defaultdict(set)
    for core in cores:
        # Small cores of some processors have no L3 cache.
        at = cache_of(machine, core)
        if at is not None and not core & cut:
            whole[at].update(core)
    return [CpuSet(cpus) for cpus in whole.values()]


def _among_workers(units: Sequence[CpuSet], pool: Pool) -> dict[int, CpuSet] | None:
    """Return the CPUs of each worker; None if there are fewer units (cores or caches) than workers."""
    own: dict[int, list[CpuSet]] = defaultdict(list)
    parts = _cut(units, len(pool.workers_of))
    for sharers, part in zip(pool.workers_of.values(), parts, strict=True):
        # MIG slices or CPX partitions of one GPU divide its part.
        workers = sorted(set(sharers))
        for worker, cpus in zip(workers, _cut(part, len(workers)), strict=True):
            if not cpus:
                return None
            own[worker] += cpus
    return {worker: CpuSet.union_of(cpus) for worker, cpus in own.items()}


def _cut(units: Sequence[CpuSet], parts: int) -> list[Sequence[CpuSet]]:
    """Split ``units`` into contiguous parts; if they differ, the first ones are longer by one."""
    length, longer = divmod(len(units), parts)
    starts = [at * length + min(at, longer) for at in range(parts + 1)]
    return [units[start:end] for start, end in pairwise(starts)]
