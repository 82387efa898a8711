"""Trees of /sys and /proc of invented machines, from a few facts."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clusterrun.cpuset import CpuSet

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
PCI = "sys/bus/pci"
KFD = "sys/class/kfd/kfd/topology/nodes"


@dataclass(frozen=True)
class PciDevice:
    """A device as /sys shows it; None: there is no such file."""

    bdf: str
    numa_node: int | None = -1
    local_cpulist: str | None = None
    local_cpus: str | None = None
    pci_class: str = "0x030200"
    vendor: str | None = "0x10de"
    driver: str = "nvidia"
    """The driver that has it; "" for none."""
    uuid: str = ""
    minor: int | None = None
    """Number of its /dev/nvidiaN; then /proc/driver/nvidia lists it."""
    behind: str = ""
    """Its real directory, below sys/devices: ``pci0000:00/0000:00:01.0``."""
    model: str = "NVIDIA H200"
    """Its name by the driver."""
    device: str | None = None
    """Number of the model on the bus."""
    drm: Sequence[str] = ()
    """Its graphics nodes: ``card0``, ``renderD128``."""
    tiles: int = 0
    """Directories ``tile0``, ... of the xe driver."""
    virtual: bool = False
    """It is a virtual function of another device."""


NVIDIA = PciDevice("")
AMD = PciDevice("", vendor="0x1002", driver="amdgpu")
INTEL = PciDevice("", vendor="0x8086", driver="xe", pci_class="0x038000")
HUAWEI = PciDevice("", vendor="0x19e5", driver="devdrv_device_driver", pci_class="0x120000")


def on_bus(kind: PciDevice, *buses: str) -> list[PciDevice]:
    """Return a device of this kind on each of these buses; NVIDIA's have /dev/nvidia0 and so on."""
    return [
        replace(kind, bdf=f"0000:{bus}:00.0", minor=at if kind.driver == "nvidia" else None)
        for at, bus in enumerate(buses)
    ]


@dataclass(frozen=True)
class KfdNode:
    """A node of AMD's KFD: a GPU if it has an address, else a CPU."""

    bdf: str = ""
    partition: int = 0
    """The number of the partition."""
    render: int = 0
    unique_id: int = 0
    links: Mapping[int, int] = field(default_factory=dict)
    """Weight by the number of the node at the other end."""
    version: int = 90010
    readable: bool = True
    """Whether its properties may be read: those of other containers' GPUs are empty."""


@dataclass(frozen=True)
class MachineFacts:
    """What a machine has; the defaults are two packages of two cores, a NUMA node each."""

    online: str = "0-3"
    nodes: Mapping[int, str] | None = None
    """CPUs by node id; None: two halves; {}: a kernel without NUMA."""
    distances: Mapping[int, str] | None = None
    """``nodeN/distance`` by node id."""
    cores: Sequence[str] = ()
    """CPUs of each core that has several."""
    packages: Sequence[str] = ("0-1", "2-3")
    caches: Sequence[str] = ()
    """CPUs that share an L3 cache."""
    offline: str = ""
    """CPUs that have an empty directory."""
    memory: Mapping[int, int] = field(default_factory=dict)
    """``MemTotal`` in kB by node id."""
    mems_allowed: str | None = None
    """Mems_allowed_list of a captured process."""
    cpu_max: str | None = None
    """The limit on CPU time of control group version 2."""
    devices: Sequence[PciDevice] = ()
    kfd: Sequence[KfdNode] = ()
    """AMD's own topology, by node."""
    allowed: str | None = None
    """Cpus_allowed_list of a captured process."""


def two_nodes(devices: Sequence[PciDevice] = (), allowed: str | None = None) -> MachineFacts:
    """Return two packages with four cores each, all of a package in one NUMA node."""
    return MachineFacts(
        online="0-7",
        nodes={0: "0-3", 1: "4-7"},
        packages=("0-3", "4-7"),
        devices=devices,
        allowed=allowed,
    )


