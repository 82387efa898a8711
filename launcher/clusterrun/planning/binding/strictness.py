"""What ``--numa-strict`` refuses: workers that can't be bound as asked."""

from collections.abc import Iterable, Sequence

from clusterrun.domain.job import JobSpec, NumaBinding
from clusterrun.domain.machine import Machine
from clusterrun.errors import MachineError
from clusterrun.planning.binding.node_binding import Placement


def expect_bound_as_asked(job: JobSpec, machine: Machine, placements: Sequence[Placement]) -> None:
    """Refuse what is otherwise a remark, and workers that are not bound though that makes a difference.

    Raises:
        MachineError: there are such workers; the hint has a line for each.

    """
    makes_a_difference = _makes_a_difference(job.numa_binding.value, machine, len(placements))
    of_workers = [
        f"local rank {index}: {trouble}"
        for index, placement in enumerate(placements)
        if (trouble := placement.remark or (placement.why_unbound if makes_a_difference else ""))
    ]
    troubles = [*filter(None, [machine.visible_remark]), *of_workers]
    if troubles:
        raise not_as_asked(job, machine.host, troubles)


def not_as_asked(job: JobSpec, host: str, troubles: Iterable[str]) -> MachineError:
    """Return the error of a strict job on ``host`` whose workers can't be bound, a line for each."""
    message = f"{host} can't bind all workers as asked ({job.numa_strict.origin})"
    return MachineError(message, "\n".join(troubles))


def _makes_a_difference(mode: NumaBinding, machine: Machine, workers: int) -> bool:
    """Return whether a bound worker may have fewer CPUs than one that is not bound."""
    if mode.divides and workers > 1:
        return True
    ours = machine.allowed
    nodes = [node for node in machine.nodes if node.cpus & ours]
    if nodes:
        return len(nodes) > 1 or bool(ours - nodes[0].cpus)
    # Without NUMA in the kernel, one package is one node; with several, or none known, it isn't clear.
    return len([package for package in machine.packages if package & ours]) != 1
