"""Workers without GPUs are spread over the NUMA nodes by allowed cores (docs/binding.md, decision 2)."""

from heapq import heapify, heapreplace

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine, NumaNode
from clusterrun.planning.binding.cores import CoreCounter


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
