"""GPUs as drivers list them and variables choose them; ``locality`` finds their NUMA nodes."""

from msgspec import Struct

from clusterrun.domain.cpuset import CpuSet

NVIDIA_FILES = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")
"""If one of these exists, NVML may list GPUs; the last is the only file that WSL 2 has for a GPU."""


class Device(Struct, frozen=True):
    """A GPU, or a part of one that counts as one: a MIG slice, a partition, a tile."""

    vendor: str
    """``nvidia``, ``amd``, ``intel``, ``huawei``; "" if unknown."""
    number: int
    """Its number in the vendor's order; of a MIG slice, that of the GPU it is a part of."""
    bdf: str
    """Normalised PCI address; "" of a GPU that is on no PCI bus."""
    uuid: str = ""
    model: str = ""
    parent: str = ""
    """Of a MIG slice, the UUID of its GPU."""
    legacy_name: str = ""
    """Of a MIG slice, its name before driver R470: ``MIG-GPU-<UUID>/<instance>/<instance>``."""
    cpus: CpuSet = CpuSet()
    """The local CPUs by the vendor's library; none if it is not used."""
    nodes: frozenset[int] = frozenset()
    """The local NUMA nodes by the vendor's library."""
    kfd_node: int | None = None
    """Its number among KFD's nodes; None for GPUs of other vendors."""


class Listing(Struct, frozen=True):
    """The GPUs of one vendor that this process may open, in the vendor's order."""

    source: str
    """Where the list is from: ``NVML``, ``/proc/driver/nvidia``, ``KFD``, ``sysfs``, ...; "" for none."""
    devices: tuple[Device, ...]


NO_GPUS = Listing("", ())


class Choice(Struct, frozen=True):
    """The GPUs that a vendor's variables leave, in the order in which a process sees them."""

    devices: tuple[Device, ...]
    origin: str
    """The variables with their values; "" if none is set."""
    remark: str
    """Which entry cut the list short; "" if there is no remark."""
