"""OMP_NUM_THREADS: the number of threads for a worker's loops (docs/binding.md S8, decision 7)."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine
from clusterrun.planning.binding.cores import CoreCounter
from clusterrun.planning.binding.node_binding import Placement


def threads_per_worker(machine: Machine, placements: Sequence[Placement]) -> int:
    """Return the physical cores that every worker of this node can have to itself, at least 1.

    It is one number for the node, the smallest of all workers: the OpenMP runtime reads it when it
    is loaded, and in a forked worker that was before the fork. A cgroup's CPU limit counts, too.
    """
    counter = CoreCounter(machine)
    masks = Counter(placement.cpus for placement in placements)
    unbound = masks.pop(None, 0)
    shares = [counter.count(machine.allowed) // len(placements)] if unbound else []
    shares += _shares_of({mask: count for mask, count in masks.items() if mask}, counter)
    if machine.cpu_quota is not None:
        shares.append(int(machine.cpu_quota / len(placements)))
    return max(1, min(shares))


def _shares_of(masks: Mapping[CpuSet, int], counter: CoreCounter) -> Iterator[int]:
    """Yield for each mask the cores per worker; ``masks`` has the number of workers of each."""
    on_cpu: dict[int, list[CpuSet]] = defaultdict(list)
    for mask in masks:
        for cpu in mask:
            on_cpu[cpu].append(mask)
    for mask in masks:
        # Firmware tables may let nodes overlap: workers of an overlapping mask use these CPUs, too.
        meeting = {other for cpu in mask for other in on_cpu[cpu]}
        yield counter.count(mask) // sum(masks[other] for other in meeting)
