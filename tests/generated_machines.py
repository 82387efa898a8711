"""Machines that hypothesis draws: each feature exists on some machine, not each combination."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from clusterrun.cpuset import CpuSet
from hypothesis import strategies as st

from tests.machine_trees import KfdNode, MachineFacts, PciDevice


class _Layout(NamedTuple):
    """CPUs of each core, and the cores of each node and package."""

    cores: Sequence[CpuSet]
    nodes: Sequence[CpuSet]
    packages: Sequence[CpuSet]

    @property
    def cpus(self) -> CpuSet:
        return CpuSet.union_of(self.cores)


@st.composite
def machines(draw: st.DrawFn) -> MachineFacts:
    """Return the facts of a machine: at most two packages of three nodes of three cores."""
    layout = draw(_layouts())
    ids = draw(st.lists(st.integers(0, 255), min_size=8, max_size=8, unique=True).map(sorted))
    with_cpus, without = ids[: len(layout.nodes)], ids[len(layout.nodes) :]
    extra = without[: draw(st.integers(0, 2))]
    offline = CpuSet(draw(st.sets(st.sampled_from(sorted(layout.cpus)), max_size=4)))
    online = CpuSet(layout.cpus - offline) or layout.cpus
    nodes = dict(zip(with_cpus, _overlapping(draw, layout.nodes), strict=True))
    numbers = sorted({*with_cpus, *extra})
    return MachineFacts(
        online=str(online),
        # A list may name CPUs that are offline.
        nodes={
            number: str(CpuSet(nodes.get(number, CpuSet()) & draw(_either(online, layout.cpus))))
            for number in numbers
        },
        distances=draw(_distances(numbers)),
        cores=[str(CpuSet(core & online)) for core in layout.cores if core & online],
        packages=[str(CpuSet(cpus & online)) for cpus in layout.packages if cpus & online],
        caches=[str(CpuSet(cpus & online)) for cpus in layout.nodes if cpus & online],
        offline=str(CpuSet(layout.cpus - online)),
        memory={number: draw(st.sampled_from((0, 8388608))) for number in numbers},
        devices=draw(_gpus(nodes, extra, online)),
        kfd=draw(_kfd(len(with_cpus))),
        allowed=draw(st.none() | _parts(online)),
        mems_allowed=draw(st.none() | st.sampled_from(numbers).map(str)),
        cpu_max=draw(st.sampled_from((None, "max 100000", "150000 100000"))),
    )


@st.composite
def _layouts(draw: st.DrawFn) -> _Layout:
    threads = draw(st.sampled_from((1, 2, 4)))
    per_package, cores_each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    count = draw(st.integers(1, 2)) * per_package
    total = count * cores_each
    if draw(st.booleans()):
        # Siblings are far apart, as on most servers; else side by side, as on POWER.
        cores = [CpuSet(range(core, total * threads, total)) for core in range(total)]
    else:
        cores = [CpuSet(range(core * threads, (core + 1) * threads)) for core in range(total)]
    if draw(st.booleans()):
        # Going round the nodes, or one node after the other.
        homes = [[core for core in range(total) if core % count == node] for node in range(count)]
    else:
        homes = [list(range(node * cores_each, (node + 1) * cores_each)) for node in range(count)]
    nodes = [CpuSet.union_of(cores[core] for core in home) for home in homes]
    packages = [
        CpuSet.union_of(nodes[first : first + per_package])
        for first in range(0, count, per_package)
    ]
    return _Layout(cores, nodes, packages)


def _overlapping(draw: st.DrawFn, nodes: Sequence[CpuSet]) -> Sequence[CpuSet]:
    match draw(st.sampled_from(("apart", "apart", "equal", "overlapping"))):
        case "equal":
            return [CpuSet.union_of(nodes)] * len(nodes)
        case "overlapping":
            return [CpuSet(cpus | nodes[0]) for cpus in nodes]
        case _:
            return nodes


def _either(*sets: CpuSet) -> st.SearchStrategy[CpuSet]:
    return st.sampled_from(sets)


def _parts(cpus: CpuSet) -> st.SearchStrategy[str]:
    return st.sets(st.sampled_from(sorted(cpus)), min_size=1).map(lambda part: str(CpuSet(part)))


@st.composite
def _distances(draw: st.DrawFn, numbers: Sequence[int]) -> Mapping[int, str]:
    rows = st.lists(
        st.sampled_from(("10", "20", "21", "80")), min_size=len(numbers), max_size=len(numbers)
    ).map(" ".join)
    known = draw(st.sets(st.sampled_from(numbers)))
    return {number: draw(rows) for number in sorted(known)}


@st.composite
def _gpus(
    draw: st.DrawFn, nodes: Mapping[int, CpuSet], extra: Sequence[int], online: CpuSet
) -> Sequence[PciDevice]:
    local = [str(cpus) for cpus in nodes.values()]
    return [
        PciDevice(
            f"0000:{16 * (number + 1):02x}:00.0",
            numa_node=draw(st.sampled_from((None, -1, *nodes, *extra, 256))),
            local_cpulist=draw(st.sampled_from((None, "", str(online), *local))),
            uuid=f"GPU-{number}",
            minor=number,
            model=draw(st.sampled_from(("NVIDIA H200", "NVIDIA H200", "Tesla P4"))),
        )
        for number in range(draw(st.integers(0, 4)))
    ]


@st.composite
def _kfd(draw: st.DrawFn, cpus: int) -> Sequence[KfdNode]:
    weights = st.dictionaries(st.integers(0, cpus - 1), st.sampled_from((20, 41)))
    gpus = [
        KfdNode(
            f"0001:{bus:02x}:00.0",
            partition=draw(st.integers(0, 1)),
            unique_id=bus,
            links=draw(weights),
        )
        for bus in range(1, draw(st.integers(0, 2)) + 1)
    ]
    return [*(KfdNode() for _ in range(cpus)), *gpus] if gpus else ()


def _node_sets(facts: MachineFacts) -> list[CpuSet]:
    return [CpuSet.parse(cpus) for cpus in (facts.nodes or {}).values()]


def _is_interleaved(cpus: CpuSet) -> bool:
    return len(cpus) > 1 and "-" not in str(cpus)


def _threads(count: int) -> Callable[[MachineFacts], bool]:
    return lambda facts: any(len(CpuSet.parse(core)) == count for core in facts.cores)


def _is_between(facts: MachineFacts, number: int | None) -> bool:
    nodes, row = facts.nodes or {}, (facts.distances or {}).get(-1 if number is None else number)
    if row is None or nodes.get(number or 0):
        return False
    columns = zip(nodes, map(int, row.split()), strict=True)
    near = sorted(distance for other, distance in columns if nodes[other])
    return len(near) > 1 and near[0] == near[1]


OCCUR: Mapping[str, Callable[[MachineFacts], bool]] = {
    "sparse ids": lambda facts: max(facts.nodes or {0: ""}) >= len(facts.nodes or {}),
    "memory-only nodes": lambda facts: any(
        not cpus and facts.memory[number] for number, cpus in (facts.nodes or {}).items()
    ),
    "nodes with neither CPUs nor memory": lambda facts: any(
        not cpus and not facts.memory[number] for number, cpus in (facts.nodes or {}).items()
    ),
    "nodes with CPUs and no memory": lambda facts: any(
        cpus and not facts.memory[number] for number, cpus in (facts.nodes or {}).items()
    ),
    "interleaved CPUs": lambda facts: any(map(_is_interleaved, _node_sets(facts))),
    "overlapping nodes": lambda facts: any(
        one & other and one != other for one in _node_sets(facts) for other in _node_sets(facts)
    ),
    "equal nodes": lambda facts: any(
        one and _node_sets(facts).count(one) > 1 for one in _node_sets(facts)
    ),
    "locality -1": lambda facts: any(device.numa_node == -1 for device in facts.devices),
    "a GPU on a node without CPUs": lambda facts: any(
        (facts.nodes or {}).get(device.numa_node if device.numa_node is not None else -1) == ""
        for device in facts.devices
    ),
    "a GPU as near to two nodes with CPUs": lambda facts: any(
        _is_between(facts, device.numa_node) for device in facts.devices
    ),
    "SMT 1": _threads(1),
    "SMT 2": _threads(2),
    "SMT 4": _threads(4),
    "offline CPUs": lambda facts: bool(facts.offline),
    "nodes that list offline CPUs": lambda facts: any(
        cpus & CpuSet.parse(facts.offline) for cpus in _node_sets(facts)
    ),
    "a cpuset with a part of a node": lambda facts: any(
        0 < len(cpus & CpuSet.parse(facts.allowed or "")) < len(cpus & CpuSet.parse(facts.online))
        for cpus in _node_sets(facts)
    ),
    "a cpuset without memory of its CPUs": lambda facts: bool(facts.mems_allowed and facts.allowed),
    "GPUs of two vendors": lambda facts: bool(facts.devices and facts.kfd),
    "GPUs of several models": lambda facts: len({one.model for one in facts.devices}) > 1,
    "partitions of a GPU": lambda facts: any(node.partition for node in facts.kfd),
}
"""Features that occur among the machines, by name."""
