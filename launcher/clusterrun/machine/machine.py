"""The CPUs, NUMA nodes and GPUs of one node of the job."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from clusterrun.bounds import Bytes, Count
from clusterrun.cpuset import CpuSet


class NumaNode(Struct, frozen=True):
    """A NUMA node as /sys/devices/system/node shows it."""

    id: int
    cpus: CpuSet
    """Empty if the node has memory only."""
    distances: Mapping[int, int]
    """Distance to each other node by id, as in ``nodeN/distance`` (10 is local); may be empty."""
    has_memory: bool = True
    """Whether the node has memory that the cpuset (Mems_allowed) lets this process use."""
    memory: int | None = None
    """Bytes of memory of the node, whether this process may use it or not; None if unknown."""


def nearest_nodes_with_cpus(node: NumaNode, nodes: Iterable[NumaNode]) -> list[NumaNode]:
    """Return those of ``nodes`` with CPUs that are nearest to ``node``; several may be equally near."""
    near = [other for other in nodes if other.cpus and other.id in node.distances]
    least = min((node.distances[other.id] for other in near), default=0)
    return [other for other in near if node.distances[other.id] == least]


class PciGpu(Struct, frozen=True):
    """A GPU on the PCI bus, which a container may hide from this process."""

    bdf: str
    numa_node: int | None
    """The node with CPUs that it is local to; None if unknown."""


class Hints(Struct, frozen=True, omit_defaults=True):
    """What the vendor's library or driver says of a GPU's place, which is used to find its node."""

    cpus: str = ""
    """The local CPUs by NVML, in list form."""
    nodes: str = ""
    """The local NUMA nodes by NVML, in list form."""
    kfd_node: int | None = None
    """Its number among the nodes of AMD's KFD."""


class Gpu(Struct, frozen=True, omit_defaults=True):
    """A GPU that this process may open; a MIG slice, a partition or a tile counts as one."""

    index: int
    """Its number in the vendor's order, as CUDA_VISIBLE_DEVICES counts; of a MIG slice, its GPU's."""
    bdf: str
    """PCI address, normalised: ``0000:17:00.0``; "" of a GPU that is on no PCI bus."""
    uuid: str = ""
    """``GPU-...``; "" if unknown."""
    numa_node: int | None = None
    """The node with CPUs that it is local to; None if unknown."""
    node_source: str = ""
    """Where ``numa_node`` is from: ``sysfs numa_node``, ``local_cpulist``, ``single node``, ..."""
    vendor: str = ""
    """``nvidia``, ``amd``, ``intel`` or ``huawei``; "" if unknown."""
    model: str = ""
    """Its product name; "" if unknown."""
    parent: str = ""
    """UUID of the GPU that a MIG slice is a part of, its address if that is unknown; "" of a whole one."""
    mapped_cpus: CpuSet = CpuSet()
    """The local CPUs that --numa-map gives it; empty: those of its node."""
    legacy_name: str = ""
    """Of a MIG slice, its name before driver R470: ``MIG-GPU-<UUID>/<instance>/<instance>``."""
    listed_by: str = ""
    """Who lists it: ``NVML``, ``/proc/driver/nvidia``, ``KFD``, ``sysfs``, ..."""
    hints: Hints = Hints()

    @property
    def device(self) -> str:
        """An identifier of the physical GPU, which its slices and partitions share."""
        return self.bdf or self.parent or self.uuid or f"GPU {self.index}"


class GpuState(Struct, frozen=True):
    """The figures of one GPU; None: it does not tell."""

    use: Count | None
    """Per cent of the time, within about a second, in which it computed."""
    memory: Bytes | None
    """In use, by all processes."""
    all_memory: Bytes | None
    temperature: Count | None
    """Degrees Celsius."""
    power: Count | None
    """Watts."""


class Machine(Struct, frozen=True):
    """The hardware of this node, read once at the start and kept over restarts."""

    host: str
    allowed: CpuSet
    """Online CPUs that workers may use: the launcher's affinity, without ``isolated`` ones."""
    nodes: tuple[NumaNode, ...]
    packages: tuple[CpuSet, ...]
    """CPUs of each package (socket), by its lowest CPU; empty if unknown."""
    cores: tuple[CpuSet, ...]
    """Logical CPUs of each physical core (SMT siblings together)."""
    cores_known: bool
    """Whether /sys shows which CPUs form a core; if not, each CPU counts as a core."""
    caches: tuple[CpuSet, ...]
    """CPUs that share a last-level (L3) cache, by its lowest CPU; empty if unknown.

    A CPU without such a cache is in none, also where others have one.
    """
    gpus: tuple[Gpu, ...]
    """All GPUs that this process may open, in the vendor's order."""
    pci_gpus: tuple[PciGpu, ...]
    """All GPUs of the machine in bus order, including those that this process may not open."""
    visible: tuple[Gpu, ...]
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order: worker r gets ``visible[r]``."""
    visible_origin: str
    """``CUDA_VISIBLE_DEVICES=0,1``, or the source of the list (``NVML``, ``/proc/driver/nvidia``, ``sysfs``)."""
    visible_warning: str
    """Which entry cut the list short or why no GPU is visible; "" if there is no warning."""
    cpu_quota: float | None
    """Limit of the cgroup in CPUs (cpu.max, cfs_quota); None: no limit."""
    cpuset: CpuSet = CpuSet()
    """CPUs that the cgroup may use, of which ``allowed`` may be a part; empty if unknown."""
    isolated: CpuSet = CpuSet()
    """CPUs of the affinity that the kernel does not balance (isolcpus); empty if it has no others."""
    excluded_cpus: CpuSet = CpuSet()
    """CPUs that jobs with this affinity do not use: all isolated ones, or, of a job that may use only
    such, all others."""
    accelerators: str = ""
    """Those that are named and not counted, and what to type: ``4 TPU chips, ...``; "" for none."""
