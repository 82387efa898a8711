"""Types for the CPUs, NUMA nodes and GPUs of a machine."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from clusterrun.bounds import Bytes, Count
from clusterrun.cpuset import CpuSet


class NumaNode(Struct, frozen=True):
    """A NUMA node, from /sys/devices/system/node."""

    id: int
    cpus: CpuSet
    """Empty for a node that has only memory."""
    distances: Mapping[int, int]
    """Distances to NUMA nodes by id, from ``nodeN/distance`` (10 is local); may be empty."""
    has_memory: bool = True
    """Whether it has memory that the cpuset (Mems_allowed) lets this process use."""
    memory: int | None = None
    """Bytes, whether this process may use them or not; None if unknown."""


def nearest_nodes_with_cpus(node: NumaNode, nodes: Iterable[NumaNode]) -> list[NumaNode]:
    """Return the nearest of ``nodes`` to ``node`` that have CPUs; several if they are equally near."""
    near = [other for other in nodes if other.cpus and other.id in node.distances]
    least = min((node.distances[other.id] for other in near), default=0)
    return [other for other in near if node.distances[other.id] == least]


class PciGpu(Struct, frozen=True):
    """A GPU on the PCI bus. A container may hide it from this process."""

    bdf: str
    numa_node: int | None
    """The NUMA node with CPUs that it is local to; None if unknown."""


class Hints(Struct, frozen=True, omit_defaults=True):
    """What the vendor's library or driver knows of a GPU's location, for finding its NUMA node."""

    cpus: str = ""
    """Local CPUs from NVML, in list form."""
    nodes: str = ""
    """Local NUMA nodes from NVML, in list form."""
    kfd_node: int | None = None
    """The number of its node in AMD's KFD topology."""


class Gpu(Struct, frozen=True, omit_defaults=True):
    """A GPU, MIG slice, partition or tile that this process may open."""

    index: int
    """Its number in the vendor's order, as in CUDA_VISIBLE_DEVICES; a MIG slice has its GPU's number."""
    bdf: str
    """Normalised PCI address, ``0000:17:00.0``; "" if it is not on a PCI bus."""
    uuid: str = ""
    """``GPU-...``; "" if unknown."""
    numa_node: int | None = None
    """The NUMA node with CPUs that it is local to; None if unknown."""
    node_source: str = ""
    """The source of ``numa_node``: ``sysfs numa_node``, ``local_cpulist``, ``single node``, ..."""
    vendor: str = ""
    """``nvidia``, ``amd``, ``intel`` or ``huawei``; "" if unknown."""
    model: str = ""
    """Product name; "" if unknown."""
    parent: str = ""
    """Of a MIG slice, the UUID of its GPU, or the address if the UUID is unknown; "" of a whole GPU."""
    mapped_cpus: CpuSet = CpuSet()
    """Local CPUs from --numa-map; if empty, the CPUs of ``numa_node`` are local."""
    legacy_name: str = ""
    """Of a MIG slice, the name used before driver R470: ``MIG-GPU-<UUID>/<instance>/<instance>``."""
    listed_by: str = ""
    """Its source: ``NVML``, ``/proc/driver/nvidia``, ``KFD``, ``sysfs``, ..."""
    hints: Hints = Hints()

    @property
    def device(self) -> str:
        """An identifier of the physical GPU, equal for all its slices and partitions."""
        return self.bdf or self.parent or self.uuid or f"GPU {self.index}"


class GpuState(Struct, frozen=True):
    """Measurements of one GPU; None for what it does not report."""

    use: Count | None
    """Per cent of the last second or so in which it was computing."""
    memory: Bytes | None
    """Bytes used by all processes."""
    all_memory: Bytes | None
    temperature: Count | None
    """Degrees Celsius."""
    power: Count | None
    """Watts."""


class Machine(Struct, frozen=True):
    """The hardware of a node, read once at the start and kept over restarts."""

    host: str
    allowed: CpuSet
    """Online CPUs that workers may use: the launcher's affinity without ``isolated``."""
    nodes: tuple[NumaNode, ...]
    packages: tuple[CpuSet, ...]
    """CPUs of each package (socket), sorted by lowest CPU; empty if unknown."""
    cores: tuple[CpuSet, ...]
    """Logical CPUs (SMT siblings) of each physical core."""
    cores_known: bool
    """Whether /sys shows which CPUs form a core. If not, each CPU counts as a core."""
    caches: tuple[CpuSet, ...]
    """CPUs that share an L3 cache, sorted by lowest CPU; empty if unknown. Some CPUs may have no L3 cache."""
    gpus: tuple[Gpu, ...]
    """All GPUs that this process may open, in the vendor's order."""
    pci_gpus: tuple[PciGpu, ...]
    """All GPUs on the PCI bus in bus order, including those that this process may not open."""
    visible: tuple[Gpu, ...]
    """The GPUs that CUDA_VISIBLE_DEVICES selects, in its order: worker r gets ``visible[r]``."""
    visible_origin: str
    """``CUDA_VISIBLE_DEVICES=0,1``, or the source of the list (``NVML``, ``/proc/driver/nvidia``, ``sysfs``)."""
    visible_warning: str
    """Which entry ended the list early, or why no GPU is visible; "" if there is no warning."""
    cpu_quota: float | None
    """Limit of the cgroup (cpu.max, cfs_quota), in CPUs; None if there is no limit."""
    cpuset: CpuSet = CpuSet()
    """CPUs of the cgroup, a superset of ``allowed``; empty if unknown."""
    isolated: CpuSet = CpuSet()
    """CPUs of the affinity that the kernel does not balance (isolcpus); empty if it has no others."""
    excluded_cpus: CpuSet = CpuSet()
    """CPUs that such jobs never use: all isolated ones, or all others if the affinity is only isolated ones."""
    accelerators: str = ""
    """A warning about accelerators that clusterrun does not count: ``4 TPU chips, ...``; "" for none."""
