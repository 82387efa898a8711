"""CPUs that a worker has to itself (docs/binding.md S5: exclusive, core-complex)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine
from clusterrun.planning.binding.gpu_assignment import Home, Spot, spot_of
from clusterrun.planning.binding.other_jobs import gpus_of_jobs


class Slice(NamedTuple):
    """The CPUs of one worker, and why they are not what was asked for, if they are not."""

    cpus: CpuSet
    remark: str


class _Claim(NamedTuple):
    """One GPU of one worker, or a worker without GPUs, that is to have CPUs of a pool."""

    worker: int
    seat: str
    """The physical GPU; of a worker without GPUs, something of its own."""
    spot: Spot


class _Pool(NamedTuple):
    """CPUs that are divided among claims: a node, nodes that overlap, or CPUs that the user named."""

    claims: list[_Claim]
    cpus: CpuSet
    """All of its nodes."""
    ours: CpuSet
    """Those that this job may use."""


class _Dealt(NamedTuple):
    cpus: Mapping[int, CpuSet]
    """By worker."""
    remark: str


def of_slices(machine: Machine, homes: Sequence[Home], *, by_cache: bool) -> list[Slice]:
    """Return for each home CPUs that are no other's: whole cores, or whole L3 caches of them.

    Where there are too few, or nothing tells what is one core, the workers share their nodes, with
    a remark.
    """
    shares: dict[int, list[CpuSet]] = defaultdict(list)
    remarks: dict[int, list[str]] = defaultdict(list)
    for pool in _pools(machine, homes):
        dealt = _deal(machine, pool, by_cache=by_cache)
        for worker, share in dealt.cpus.items():
            shares[worker].append(share)
            if dealt.remark and dealt.remark not in remarks[worker]:
                remarks[worker].append(dealt.remark)
    return [Slice(_union(shares[at]), "; ".join(remarks[at])) for at in range(len(homes))]


def _union(shares: Sequence[CpuSet]) -> CpuSet:
    # Most workers have one share, which may be that of many others, too.
    return shares[0] if len(shares) == 1 else CpuSet.union_of(shares)


def _pools(machine: Machine, homes: Sequence[Home]) -> list[_Pool]:
    claims_at: dict[Spot, list[_Claim]] = defaultdict(list)
    for worker, home in enumerate(homes):
        for at, spot in enumerate(home.spots):
            seat = home.gpus[at].device if home.gpus else f"worker {worker}"
            claims_at[spot].append(_Claim(worker, seat, spot))
    spots = [spot for spot in claims_at if spot.cpus & machine.allowed]
    named = CpuSet.union_of(spot.cpus for spot in spots if spot.is_pinned)
    pools: list[_Pool] = []
    for spot in spots:
        # Firmware may let nodes overlap, or list all CPUs for each: then they are one pool.
        met = [pool for pool in pools if _is_one_pool(pool.claims[0].spot, pool.cpus, spot)]
        claims = [*claims_at[spot], *(claim for pool in met for claim in pool.claims)]
        cpus = CpuSet.union_of([spot.cpus, *(pool.cpus for pool in met)])
        ours = CpuSet((cpus & machine.allowed) - (frozenset() if spot.is_pinned else named))
        pools = [pool for pool in pools if pool not in met]
        pools.append(_Pool(sorted(claims, key=lambda claim: claim.worker), cpus, ours))
    return pools


def _is_one_pool(first: Spot, cpus: CpuSet, spot: Spot) -> bool:
    if first.is_pinned or spot.is_pinned:
        return first.is_pinned and spot.is_pinned and cpus == spot.cpus
    return bool(cpus & spot.cpus)


def _deal(machine: Machine, pool: _Pool, *, by_cache: bool) -> _Dealt:
    whole = dict.fromkeys(
        (claim.worker for claim in pool.claims), CpuSet(pool.cpus & machine.allowed)
    )
    if not machine.cores_known:
        return _Dealt(whole, "shares its node: nothing tells which CPUs are one core")
    cores = cores_of(machine, pool.ours)
    caches = _whole_caches(machine, pool, cores) if by_cache else []
    seats = _seats(machine, pool)
    workers = len({claim.worker for claim in pool.claims})
    among = _count(workers, "worker") if workers >= len(seats) else _count(len(seats), "GPU")
    dealt = _share_out(caches, seats, pool.claims)
    if dealt is not None:
        return _Dealt(dealt, "")
    dealt = _share_out(cores, seats, pool.claims)
    if dealt is None:
        return _Dealt(whole, f"shares its node: {_count(len(cores), 'core')} for {among}")
    remark = ""
    if by_cache:
        have = _count(len(caches), "whole L3 cache")
        remark = f"has cores, not caches, of its own: {have} for {among}"
    return _Dealt(dealt, remark)


def cores_of(machine: Machine, cpus: CpuSet) -> list[CpuSet]:
    """Return the cores that ``cpus`` are of, cut with them: by cache, then by lowest CPU."""
    known = [CpuSet(core & cpus) for core in machine.cores if core & cpus]
    strays = [CpuSet((cpu,)) for cpu in cpus - CpuSet.union_of(known)]
    return sorted((*known, *strays), key=lambda core: (_cache_of(machine, core), min(core)))


def _cache_of(machine: Machine, core: CpuSet) -> int:
    """Return a number that sorts caches: the lowest CPU that shares the core's."""
    return next((min(cache) for cache in machine.caches if min(core) in cache), min(core))


