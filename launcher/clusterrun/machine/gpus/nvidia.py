"""NVIDIA's GPUs: from NVML, else from the driver's directory in /proc, else from the PCI bus."""

from collections.abc import Callable

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.devices import NVIDIA_FILES, Device, Listing
from clusterrun.machine.gpus.nvml import HUNG, NvmlGpu, ask_in_child, gpus_in
from clusterrun.machine.tree import Tree, cpus_of

VENDOR = "nvidia"

_PROC = "proc/driver/nvidia"
_SOURCE = "/proc/driver/nvidia"
_CLASSES = (0x0300, 0x0302)


def list_gpus(tree: Tree) -> Listing:
    """Return the GPUs of the first source that lists any (docs/binding.md S1)."""
    # Only NVML knows what the driver lets this container use.
    answer = _nvml(tree)
    devices = from_nvml(gpus_in(answer))
    if devices:
        return Listing("NVML", devices)
    # The driver's own list, if NVML is missing or broken, or hangs.
    hung = answer == HUNG
    devices = _by_proc(tree, tree.may_use if hung else tree.can_open)
    if devices:
        return Listing(f"{_SOURCE} (NVML does not answer)" if hung else _SOURCE, devices)
    # A tree may have been captured without /proc.
    return Listing("sysfs", _by_driver(tree))


def list_addresses(tree: Tree) -> set[str]:
    """Return the addresses of all GPUs that the driver has, including those that we may not open."""
    names = map(pci.normalised, tree.names(f"{_PROC}/gpus"))
    driven = (bdf for bdf, _ in pci.driven_by(tree, VENDOR, _CLASSES))
    return {*filter(None, names), *driven}


def _nvml(tree: Tree) -> str:
    return tree.answer("nvml", ask_in_child) if any(map(tree.exists, NVIDIA_FILES)) else ""


def from_nvml(gpus: tuple[NvmlGpu, ...]) -> tuple[Device, ...]:
    """Return the whole GPUs in NVML's order, which numbers them, and after them their slices."""
    number = {gpu.uuid: index for index, gpu in enumerate(_wholes(gpus))}
    devices = [
        Device(
            VENDOR,
            number[gpu.parent or gpu.uuid],
            pci.normalised(gpu.address) or "",
            gpu.uuid,
            gpu.model,
            gpu.parent,
            gpu.legacy_name,
            cpus_of(gpu.cpus),
            cpus_of(gpu.nodes),
        )
        for gpu in gpus
        # In an edited answer a slice may belong to no GPU.
        if (gpu.parent or gpu.uuid) in number
    ]
    return tuple(sorted(devices, key=lambda device: bool(device.parent)))


def _wholes(gpus: tuple[NvmlGpu, ...]) -> list[NvmlGpu]:
    return [gpu for gpu in gpus if not gpu.parent]


def _by_proc(tree: Tree, may_open: Callable[[str], bool]) -> tuple[Device, ...]:
    # If NVML hangs, opening a GPU's file may hang, too, and no signal would end that.
    found = []
    for name in tree.names(f"{_PROC}/gpus"):
        facts = _information(tree.text(f"{_PROC}/gpus/{name}/information"))
        bdf = pci.normalised(facts.get("Bus Location", "")) or pci.normalised(name)
        minor = facts.get("Device Minor", "")
        # A container sees all GPUs of its host here, but may open only its own.
        if bdf and (not minor or not tree.exists("dev") or may_open(f"dev/nvidia{minor}")):
            found.append(Device(VENDOR, 0, bdf, facts.get("GPU UUID", ""), facts.get("Model", "")))
    in_order = sorted(found, key=lambda device: pci.in_bus_order(device.bdf))
    return tuple(device._replace(number=number) for number, device in enumerate(in_order))


def _information(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _by_driver(tree: Tree) -> tuple[Device, ...]:
    # If the driver's directory exists, its list has no GPU that we may open; hwloc keeps the
    # directory as an empty file.
    if tree.names(_PROC) or tree.exists("dev"):
        return ()
    return pci.devices_of(tree, VENDOR, pci.driven_by(tree, VENDOR, _CLASSES))
