"""The GPUs that we may open, those on the bus, and those that variables select (docs/binding.md S1, S2)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.machine.gpus import pci
from clusterrun.machine.machine import Gpu
from clusterrun.machine.tree import Tree

HUNG = "hung"
"""In place of NVML's answer if that takes too long: opening any GPU may hang."""

NVIDIA_FILES = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")
"""If one of these exists, NVML may list GPUs. WSL 2 has only the last."""

_GPU_CLASSES = (0x0302, 0x0380, 0x1200)
"""3D controller, other display, processing accelerator: no management controller has these classes."""

_CUDA = "CUDA_VISIBLE_DEVICES"

_OWN_VARIABLES: Mapping[str, Sequence[str]] = {
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "intel": ("ZE_AFFINITY_MASK",),
    "huawei": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""A user who sets one wants this vendor's GPUs. AMD's runtime also reads CUDA_VISIBLE_DEVICES."""

_HIDE_ALL = ("", "-1", "NoDevFiles")
"""Values that people and tools set to hide all GPUs."""


class Visible(Struct, frozen=True):
    """The GPUs that the variables select, in the order in which a process sees them."""

    gpus: tuple[Gpu, ...]
    origin: str = ""
    """The variables with their values, or the source of the list of GPUs; "" if there is neither."""
    warning: str = ""
    """Which entry ended the list early, or why no GPU is visible; "" if there is no warning."""


class Vendor(Protocol):
    """The functions of each vendor's module."""

    def gpus(self, tree: Tree) -> tuple[Gpu, ...]:
        """Return the GPUs that this process may open, in the vendor's order."""

    def addresses(self, tree: Tree) -> set[str]:
        """Return the normalised PCI addresses of all its GPUs on the bus."""

    def choose(self, gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> Visible:
        """Apply the vendor's variables; ``origin`` is "" if none is set."""


def list_gpus(tree: Tree) -> tuple[Gpu, ...]:
    """Return the GPUs that this process may open, vendor by vendor."""
    gpus = tuple(gpu for name in _vendors(tree) for gpu in _module(name).gpus(tree))
    return gpus or _by_class(tree)


def addresses(tree: Tree, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the PCI addresses of all GPUs in bus order, including hidden ones."""
    on_bus = {address for name in _vendors(tree) for address in _module(name).addresses(tree)}
    return tuple(sorted((on_bus | {gpu.bdf for gpu in gpus}) - {""}, key=pci.in_bus_order))


def visible(tree: Tree, gpus: Sequence[Gpu], environ: Mapping[str, str]) -> Visible:
    """Return the GPUs that the job's environment selects, in its order.

    On a machine with GPUs of several vendors, a job uses the vendor whose own variable is set, else
    the first. (Which vendor its torch is built for is unknown without importing torch.)
    """
    if not gpus:
        return _without_gpus(tree, environ)
    vendors = tuple(dict.fromkeys(gpu.vendor for gpu in gpus))
    used = next((name for name in vendors if _is_named(name, environ)), vendors[0])
    ours = tuple(gpu for gpu in gpus if gpu.vendor == used)
    left = _module(used).choose(ours, environ)
    if not left.origin:
        others = " or ".join(name for name in vendors if name != used)
        of = f" (of {used}, not of {others})" if others else ""
        return replace(left, origin=f"{ours[0].listed_by}{of}")
    hidden = left.origin in {f"{_CUDA}={text}" for text in _HIDE_ALL}
    return replace(left, warning="") if hidden else left


def _vendors(tree: Tree) -> Iterator[str]:
    """Yield the vendors whose driver may be present; by default the first one with GPUs is used."""
    if any(map(tree.exists, NVIDIA_FILES)) or pci.has_driver(tree, "nvidia"):
        yield "nvidia"
    if tree.exists("sys/class/kfd") or pci.has_driver(tree, "amdgpu"):
        yield "amd"
    if any(pci.has_driver(tree, driver) for driver in ("i915", "xe")):
        yield "intel"
    if pci.has_driver(tree, "devdrv_device_driver"):
        yield "huawei"


def _module(vendor: str) -> Vendor:
    # Only the modules in use are imported, because each import delays the start of a job.
    match vendor:
        case "amd":
            from clusterrun.machine.gpus import amd

            return amd
        case "intel":
            from clusterrun.machine.gpus import intel

            return intel
        case "huawei":
            from clusterrun.machine.gpus import ascend

            return ascend
        case _:
            from clusterrun.machine.gpus import nvidia

            return nvidia


def _is_named(vendor: str, environ: Mapping[str, str]) -> bool:
    # If CUDA's variable is set as well, the vendor is unclear, and the first is used.
    return _CUDA not in environ and any(name in environ for name in _OWN_VARIABLES.get(vendor, ()))


def _without_gpus(tree: Tree, environ: Mapping[str, str]) -> Visible:
    text = environ.get(_CUDA)
    origin = "" if text is None else f"{_CUDA}={text}"
    if text in _HIDE_ALL:
        return Visible((), origin)
    if tree.answers.answer.get("nvml") == HUNG:
        return Visible((), origin, "NVML does not answer, and no file shows which GPUs there are")
    return Visible((), origin, f"{origin}, but this process can't open any GPU" if origin else "")


def _by_class(tree: Tree) -> tuple[Gpu, ...]:
    # A kernel always shows the vendor. A captured tree may lack vendors and drivers.
    if tree.kernel():
        return ()
    found = [
        address
        for address, path in pci.device_directories(tree).items()
        if not tree.exists(f"{path}/vendor") and pci.device_class(tree, path) in _GPU_CLASSES
    ]
    in_order = sorted(found, key=pci.in_bus_order)
    return tuple(Gpu(index, bdf, listed_by="sysfs") for index, bdf in enumerate(in_order))
