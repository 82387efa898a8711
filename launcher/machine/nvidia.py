"""NVIDIA's GPUs: from NVML, else from the driver's directory in /proc, else from the PCI bus."""

from typing import TYPE_CHECKING

from launcher.machine import pci
from launcher.machine.devices import NOTHING, Device, Listing
from launcher.machine.tree import Tree, cpus_of

if TYPE_CHECKING:
    from launcher.machine.nvml import NvmlGpu

VENDOR = "nvidia"

_PROC = "proc/driver/nvidia"
_CLASSES = (0x0300, 0x0302)


def list_gpus(tree: Tree) -> Listing:
    """Return the GPUs as the first source lists them that knows any (BINDING.md S1)."""
    for source, ask in (
        # NVML alone knows what the driver lets this container use.
        ("NVML", _by_nvml),
        # The driver's own list, where NVML is missing, broken or hangs.
        ("/proc/driver/nvidia", _by_proc),
        # What is left in a tree that was captured without /proc.
        ("sysfs", _by_driver),
    ):
        devices = ask(tree)
        if devices:
            return Listing(source, devices)
    return NOTHING


def list_sites(tree: Tree) -> set[str]:
    """Return the addresses of all GPUs that the driver has, of those too that we may not open."""
    names = map(pci.normalised, tree.names(f"{_PROC}/gpus"))
    driven = pci.addresses(pci.driven_by(tree, VENDOR, _CLASSES))
    return {name for name in names if name} | set(driven)


def _by_nvml(tree: Tree) -> tuple[Device, ...]:
    if not (tree.exists(_PROC) or tree.exists("dev/nvidiactl")):
        return ()
    from launcher.machine.nvml import ask_in_child, gpus_in  # noqa: PLC0415 - only where needed

    return from_nvml(gpus_in(tree.answer("nvml", ask_in_child)))


def from_nvml(gpus: "tuple[NvmlGpu, ...]") -> tuple[Device, ...]:
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
    ]
    return tuple(sorted(devices, key=lambda device: bool(device.parent)))


def _wholes(gpus: "tuple[NvmlGpu, ...]") -> "list[NvmlGpu]":
    return [gpu for gpu in gpus if not gpu.parent]


def _by_proc(tree: Tree) -> tuple[Device, ...]:
    found = []
    for name in tree.names(f"{_PROC}/gpus"):
        facts = _information(tree.text(f"{_PROC}/gpus/{name}/information"))
        bdf = pci.normalised(facts.get("Bus Location", "")) or pci.normalised(name)
        if bdf and _may_open(tree, facts.get("Device Minor", "")):
            found.append(Device(VENDOR, 0, bdf, facts.get("GPU UUID", ""), facts.get("Model", "")))
    return _numbered(found)


def _information(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _may_open(tree: Tree, minor: str) -> bool:
    # A container sees all GPUs of its host here, but may open only its own.
    return not minor or not tree.exists("dev") or tree.can_open(f"dev/nvidia{minor}")


def _by_driver(tree: Tree) -> tuple[Device, ...]:
    # Where the driver has its directory, that has said already that none may be opened.
    if tree.exists(_PROC) or tree.exists("dev"):
        return ()
    directories = pci.driven_by(tree, VENDOR, _CLASSES)
    return _numbered(
        [
            Device(VENDOR, 0, bdf, model=pci.model_numbers(tree, directory))
            for bdf, directory in zip(pci.addresses(directories), directories, strict=True)
        ]
    )


def _numbered(devices: list[Device]) -> tuple[Device, ...]:
    in_order = sorted(devices, key=lambda device: pci.in_bus_order(device.bdf))
    return tuple(device._replace(number=number) for number, device in enumerate(in_order))