def _whole_caches(machine: Machine, pool: _Pool, cores: Iterable[CpuSet]) -> list[CpuSet]:
    """Return the cores that share a cache as one; not where some of its CPUs are for other jobs."""
    cut = CpuSet.union_of(cache for cache in machine.caches if cache & (pool.cpus - pool.ours))
    together: dict[int, set[int]] = {}
    for core in cores if machine.caches else ():
        if not core & cut:
            together.setdefault(_cache_of(machine, core), set()).update(core)
    return [CpuSet(cpus) for cpus in together.values()]


def _seats(machine: Machine, pool: _Pool) -> list[str]:
    """Return whose parts of the pool there are, in order; those of GPUs that others use, too.

    Where the whole node is ours to use, but not all of its GPUs, another job may be at the others:
    both find the same parts. A cpuset that holds but a part has been divided already.
    """
    own = list(dict.fromkeys(claim.seat for claim in pool.claims))
    order = {gpu.bdf: at for at, gpu in enumerate(machine.pci_gpus)}
    own.sort(key=lambda seat: order.get(seat, len(order)))
    spots = {claim.spot for claim in pool.claims}
    if any(spot.is_pinned for spot in spots):
        return own
    nodes = {node.id for node in machine.nodes if node.cpus & pool.cpus}
    there = [gpu.bdf for gpu in gpus_of_jobs(machine) if gpu.numa_node in nodes]
    ours = {gpu.bdf for gpu in machine.visible if spot_of(machine, gpu) in spots}
    is_whole = len(pool.ours) * len(there) > len(pool.cpus) * len(ours)
    return there if len(there) > len(ours) and is_whole and set(own) <= set(there) else own


def _share_out(
    units: Sequence[CpuSet], seats: Sequence[str], claims: Sequence[_Claim]
) -> dict[int, CpuSet] | None:
    """Return the CPUs of each worker; None where there are not enough units."""
    claimants: dict[str, set[int]] = defaultdict(set)
    for claim in claims:
        claimants[claim.seat].add(claim.worker)
    dealt: dict[int, CpuSet] = {}
    for seat, part in zip(seats, _cut(units, len(seats)), strict=True):
        # Slices of one GPU (MIG), or partitions (CPX), share its part.
        workers = sorted(claimants[seat])
        for worker, own in zip(workers, _cut(part, len(workers)), strict=True):
            if not own:
                return None
            dealt[worker] = CpuSet.union_of([dealt.get(worker, ()), *own])
    return dealt


def _cut(units: Sequence[CpuSet], parts: int) -> list[Sequence[CpuSet]]:
    """Return ``units`` in contiguous parts, the first ones longer by one if it doesn't divide."""
    if not parts:
        return []
    length, longer = divmod(len(units), parts)
    starts = [at * length + min(at, longer) for at in range(parts + 1)]
    return [units[start:end] for start, end in pairwise(starts)]


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
