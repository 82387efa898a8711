"""AMD's GPUs, in the order of KFD (the compute part of the driver), which is ROCm's order."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.devices import NO_GPUS, Device, Listing
from clusterrun.machine.tree import Tree, number_of

VENDOR = "amd"

_NODES = "sys/class/kfd/kfd/topology/nodes"
_DRIVER = "amdgpu"
_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)


class _Node(NamedTuple):
    """A node of KFD's topology: a CPU, a GPU, a part of one, or both in one."""

    number: int
    properties: Mapping[str, int]
    """Empty if this process may not read them: a container's device rules hide the GPU."""

    @property
    def is_gpu(self) -> bool:
        return self.properties.get("simd_count", 0) > 0

    @property
    def has_cpus(self) -> bool:
        return self.properties.get("cpu_cores_count", 0) > 0


def list_gpus(tree: Tree) -> Listing:
    """Return the GPUs, each partition of one as a GPU of its own (docs/binding.md S1)."""
    # A graphics chip that can't compute has this driver, too, but no /dev/kfd.
    if tree.exists("dev") and not tree.exists("dev/kfd"):
        return NO_GPUS
    # If KFD lists GPUs, no other source is used.
    if tree.exists(_NODES):
        return Listing("KFD", _by_kfd(tree))
    return Listing("sysfs", pci.devices_of(tree, VENDOR, pci.driven_by(tree, _DRIVER, _CLASSES)))


def list_addresses(tree: Tree) -> set[str]:
    """Return the addresses of all GPUs that can compute, including those that we may not open."""
    nodes = list(_nodes(tree))
    if nodes and all(node.properties for node in nodes):
        return {_address(node) for node in nodes if node.is_gpu}
    if not nodes and tree.exists("dev") and not tree.exists("dev/kfd"):
        return set()
    return {bdf for bdf, _ in pci.driven_by(tree, _DRIVER, _CLASSES)}


class Topology:
    """KFD's nodes with CPUs and the links to them; each table is parsed once."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._with_cpus = [node.number for node in _nodes(tree) if node.has_cpus]

    @property
    def count_with_cpus(self) -> int:
        return len(self._with_cpus)

    def nearest_cpus(self, kfd_node: int) -> int | None:
        """Return which of the nodes with CPUs is linked to a GPU with the least weight.

        Args:
            kfd_node: the GPU's number among KFD's nodes.

        Returns:
            The index among KFD's nodes with CPUs, which are the NUMA nodes with CPUs by id; None if
            two are equally near, or none is linked.

        """
        if kfd_node in self._with_cpus:
            return self._with_cpus.index(kfd_node)
        weights = self._weights(kfd_node)
        nearest = [target for target, weight in weights.items() if weight == min(weights.values())]
        return self._with_cpus.index(nearest[0]) if len(nearest) == 1 else None

    def _weights(self, kfd_node: int) -> dict[int, int]:
        """Return the least weight of the links to each node with CPUs."""
        links = f"{_NODES}/{kfd_node}/io_links"
        weights: dict[int, int] = {}
        for name in self._tree.names(links):
            facts = _properties(self._tree, f"{links}/{name}")
            target, weight = facts.get("node_to"), facts.get("weight")
            if target in self._with_cpus and weight is not None:
                weights[target] = min(weight, weights.get(target, weight))
        return weights


def _by_kfd(tree: Tree) -> tuple[Device, ...]:
    gpus = [node for node in _nodes(tree) if node.is_gpu and _may_open(tree, node)]
    return tuple(_device(tree, index, node) for index, node in enumerate(gpus))


def _device(tree: Tree, index: int, node: _Node) -> Device:
    bdf = _address(node)
    unique = node.properties.get("unique_id", 0)
    # ROCm's form; a GPU without a unique number has no UUID either.
    uuid = f"GPU-{unique:016x}" if unique else ""
    return Device(VENDOR, index, bdf, uuid, _model(tree, bdf, node), kfd_node=node.number)


def _address(node: _Node) -> str:
    location = node.properties.get("location_id", 0)
    # A partition stores its number in the function; the GPU is function 0.
    return pci.address_of(
        node.properties.get("domain", 0), location >> 8 & 0xFF, location >> 3 & 0x1F, 0
    )


def _model(tree: Tree, bdf: str, node: _Node) -> str:
    directory = pci.directory_of(tree, bdf)
    name = tree.text(f"{directory}/product_name") if directory else ""
    version = node.properties.get("gfx_target_version", 0)
    # 90010 is what compilers call gfx90a.
    architecture = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    return name or (architecture if version else "")


def _may_open(tree: Tree, node: _Node) -> bool:
    minor = node.properties.get("drm_render_minor", 0)
    return not minor or not tree.exists("dev") or tree.may_use(f"dev/dri/renderD{minor}")


def _nodes(tree: Tree) -> Iterator[_Node]:
    numbers = sorted(int(name) for name in tree.names(_NODES) if name.isdecimal())
    for number in numbers:
        yield _Node(number, _properties(tree, f"{_NODES}/{number}"))


def _properties(tree: Tree, directory: str) -> dict[str, int]:
    pairs = (line.partition(" ") for line in tree.text(f"{directory}/properties").splitlines())
    numbers = ((name, number_of(value)) for name, _, value in pairs)
    return {name: number for name, number in numbers if number is not None}
