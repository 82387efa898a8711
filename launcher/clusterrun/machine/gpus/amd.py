"""AMD's GPUs, in the order of KFD (the compute part of the driver), which is ROCm's order.

ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES are parsed as ROCr and HIP parse them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.gpus import Visible
from clusterrun.machine.machine import Gpu, Hints
from clusterrun.machine.tree import Tree, parse_number

_VENDOR = "amd"

_NODES = "sys/class/kfd/kfd/topology/nodes"
_DRIVER = "amdgpu"
_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)

_ROCR = "ROCR_VISIBLE_DEVICES"
_HIP = "HIP_VISIBLE_DEVICES"
_CUDA = "CUDA_VISIBLE_DEVICES"


class _Node(NamedTuple):
    """A node of KFD's topology: a CPU, a GPU, a partition of a GPU, or a CPU with a GPU."""

    number: int
    properties: Mapping[str, int]
    """Empty if this process may not read them, because a container's device rules hide the GPU."""

    @property
    def is_gpu(self) -> bool:
        return self.properties.get("simd_count", 0) > 0

    @property
    def has_cpus(self) -> bool:
        return self.properties.get("cpu_cores_count", 0) > 0


def gpus(tree: Tree) -> tuple[Gpu, ...]:
    """Return the GPUs; each partition of one is a GPU (docs/binding.md S1)."""
    # A graphics chip that can't compute has the same driver, but no /dev/kfd.
    if tree.exists("dev") and not tree.exists("dev/kfd"):
        return ()
    # KFD's list is complete, so no other source is used.
    if tree.exists(_NODES):
        return _by_kfd(tree)
    return pci.gpus_at(tree, _VENDOR, pci.driven_by(tree, _DRIVER, _CLASSES))


def addresses(tree: Tree) -> set[str]:
    """Return the PCI addresses of all GPUs that can compute, including those that we may not open."""
    nodes = list(_nodes(tree))
    if nodes and all(node.properties for node in nodes):
        return {_address(node) for node in nodes if node.is_gpu}
    if not nodes and tree.exists("dev") and not tree.exists("dev/kfd"):
        return set()
    return {bdf for bdf, _ in pci.driven_by(tree, _DRIVER, _CLASSES)}


