"""What one node has."""

from collections.abc import Mapping

from msgspec import Struct

from clusterrun.domain.cpuset import CpuSet


class NumaNode(Struct, frozen=True):
    """A NUMA node as /sys/devices/system/node shows it. ``cpus`` may be empty (memory only)."""

    id: int
    cpus: CpuSet
    distances: Mapping[int, int]
    """Distance to each other node by id, as in ``nodeN/distance`` (10 is local); may be empty."""
    has_memory: bool = True
    """Whether memory may be had from it: it has some, and the cpuset (Mems_allowed) lets us."""
    memory: int | None = None
    """Bytes of memory that it has, ours to use or not; None where nothing tells."""


class Site(Struct, frozen=True):
    """Where a GPU is that the PCI bus shows, be it ours or hidden from us by a container."""

    bdf: str
    numa_node: int | None
    """The node with CPUs that it is local to; None where nothing tells."""


class Gpu(Struct, frozen=True):
    """A GPU of this node, and where it hangs; a MIG slice or a partition counts as one."""

    index: int
    """Its number in the vendor's order: what CUDA_VISIBLE_DEVICES calls it."""
    bdf: str
    """PCI address, normalised: ``0000:17:00.0``."""
    uuid: str
    """``GPU-...``; "" where nothing tells it."""
    numa_node: int | None
    """The node with CPUs that it is local to; None where nothing tells."""
    locality: str
    """What told ``numa_node``: ``sysfs numa_node``, ``local_cpulist``, ``single node``, ..."""
    vendor: str = ""
    """``nvidia``, ``amd``, ``intel`` or ``huawei``; "" where nothing tells it."""
    model: str = ""
    """Its product name; "" where nothing tells it."""
    parent: str = ""
    """Of a MIG slice, the UUID of the GPU that it is a part of; "" of a whole GPU."""
    mapped: CpuSet = CpuSet()
    """The CPUs that the user says are local to it; none: those of its node."""

    @property
    def device(self) -> str:
        """What tells the physical GPU from others: slices and partitions of one have the same."""
        return self.bdf or self.parent or self.uuid or f"GPU {self.index}"


class Machine(Struct, frozen=True):
    """The CPUs, NUMA nodes and GPUs of this node, read once at the start and kept over restarts."""

    host: str
    allowed: CpuSet
    """CPUs that the launcher itself may use (its affinity), and that are online."""
    nodes: tuple[NumaNode, ...]
    packages: tuple[CpuSet, ...]
    """CPUs of each package (socket), by its lowest CPU; empty where /sys doesn't tell."""
    cores: tuple[CpuSet, ...]
    """Logical CPUs of each physical core (SMT siblings together)."""
    cores_known: bool
    """Whether /sys tells which CPUs are one core; if not, ``cores`` takes each CPU for one."""
    caches: tuple[CpuSet, ...]
    """CPUs that share a last-level (L3) cache, by its lowest CPU; empty where /sys doesn't tell."""
    gpus: tuple[Gpu, ...]
    """All GPUs that this process may open, in the vendor's order."""
    sites: tuple[Site, ...]
    """All GPUs of the machine in bus order, those that this process may not open among them."""
    visible: tuple[Gpu, ...]
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order: worker r gets ``visible[r]``."""
    visible_origin: str
    """``CUDA_VISIBLE_DEVICES`` with its value, or what listed them (``NVML``, ``/proc/driver/nvidia``, ``sysfs``)."""
    visible_remark: str
    """Which entry cut the list short or why nothing is visible; "" if there is nothing to say."""
    cpu_quota: float | None
    """CPUs' worth of time that the cgroup allows (cpu.max, cfs_quota); None: no limit."""
