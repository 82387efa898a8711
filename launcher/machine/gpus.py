"""The GPUs that this process may open, in the vendor's order, from the best source that answers."""

from collections.abc import Iterable
from typing import NamedTuple

from launcher.machine import nvml, pci
from launcher.machine.tree import Tree

_NVIDIA_PROC = "proc/driver/nvidia"
_NVIDIA_CLASSES = (0x0300, 0x0302)
_AMD_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)
_CLASSES_OF_GPUS_ALONE = (0x0302, 0x0380, 0x1200)
"""What no management controller is: 3D controller, other display, processing accelerator."""


class Device(NamedTuple):
    """A GPU before its place is known: normalised PCI address and UUID ("" where not told)."""

    bdf: str
    uuid: str


class Listing(NamedTuple):
    """GPUs in the vendor's order, as ``source`` lists them; no source has listed none."""

    source: str
    devices: tuple[Device, ...]


def list_gpus(tree: Tree) -> Listing:
    """Return the GPUs as the first source lists them that knows any (BINDING.md S1).

    KFD, which has the order of AMD GPUs, is not among the sources yet; they come by address.
    """
    for source, ask in _SOURCES:
        devices = ask(tree)
        if devices:
            return Listing(source, devices)
    return Listing("", ())


def _by_nvml(tree: Tree) -> tuple[Device, ...]:
    if not (tree.exists(_NVIDIA_PROC) or tree.exists("dev/nvidiactl")):
        return ()
    answer = nvml.devices_in(tree.answer("nvml", nvml.ask_in_child))
    named = ((pci.normalised(address), uuid) for address, uuid in answer)
    return tuple(Device(bdf, uuid) for bdf, uuid in named if bdf)


def _by_nvidia_proc(tree: Tree) -> tuple[Device, ...]:
    found = []
    for name in tree.names(f"{_NVIDIA_PROC}/gpus"):
        facts = _information(tree.text(f"{_NVIDIA_PROC}/gpus/{name}/information"))
        bdf = pci.normalised(facts.get("Bus Location", "")) or pci.normalised(name)
        if bdf and _may_open(tree, facts.get("Device Minor", "")):
            found.append(Device(bdf, facts.get("GPU UUID", "")))
    return tuple(sorted(found, key=lambda device: pci.in_bus_order(device.bdf)))


def _information(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _may_open(tree: Tree, minor: str) -> bool:
    # A container sees all GPUs of its host here, but may open only its own.
    return not minor or not tree.exists("dev") or tree.can_open(f"dev/nvidia{minor}")


def _by_nvidia_driver(tree: Tree) -> tuple[Device, ...]:
    # Where the driver has its directory, that has said already that none may be opened.
    if tree.exists(_NVIDIA_PROC) or tree.exists("dev"):
        return ()
    return _driven(tree, "nvidia", _NVIDIA_CLASSES)


def _by_amd_driver(tree: Tree) -> tuple[Device, ...]:
    # A graphics chip that can't compute is amdgpu's too, but alone it brings no /dev/kfd.
    if tree.exists("dev") and not tree.exists("dev/kfd"):
        return ()
    return _driven(tree, "amdgpu", _AMD_CLASSES)


def _driven(tree: Tree, driver: str, classes: tuple[int, ...]) -> tuple[Device, ...]:
    directories = pci.driven_by(tree, driver)
    return _by_address(path for path in directories if pci.device_class(tree, path) in classes)


def _by_class(tree: Tree) -> tuple[Device, ...]:
    # A kernel always tells the vendor; a captured tree without it has no drivers either.
    return _by_address(
        path
        for path in pci.device_directories(tree).values()
        if not tree.exists(f"{path}/vendor")
        and pci.device_class(tree, path) in _CLASSES_OF_GPUS_ALONE
    )


def _by_address(directories: Iterable[str]) -> tuple[Device, ...]:
    addresses = {pci.normalised(path.rpartition("/")[2]) for path in directories}
    known = sorted((address for address in addresses if address), key=pci.in_bus_order)
    return tuple(Device(address, "") for address in known)


_SOURCES = (
    # NVML alone knows what the driver lets this container use.
    ("NVML", _by_nvml),
    # The driver's own list, where NVML is missing, broken or hangs.
    ("/proc/driver/nvidia", _by_nvidia_proc),
    # What is left in a tree that was captured without /proc.
    ("sysfs", _by_nvidia_driver),
    ("sysfs", _by_amd_driver),
    ("sysfs", _by_class),
)
