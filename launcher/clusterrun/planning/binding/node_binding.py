"""Which GPUs a worker has, which CPUs it may use, and whose memory (docs/binding.md S4 to S6)."""

from collections.abc import Sequence
from typing import NamedTuple, assert_never

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.job import NumaBinding, NumaMemory
from clusterrun.domain.machine import Gpu, Machine
from clusterrun.domain.plan import MemoryPolicy
from clusterrun.planning.binding.crowded_cores import crowds
from clusterrun.planning.binding.exclusive_cpus import of_slices
from clusterrun.planning.binding.gpu_assignment import Home, for_each, homes_of
from clusterrun.planning.binding.near_cpus import of_near
from clusterrun.planning.binding.shared_cpus import of_node, of_socket, packages_of


class Placement(NamedTuple):
    """The place of one worker; ``cpus`` is never empty and never outside of what is allowed."""

    gpus: tuple[Gpu, ...]
    numa_nodes: tuple[int, ...]
    cpus: CpuSet | None
    """None: not bound."""
    memory: MemoryPolicy | None
    remark: str
    """Why it is not bound as asked; "" if it is, or nobody would expect it to be."""
    why_unbound: str
    """Why it is not bound, expected or not; "" if it is, or is not to be."""


class Wish(NamedTuple):
    """What the user wants of binding."""

    mode: NumaBinding
    """Which CPUs a worker is to have."""
    memory: NumaMemory = NumaMemory.NONE
    """Which memory."""
    gpus_per_worker: int | None = None
    """None where nobody says."""


class _Mask(NamedTuple):
    cpus: CpuSet
    """Empty: not to be bound."""
    remark: str


def place(wish: Wish, machine: Machine, workers: int) -> tuple[Placement, ...]:
    """Return the places of this node's ``workers``, by local rank."""
    homes = homes_of(machine, workers, wish.gpus_per_worker)
    masks = _masks(wish.mode, machine, homes)
    return tuple(
        _placed(wish, machine, home, mask) for home, mask in zip(homes, masks, strict=True)
    )


def _masks(mode: NumaBinding, machine: Machine, homes: Sequence[Home]) -> list[_Mask]:
    match mode:
        case NumaBinding.NONE:
            return [_Mask(CpuSet(), "")] * len(homes)
        case NumaBinding.NODE:
            return _shared(machine, homes, of_node(machine, homes))
        case NumaBinding.AUTO | NumaBinding.NEAR:
            return _shared(machine, homes, of_near(machine, homes), only_if_roomy=True)
        case NumaBinding.SOCKET:
            return _with_packages(
                machine, homes, _shared(machine, homes, of_socket(machine, homes))
            )
        case NumaBinding.EXCLUSIVE | NumaBinding.CORE_COMPLEX:
            by_cache = mode is NumaBinding.CORE_COMPLEX
            return [_Mask(*slice_) for slice_ in of_slices(machine, homes, by_cache=by_cache)]
        case _:
            assert_never(mode)


def _shared(
    machine: Machine, homes: Sequence[Home], cpus: Sequence[CpuSet], *, only_if_roomy: bool = False
) -> list[_Mask]:
    """Return the masks with remarks on crowded ones; ``only_if_roomy`` binds no worker there.

    Workers without GPUs are spread by cores already, and what the user has mapped is as it is.
    """
    crowded = crowds(machine, cpus)
    masks = []
    for home, own in zip(homes, cpus, strict=True):
        crowd = crowded.get(own) if home.gpus else None
        if crowd is None:
            masks.append(_Mask(own, ""))
        elif only_if_roomy and not any(spot.is_pinned for spot in home.spots):
            remark = f"not bound: {crowd.workers} workers would share {crowd.cores}"
            masks.append(_Mask(CpuSet(), remark))
        else:
            masks.append(_Mask(own, f"{crowd.workers} workers share {crowd.cores}"))
    return masks


def _with_packages(machine: Machine, homes: Sequence[Home], masks: Sequence[_Mask]) -> list[_Mask]:
    """Return the masks with a remark on those for which no package is known, unless they have all."""
    why = "has its node, not its package: nothing tells which CPUs are one package"

    def is_known(home: Home) -> bool:
        return all(spot.is_pinned or packages_of(machine, spot.cpus) for spot in home.spots)

    return [
        mask
        if has_package or not mask.cpus or mask.cpus == machine.allowed
        else _Mask(mask.cpus, "; ".join(filter(None, (why, mask.remark))))
        for mask, has_package in zip(masks, for_each(homes, is_known), strict=True)
    ]


def _placed(wish: Wish, machine: Machine, home: Home, mask: _Mask) -> Placement:
    memory = wish.memory
    policy = _policy(memory, machine, home)
    is_to_be_bound = wish.mode is not NumaBinding.NONE
    why = "" if home.is_usual else home.why_unbound
    remarks = (
        # Who wants no binding has not asked where the GPUs are, but for their memory.
        why if is_to_be_bound or memory is not NumaMemory.NONE else "",
        mask.remark,
        "" if policy or memory is NumaMemory.NONE else _why_no_policy(home),
    )
    return Placement(
        gpus=home.gpus,
        numa_nodes=home.nodes if mask.cpus else (),
        cpus=mask.cpus or None,
        memory=policy,
        remark="; ".join(filter(None, remarks)),
        why_unbound=home.why_unbound if is_to_be_bound else "",
    )


def _policy(memory: NumaMemory, machine: Machine, home: Home) -> MemoryPolicy | None:
    has_memory = {node.id for node in machine.nodes if node.cpus and node.has_memory}
    nodes = tuple(node for node in home.nodes if node in has_memory)
    return MemoryPolicy(memory, nodes) if nodes and memory is not NumaMemory.NONE else None


def _why_no_policy(home: Home) -> str:
    if not home.nodes:
        return "no memory policy: it belongs to no NUMA node"
    which = ",".join(map(str, home.nodes))
    return f"no memory policy: this job may use no memory of node {which}"
