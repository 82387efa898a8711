"""``--numa-strict``: refuse to start workers that can't be bound as asked (docs/binding.md S9)."""

from collections.abc import Iterable, Sequence

from clusterrun.domain.machine import Machine
from clusterrun.errors import MachineError
from clusterrun.job.job import Job
from clusterrun.job.options import NumaBinding
from clusterrun.planning.binding.node_binding import Placement


def require_binding(job: Job, machine: Machine, placements: Sequence[Placement]) -> None:
    """Refuse what is otherwise a remark, and unbound workers where binding makes a difference.

    Raises:
        MachineError: there are such workers; the hint has a line for each.

    """
    matters = _binding_matters(job.placing.numa_binding, machine, len(placements))
    reasons = [
        placement.remark or (placement.why_unbound if matters else "") for placement in placements
    ]
    lines = [f"local rank {index}: {reason}" for index, reason in enumerate(reasons) if reason]
    lines = [*filter(None, [machine.visible_remark]), *lines]
    if lines:
        raise strict_error(job, machine.host, lines)


def strict_error(job: Job, host: str, reasons: Iterable[str]) -> MachineError:
    """Return the error of a strict job on ``host``, with a line for each worker that can't be bound."""
    message = f"{host} can't bind all workers as asked ({job.origin('numa_strict')})"
    return MachineError(message, "\n".join(reasons))


def _binding_matters(mode: NumaBinding, machine: Machine, workers: int) -> bool:
    """Return whether a bound worker may have fewer CPUs than one that is not bound."""
    if mode.divides and workers > 1:
        return True
    allowed = machine.allowed
    nodes = [node for node in machine.nodes if node.cpus & allowed]
    if nodes:
        return len(nodes) > 1 or bool(allowed - nodes[0].cpus)
    # A kernel without NUMA: one package is one node; several, or none known, may be several nodes.
    return len([package for package in machine.packages if package & allowed]) != 1