def dgx_a100(cpus: int = 256) -> MachineFacts:
    """Return two packages with four nodes each, and eight GPUs in the order of that machine."""
    cores = cpus // 2
    per_node, per_cache = cores // 8, cores // 16

    def together(first: int, count: int) -> str:
        return f"{first}-{first + count - 1},{first + cores}-{first + cores + count - 1}"

    nodes = {node: together(node * per_node, per_node) for node in range(8)}
    return MachineFacts(
        online=f"0-{cpus - 1}",
        nodes=nodes,
        distances={
            node: " ".join(
                "10" if other == node else "12" if other // 4 == node // 4 else "32"
                for other in range(8)
            )
            for node in range(8)
        },
        cores=[f"{core},{core + cores}" for core in range(cores)],
        packages=[together(package * cores // 2, cores // 2) for package in range(2)],
        caches=[together(cache * per_cache, per_cache) for cache in range(16)],
        memory=dict.fromkeys(range(8), 263784192),
        devices=[
            PciDevice(f"0000:{bus:02x}:00.0", numa_node=node, uuid=f"GPU-{minor}", minor=minor)
            for minor, (bus, node) in enumerate(
                zip((0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD), _OF_A_DGX, strict=True)
            )
        ],
    )


_OF_A_DGX = (3, 3, 1, 1, 7, 7, 5, 5)


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write files below ``root`` by path, each with a line end as the kernel does."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")


def write_tree(root: Path, facts: MachineFacts) -> Path:
    """Write the tree of a machine and return its ``root``."""
    nodes = {0: "0-1", 1: "2-3"} if facts.nodes is None else facts.nodes
    write_files(root, {f"{CPUS}/online": facts.online} | _topology(facts))
    if nodes:
        write_files(root, {f"{NODES}/online": str(CpuSet(nodes))})
    for number, cpus in nodes.items():
        write_files(root, {f"{NODES}/node{number}/cpulist": cpus})
    for number, row in (facts.distances or {}).items():
        write_files(root, {f"{NODES}/node{number}/distance": row})
    for device in facts.devices:
        _write_device(root, device)
    for number, node in enumerate(facts.kfd):
        write_files(root, _kfd_files(f"{KFD}/{number}", number, node))
    for number, size in facts.memory.items():
        text = f"Node {number} MemTotal:       {size} kB\nNode {number} MemFree:        0 kB"
        write_files(root, {f"{NODES}/node{number}/meminfo": text})
    write_files(root, _of_a_process(facts))
    return root


def _of_a_process(facts: MachineFacts) -> dict[str, str]:
    lists = {"Cpus_allowed_list": facts.allowed, "Mems_allowed_list": facts.mems_allowed}
    lines = [f"{name}:\t{text}" for name, text in lists.items() if text is not None]
    files = {"proc/self/status": "\n".join(["Name:\tx", *lines])} if lines else {}
    if facts.cpu_max is not None:
        files |= {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": facts.cpu_max}
    return files


def _topology(facts: MachineFacts) -> dict[str, str]:
    files = {}
    cores = [CpuSet.parse(core) for core in facts.cores]
    packages = [CpuSet.parse(package) for package in facts.packages]
    for cpu in CpuSet.parse(facts.online):
        directory = f"{CPUS}/cpu{cpu}/topology"
        core = next((core for core in cores if cpu in core), CpuSet((cpu,)))
        files[f"{directory}/thread_siblings_list"] = str(core)
        package = [number for number, cpus in enumerate(packages) if cpu in cpus]
        files[f"{directory}/physical_package_id"] = str(package[0] if package else -1)
        if package:
            files[f"{directory}/core_siblings_list"] = str(packages[package[0]])
    caches = [CpuSet.parse(text) for text in facts.caches]
    for cpu, cache in ((cpu, shared) for shared in caches for cpu in shared):
        files |= cache_files(cpu, 3, cache)
    for cpu in CpuSet.parse(facts.offline):
        files[f"{CPUS}/cpu{cpu}/online"] = "0"
    return files


def cache_files(
    cpu: int, index: int, shared: Iterable[int], level: int = 3, kind: str = "Unified"
) -> dict[str, str]:
    """Return what /sys says of a cache of a CPU."""
    facts = {"level": str(level), "type": kind, "shared_cpu_list": str(CpuSet(shared))}
    return {f"{CPUS}/cpu{cpu}/cache/index{index}/{name}": text for name, text in facts.items()}


def _write_device(root: Path, device: PciDevice) -> None:
    """Write what /sys and /proc say of a device."""
    listed = f"{PCI}/devices/{device.bdf}"
    if device.behind:
        real = f"sys/devices/{device.behind}/{device.bdf}"
        _link(root, listed, real)
    else:
        real = listed
    facts = {
        "class": device.pci_class,
        "vendor": device.vendor,
        "device": device.device,
        "numa_node": None if device.numa_node is None else str(device.numa_node),
        "local_cpulist": device.local_cpulist,
        "local_cpus": device.local_cpus,
    }
    write_files(root, {f"{real}/{name}": text for name, text in facts.items() if text is not None})
    for name in (*device.drm, *(f"../tile{number}" for number in range(device.tiles))):
        (root / real / "drm" / name).resolve().mkdir(parents=True)
    if device.virtual:
        _link(root, f"{real}/physfn", f"{PCI}/devices")
    if device.driver:
        _link(root, f"{PCI}/drivers/{device.driver}/{device.bdf}", real)
    if device.minor is not None:
        _write_information(root, device)


def _write_information(root: Path, device: PciDevice) -> None:
    lines = (
        f"Model: \t\t {device.model}",
        f"GPU UUID: \t {device.uuid}",
        f"Bus Location: \t {device.bdf}",
        f"Device Minor: \t {device.minor}",
    )
    write_files(root, {f"proc/driver/nvidia/gpus/{device.bdf}/information": "\n".join(lines)})


def _kfd_files(directory: str, number: int, node: KfdNode) -> dict[str, str]:
    domain, bus, slot = (int(part, 16) for part in (node.bdf or "0:0:0").split(".")[0].split(":"))
    facts = {
        "cpu_cores_count": 0 if node.bdf else 4,
        "simd_count": 416 if node.bdf else 0,
        "domain": domain,
        "location_id": bus << 8 | slot << 3 | node.partition,
        "drm_render_minor": node.render,
        "unique_id": node.unique_id,
        "gfx_target_version": node.version if node.bdf else 0,
    }
    text = "\n".join(f"{name} {value}" for name, value in facts.items()) if node.readable else ""
    return {f"{directory}/properties": text} | {
        f"{directory}/io_links/{at}/properties": f"node_from {number}\nnode_to {to}\nweight {weight}"
        for at, (to, weight) in enumerate(node.links.items())
    }


def _link(root: Path, path: str, target: str) -> None:
    link = root / path
    link.parent.mkdir(parents=True, exist_ok=True)
    (root / target).mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(root / target, link.parent))
