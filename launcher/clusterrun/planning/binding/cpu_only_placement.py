"""Where workers without GPUs go: blocks of them at each NUMA node, by its allowed cores."""

from heapq import heapify, heapreplace

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine, NumaNode
from clusterrun.planning.binding.core_counts import CoreCounter


def spread(machine: Machine, nodes: list[NumaNode], workers: int) -> list[NumaNode]:
    """Return the node of each worker, in blocks in the order of ``nodes``.

    Each worker in turn goes to the node that leaves it the most allowed cores, so the smallest
    number of cores per worker is as large as it can be. A node with few cores may get no worker.
    """
    counter = CoreCounter(machine)
    cores = [counter.count(CpuSet(node.cpus & machine.allowed)) for node in nodes]
    placed = [0] * len(nodes)
    # With as many cores for one more worker, the larger node gets it, then the first.
    queue = [(-float(count), -count, at) for at, count in enumerate(cores)]
    heapify(queue)
    for _ in range(workers):
        _, _, at = queue[0]
        placed[at] += 1
        heapreplace(queue, (-cores[at] / (placed[at] + 1), -cores[at], at))
    return [node for node, count in zip(nodes, placed, strict=True) for _ in range(count)]
