"""The GPUs, the CPUs and the memory of each worker of a node (docs/binding.md S4 to S6)."""

from collections.abc import Sequence
from typing import assert_never

from msgspec import Struct

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Gpu, Machine
from clusterrun.domain.plan import MemoryPolicy
from clusterrun.job.options import NumaBinding, NumaMemory
from clusterrun.planning.binding.cores import shortages
from clusterrun.planning.binding.exclusive_cpus import of_exclusive
from clusterrun.planning.binding.gpu_assignment import Assignment, Mask, assign_gpus, for_each
from clusterrun.planning.binding.shared_cpus import of_near, of_node, of_socket, packages_of


class BindingOptions(Struct, frozen=True):
    """The job's options for binding."""

    mode: NumaBinding
    memory: NumaMemory = NumaMemory.NONE
    gpus_per_worker: int | None = None
    """None if it is not set."""


class Placement(Struct, frozen=True):
    """The place of one worker; ``cpus`` is never empty and has only CPUs that are allowed."""

    gpus: tuple[Gpu, ...]
    numa_nodes: tuple[int, ...]
    cpus: CpuSet | None
    """None: not bound."""
    memory: MemoryPolicy | None
    remark: str
    """Why it is not bound as asked; "" if it is, or if that is usual."""
    why_unbound: str
    """Why it is not bound, usual or not; "" if it is, or if the mode is none."""


def place(options: BindingOptions, machine: Machine, workers: int) -> tuple[Placement, ...]:
    """Return the places of this node's ``workers``, by local rank."""
    assignments = assign_gpus(machine, workers, options.gpus_per_worker)
    masks = _masks(options.mode, machine, assignments)
    return tuple(
        _placement(options, machine, assignment, mask)
        for assignment, mask in zip(assignments, masks, strict=True)
    )


def _masks(mode: NumaBinding, machine: Machine, assignments: Sequence[Assignment]) -> list[Mask]:
    match mode:
        case NumaBinding.NONE:
            return [Mask(CpuSet(), "")] * len(assignments)
        case NumaBinding.NODE:
            return _shared(machine, assignments, of_node(machine, assignments))
        case NumaBinding.AUTO | NumaBinding.NEAR:
            cpus = of_near(machine, assignments)
            return _shared(machine, assignments, cpus, unbind_if_short=True)
        case NumaBinding.SOCKET:
            masks = _shared(machine, assignments, of_socket(machine, assignments))
            return _remark_packages(machine, assignments, masks)
        case NumaBinding.EXCLUSIVE | NumaBinding.CORE_COMPLEX:
            by_cache = mode is NumaBinding.CORE_COMPLEX
            return of_exclusive(machine, assignments, by_cache=by_cache)
        case _:
            assert_never(mode)


def _shared(
    machine: Machine,
    assignments: Sequence[Assignment],
    cpus: Sequence[CpuSet],
    *,
    unbind_if_short: bool = False,
) -> list[Mask]:
    """Return the masks, with a remark on those with too few cores; ``unbind_if_short`` unbinds these.

    Workers without GPUs are spread by cores already, and CPUs from --numa-map stay as they are.
    """
    short = shortages(machine, cpus)
    masks = []
    for worker, own in zip(assignments, cpus, strict=True):
        shortage = short.get(own) if worker.gpus else None
        if shortage is None:
            masks.append(Mask(own, ""))
        elif unbind_if_short and not any(local.is_mapped for local in worker.local):
            remark = f"not bound: {shortage.workers} workers would share {shortage.cores}"
            masks.append(Mask(CpuSet(), remark))
        else:
            masks.append(Mask(own, f"{shortage.workers} workers share {shortage.cores}"))
    return masks


def _remark_packages(
    machine: Machine, assignments: Sequence[Assignment], masks: Sequence[Mask]
) -> list[Mask]:
    """Return the masks with a remark on those whose package is unknown, unless they have all CPUs."""
    why = "bound to its node, not its package: the machine's packages are unknown"

    def is_known(worker: Assignment) -> bool:
        return all(local.is_mapped or packages_of(machine, local.cpus) for local in worker.local)

    return [
        mask
        if has_package or not mask.cpus or mask.cpus == machine.allowed
        else Mask(mask.cpus, _joined(why, mask.remark))
        for mask, has_package in zip(masks, for_each(assignments, is_known), strict=True)
    ]


def _placement(
    options: BindingOptions, machine: Machine, assignment: Assignment, mask: Mask
) -> Placement:
    binds, has_policy = options.mode is not NumaBinding.NONE, options.memory is not NumaMemory.NONE
    policy = _policy(options.memory, machine, assignment) if has_policy else None
    # Without binding, the place of the GPUs matters for a memory policy only.
    why = assignment.why_unbound if assignment.is_remarkable and (binds or has_policy) else ""
    no_policy = _why_no_policy(assignment) if has_policy and policy is None else ""
    return Placement(
        gpus=assignment.gpus,
        numa_nodes=assignment.nodes if mask.cpus else (),
        cpus=mask.cpus or None,
        memory=policy,
        remark=_joined(why, mask.remark, no_policy),
        why_unbound=assignment.why_unbound if binds else "",
    )


def _policy(mode: NumaMemory, machine: Machine, assignment: Assignment) -> MemoryPolicy | None:
    has_memory = {node.id for node in machine.nodes if node.cpus and node.has_memory}
    nodes = tuple(node for node in assignment.nodes if node in has_memory)
    return MemoryPolicy(mode.value, nodes) if nodes else None


def _why_no_policy(assignment: Assignment) -> str:
    if not assignment.nodes:
        return "no memory policy: it has no NUMA node"
    nodes = ",".join(map(str, assignment.nodes))
    return f"no memory policy: this job may not use the memory of node {nodes}"


def _joined(*remarks: str) -> str:
    return "; ".join(filter(None, remarks))
