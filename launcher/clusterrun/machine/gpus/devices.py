"""GPUs as their drivers list them and variables choose them, before it is known where they hang."""

from typing import NamedTuple

from clusterrun.domain.cpuset import CpuSet

NVIDIA_SIGNS = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")
"""Where NVML may know of GPUs; the last is Windows' own device, all that WSL 2 shows of any GPU."""


class Device(NamedTuple):
    """A GPU, or a part of one that counts as one: a MIG slice, a partition, a tile."""

    vendor: str
    """``nvidia``, ``amd``, ``intel``, ``huawei``; "" where nothing tells it."""
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
    """The CPUs that the vendor's library takes for local; none where it wasn't asked."""
    nodes: frozenset[int] = frozenset()
    """The NUMA nodes that the vendor's library takes for local."""
    kfd_node: int | None = None
    """Its number among KFD's nodes; None of a GPU that isn't AMD's."""


class Listing(NamedTuple):
    """The GPUs of one vendor that this process may open, in the vendor's order."""

    source: str
    """What listed them: ``NVML``, ``/proc/driver/nvidia``, ``KFD``, ``sysfs``, ...; "" for none."""
    devices: tuple[Device, ...]


NOTHING = Listing("", ())


class Choice(NamedTuple):
    """The GPUs that a vendor's variables leave, in the order in which a process sees them."""

    devices: tuple[Device, ...]
    origin: str
    """The variables with their values; "" where none is set."""
    remark: str
    """Which entry cut the list short; "" if there is nothing to say."""
