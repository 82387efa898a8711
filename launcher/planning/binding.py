"""Which GPU a worker has and which CPUs it may use (BINDING.md S4 and S5)."""

from collections.abc import Mapping
from typing import NamedTuple

from launcher.domain.cpuset import CpuSet, runs
from launcher.domain.job import NumaBinding
from launcher.domain.machine import Gpu, Machine, NumaNode
from launcher.planning.shares import allowed_on, share_out


class Placement(NamedTuple):
    """The place of one worker; ``cpus`` is never empty and never outside of what is allowed."""

    gpu: Gpu | None
    numa_node: int | None
    cpus: CpuSet | None
    """None: not bound."""
    remark: str
    """Why it is not bound; "" if it is, or nobody would expect it to be."""


def place(mode: NumaBinding, machine: Machine, workers: int) -> tuple[Placement, ...]:
    """Return the places of this node's ``workers``, by local rank."""
    gpus = _gpus_of(machine, workers)
    if mode is NumaBinding.NONE or not machine.nodes:
        return tuple(Placement(gpu, None, None, "") for gpu in gpus)
    homes = _homes(machine, workers)
    shares = share_out(mode, machine, [home.node for home in homes if home.node])
    return tuple(_placed(gpu, home, shares) for gpu, home in zip(gpus, homes, strict=True))


class _Home(NamedTuple):
    """The NUMA node that a worker belongs to, or why it has none."""

    node: NumaNode | None
    remark: str


def _gpus_of(machine: Machine, workers: int) -> tuple[Gpu | None, ...]:
    # With more workers than GPUs only the script knows which worker uses which.
    if workers > len(machine.visible):
        return (None,) * workers
    return machine.visible[:workers]


def _placed(gpu: Gpu | None, home: _Home, shares: Mapping[int, CpuSet]) -> Placement:
    if home.node is None:
        return Placement(gpu, None, None, home.remark)
    return Placement(gpu, home.node.id, shares[home.node.id], "")


def _homes(machine: Machine, workers: int) -> tuple[_Home, ...]:
    visible = len(machine.visible)
    if not visible:
        return _homes_without_gpus(machine, workers)
    if workers > visible:
        plural = "" if visible == 1 else "s"
        return (_Home(None, f"not bound: {workers} workers for {visible} GPU{plural}"),) * workers
    per_worker = visible // workers
    return tuple(_home_by_gpu(machine, rank, per_worker) for rank in range(workers))


def _homes_without_gpus(machine: Machine, workers: int) -> tuple[_Home, ...]:
    """Spread the workers over the nodes in blocks, where there are enough to use all nodes."""
    nodes = [node for node in machine.nodes if allowed_on(node, machine)]
    # Of CPUs that no node lists, binding would make nothing.
    lost = machine.allowed - CpuSet.union_of(node.cpus for node in nodes)
    if lost or workers < len(nodes):
        return (_Home(None, ""),) * workers
    return tuple(_Home(nodes[rank * len(nodes) // workers], "") for rank in range(workers))


def _home_by_gpu(machine: Machine, rank: int, per_worker: int) -> _Home:
    """Return the home of a worker that uses ``visible[rank]``.

    With fewer workers than GPUs it may as well use the block of ``per_worker`` GPUs that is its
    share (decision 3): it has a home only where both readings agree.
    """
    gpu = machine.visible[rank]
    block = machine.visible[rank * per_worker : (rank + 1) * per_worker]
    if any(other.numa_node != gpu.numa_node for other in block):
        indices = ",".join(runs(other.index for other in block))
        either = f"GPU {gpu.index} or, if each worker has {per_worker}, GPUs {indices}"
        return _Home(None, f"not bound: it may use {either}, and they are on different nodes")
    node = next((node for node in machine.nodes if node.id == gpu.numa_node), None)
    if node is None:
        return _Home(None, "not bound: nothing tells which NUMA node its GPU is local to")
    if not allowed_on(node, machine):
        where = f"GPU {gpu.index} is local to node {node.id}"
        return _Home(None, f"not bound: {where} but this job may only use {machine.allowed}")
    return _Home(node, "")
