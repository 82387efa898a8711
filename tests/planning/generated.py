"""Machines that hypothesis draws, with all combinations of the features below."""

from collections.abc import Sequence
from typing import NamedTuple

from clusterrun.cpuset import CpuSet
from clusterrun.machine.machine import Machine
from hypothesis import strategies as st

from tests.plans import machine

FEATURES = (
    "sparse ids",
    "memory-only node",
    "node without memory",
    "interleaved CPUs",
    "overlapping nodes",
    "equal nodes",
    "locality unknown",
    "SMT 1",
    "SMT 2",
    "SMT 4",
    "offline CPUs",
    "partial cpuset",
    "hidden GPUs",
    "permuted GPUs",
    "caches",
    "cores not known",
)


class Generated(NamedTuple):
    """A machine, and which of ``FEATURES`` it has."""

    machine: Machine
    features: frozenset[str]


@st.composite
def machines(draw: st.DrawFn) -> Generated:
    """Return a machine whose cores each belong to one node, or to all nodes that overlap there."""
    smt = draw(st.sampled_from([1, 2, 4]))
    per_node = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    interleaved = draw(st.booleans())
    cores_of = _cores_by_node(per_node, smt, interleaved=interleaved)
    offline = draw(_some_of([cpu for cores in cores_of for core in cores for cpu in core]))
    cores_of = [[left for core in cores if (left := CpuSet(core - offline))] for cores in cores_of]
    cpus_of = [CpuSet.union_of(cores) for cores in cores_of]
    features = {f"SMT {smt}"} | ({"offline CPUs"} if offline else set())
    match draw(st.sampled_from(["apart", "apart", "apart", "overlapping", "equal"])):
        case "overlapping" if len(cpus_of) > 1:
            cpus_of[1] = CpuSet(cpus_of[1] | CpuSet.union_of(cores_of[0][:1]))
            features |= {"overlapping nodes"} if cpus_of[1] & cpus_of[0] else set()
        case "equal" if len(cpus_of) > 1:
            cpus_of = [CpuSet.union_of(cpus_of)] * len(cpus_of)
            features |= {"equal nodes"}
        case _:
            features |= {"interleaved CPUs"} if interleaved and len(cpus_of) > 1 else set()
    features |= {"memory-only node"} if draw(st.booleans()) else set()
    cpus_of += [CpuSet()] * ("memory-only node" in features)
    ids = sorted(draw(_ids(len(cpus_of))))
    features |= {"sparse ids"} if ids != list(range(len(ids))) else set()
    without_memory = draw(st.lists(st.sampled_from(ids), max_size=1))
    features |= {"node without memory"} if without_memory else set()
    everything = CpuSet.union_of(cpus_of)
    allowed = draw(st.just(everything) | _some_of(sorted(everything))) or everything
    features |= {"partial cpuset"} if allowed != everything else set()
    with_cpus = [number for number, cpus in zip(ids, cpus_of, strict=True) if cpus]
    places: st.SearchStrategy[int | None] = st.sampled_from(with_cpus)
    pci_gpus = draw(st.lists(places | places | places | st.none(), max_size=8))
    features |= {"locality unknown"} if None in pci_gpus else set()
    shown = draw(st.permutations(range(len(pci_gpus))))[: draw(st.integers(0, len(pci_gpus)))]
    features |= {"hidden GPUs"} if 0 < len(shown) < len(pci_gpus) else set()
    features |= {"permuted GPUs"} if list(shown) != sorted(shown) else set()
    known = draw(st.sampled_from([True, True, True, False]))
    features |= set() if known else {"cores not known"}
    cores = [core for cores in cores_of for core in cores]
    size = draw(st.sampled_from([0, 1, 2, 3]))
    features |= {"caches"} if size else set()
    made = machine(
        dict(zip(ids, map(str, cpus_of), strict=True)),
        pci_gpus,
        allowed=str(CpuSet(allowed)),
        packages=[str(cpus) for cpus in _packages(cpus_of, draw(st.integers(1, 2)))],
        cores=[str(core) for core in cores] if known else (),
        cores_known=known,
        caches=[str(CpuSet.union_of(part)) for part in _in_parts(cores_of, size)],
        visible=shown,
        without_memory=without_memory,
    )
    return Generated(made, frozenset(features))


def _cores_by_node(per_node: Sequence[int], smt: int, *, interleaved: bool) -> list[list[CpuSet]]:
    total = sum(per_node)
    # As most firmware does: first siblings of all cores first; node after node, or in turns.
    owners = [node for node, count in enumerate(per_node) for _ in range(count)]
    if interleaved:
        turns = sorted((owners[:at].count(node), node) for at, node in enumerate(owners))
        owners = [node for _, node in turns]
    cores: list[list[CpuSet]] = [[] for _ in per_node]
    for number, node in enumerate(owners):
        cores[node].append(CpuSet(number + total * sibling for sibling in range(smt)))
    return cores


def _some_of(cpus: Sequence[int]) -> st.SearchStrategy[CpuSet]:
    """Return a strategy for nothing, or a part of ``cpus`` that is not all."""
    if len(cpus) < 2:
        return st.just(CpuSet())
    some = st.lists(st.sampled_from(cpus), max_size=len(cpus) - 1).map(CpuSet)
    return st.just(CpuSet()) | some


def _ids(count: int) -> st.SearchStrategy[Sequence[int]]:
    return st.just(range(count)) | st.lists(
        st.integers(0, 255), unique=True, min_size=count, max_size=count
    )


def _packages(cpus_of: Sequence[CpuSet], count: int) -> list[CpuSet]:
    half = -(-len(cpus_of) // count)
    parts = (cpus_of[at : at + half] for at in range(0, len(cpus_of), half))
    return [cpus for part in parts if (cpus := CpuSet.union_of(part))]


def _in_parts(cores_of: Sequence[Sequence[CpuSet]], size: int) -> list[Sequence[CpuSet]]:
    return [
        cores[at : at + size] for cores in cores_of if size for at in range(0, len(cores), size)
    ]