class Topology:
    """KFD's nodes with CPUs, and the links to them."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._with_cpus = [node.number for node in _nodes(tree) if node.has_cpus]

    @property
    def count_with_cpus(self) -> int:
        return len(self._with_cpus)

    def nearest_cpus(self, kfd_node: int) -> int | None:
        """Return the node with CPUs whose link to the GPU at ``kfd_node`` has the least weight.

        Returns:
            Its index among KFD's nodes with CPUs, which are the NUMA nodes with CPUs in order of their
            ids; None if several are equally near, or none is linked.

        """
        if kfd_node in self._with_cpus:
            return self._with_cpus.index(kfd_node)
        weights = self._weights(kfd_node)
        nearest = [target for target, weight in weights.items() if weight == min(weights.values())]
        return self._with_cpus.index(nearest[0]) if len(nearest) == 1 else None

    def _weights(self, kfd_node: int) -> dict[int, int]:
        """Return the least weight of the links from a node to each node with CPUs."""
        links = f"{_NODES}/{kfd_node}/io_links"
        weights: dict[int, int] = {}
        for name in self._tree.names(links):
            facts = _properties(self._tree, f"{links}/{name}")
            target, weight = facts.get("node_to"), facts.get("weight")
            if target in self._with_cpus and weight is not None:
                weights[target] = min(weight, weights.get(target, weight))
        return weights


def _by_kfd(tree: Tree) -> tuple[Gpu, ...]:
    nodes = [node for node in _nodes(tree) if node.is_gpu and _may_open(tree, node)]
    return tuple(_gpu(tree, index, node) for index, node in enumerate(nodes))


def _gpu(tree: Tree, index: int, node: _Node) -> Gpu:
    bdf = _address(node)
    unique = node.properties.get("unique_id", 0)
    return Gpu(
        index,
        bdf,
        # ROCm's form. A GPU without a unique id has no UUID.
        f"GPU-{unique:016x}" if unique else "",
        vendor=_VENDOR,
        model=_model(tree, bdf, node),
        listed_by="KFD",
        hints=Hints(kfd_node=node.number),
    )


def _address(node: _Node) -> str:
    location = node.properties.get("location_id", 0)
    # The function is the number of a partition; the GPU itself is function 0.
    return pci.address_of(
        node.properties.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 0x1F, 0
    )


def _model(tree: Tree, bdf: str, node: _Node) -> str:
    directory = pci.directory_of(tree, bdf)
    name = tree.text(f"{directory}/product_name") if directory else ""
    version = node.properties.get("gfx_target_version", 0)
    # Compilers call 90010 gfx90a.
    architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    return name or (architecture if version else "")


def _may_open(tree: Tree, node: _Node) -> bool:
    minor = node.properties.get("drm_render_minor", 0)
    return not minor or not tree.exists("dev") or tree.may_use(f"dev/dri/renderD{minor}")


def _nodes(tree: Tree) -> Iterator[_Node]:
    for number in tree.numbers(_NODES):
        yield _Node(number, _properties(tree, f"{_NODES}/{number}"))


def _properties(tree: Tree, directory: str) -> dict[str, int]:
    facts = tree.facts(f"{directory}/properties", " ")
    return {name: number for name in facts if (number := parse_number(facts[name])) is not None}


def choose(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> Visible:
    """Return the GPUs that the job's environment selects.

    ROCr applies its variable first. HIP, on top of it, numbers the remaining GPUs, and reads
    CUDA_VISIBLE_DEVICES if its own variable is not set.
    """
    origins, warnings = [], []
    upper = _HIP if _HIP in environ else _CUDA
    for variable, read in ((_ROCR, _read_rocr), (upper, _read_hip)):
        text = environ.get(variable)
        if text is not None:
            origins.append(f"{variable}={text}")
            gpus, warning = read(text, gpus, variable)
            warnings.append(warning)
    return Visible(gpus, " ".join(origins), next(filter(None, warnings), ""))


_Read = tuple[tuple[Gpu, ...], str]


def _read_rocr(text: str, gpus: Sequence[Gpu], variable: str) -> _Read:
    # As RvdFilter of ROCR-Runtime: numbers in any base, UUIDs in any case. An invalid or repeated
    # entry ends the list.
    chosen: list[Gpu] = []
    for entry in text.split(",") if text else ():
        gpu = _by_rocr(entry.strip().upper(), gpus)
        if gpu is None or gpu in chosen:
            return tuple(chosen), _list_ends(variable, text, entry, "ROCm")
        chosen.append(gpu)
    return tuple(chosen), ""


def _by_rocr(entry: str, gpus: Sequence[Gpu]) -> Gpu | None:
    if entry.startswith("G"):
        found = [gpu for gpu in gpus if gpu.uuid.upper().startswith(entry)]
        return found[0] if len(entry) >= len("GPU-0") and len(found) == 1 else None
    try:
        # strtol parses "010" as eight, Python as an error.
        number = int(entry, 8 if entry.startswith("0") and entry.isdecimal() else 0)
    except ValueError:
        return None
    return gpus[number] if 0 <= number < len(gpus) else None


def _read_hip(text: str, gpus: Sequence[Gpu], variable: str) -> _Read:
    # As HIP's device.cpp: decimal numbers, any part of a UUID. An invalid entry ends the list, a
    # repeated one counts once.
    chosen: list[Gpu] = []
    for entry in text.split(",") if text else ():
        gpu = _by_hip(entry, gpus)
        if gpu is None:
            purpose = entry == "-1"
            return tuple(chosen), "" if purpose else _list_ends(variable, text, entry, "HIP")
        if gpu not in chosen:
            chosen.append(gpu)
    return tuple(chosen), ""


def _by_hip(entry: str, gpus: Sequence[Gpu]) -> Gpu | None:
    if "GPU-" in entry:
        return next((gpu for gpu in gpus if entry in gpu.uuid), None)
    return next((gpu for at, gpu in enumerate(gpus) if entry == str(at)), None)


def _list_ends(variable: str, text: str, entry: str, reader: str) -> str:
    return (
        f"{variable}={text}: {entry!r} is not a GPU of this node, or is listed twice; {reader} ends"
        " the list there"
    )
