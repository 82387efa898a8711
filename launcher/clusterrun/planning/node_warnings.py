"""Warnings about a node: too few CPUs, unused CPUs and GPUs, settings that undo the binding.

``--numa-strict`` turns warnings about binding into errors (docs/binding.md S9).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from clusterrun.bounds import counted
from clusterrun.cpuset import CpuSet, number_ranges
from clusterrun.errors import MachineError, printable
from clusterrun.job.job import Job
from clusterrun.job.options import NumaBinding
from clusterrun.job.values import WorkerCount
from clusterrun.machine.machine import Machine
from clusterrun.planning.binding import CoreShares, bind_own_workers
from clusterrun.planning.placement import BindingRequest, Placement, binding_matters
from clusterrun.planning.worker_slots import ONE_SLICE, only_slice


def warnings_for(
    job: Job,
    machine: Machine,
    placements: Sequence[Placement],
    idle_cpus: str,
    before: Mapping[str, str],
) -> tuple[str, ...]:
    """Return the warnings about a node; ``before`` is the environment before clusterrun changes it."""
    warnings = (
        machine.visible_warning,
        _too_few_cpus(machine, len(placements)),
        _counted_by_quota(job, machine, len(placements)),
        _not_as_named(job, placements),
        idle_cpus,
        _idle_gpus(job, machine, placements),
        _one_slice(job, machine),
        _bound_by_openmp(placements, before),
        _uncounted(job, machine),
    )
    return tuple(warning for warning in warnings if warning)


def _counted_by_quota(job: Job, machine: Machine, workers: int) -> str:
    """Return a warning if the cgroup's CPU quota limits the number of workers."""
    count, quota = len(machine.allowed), machine.cpu_quota
    wanted = job.workers.nproc_per_node
    by_cpus = {WorkerCount.CPU} if machine.visible else {WorkerCount.CPU, WorkerCount.AUTO}
    if wanted not in by_cpus or quota is None or workers == count:
        return ""
    few = f"{counted(workers, 'worker')}: the cgroup may use {quota:g} of {count} CPUs (quota)"
    return f"{few}; for more, give --nproc-per-node a number"


def _not_as_named(job: Job, placements: Sequence[Placement]) -> str:
    """Return a warning if the user has set a mode and it binds no worker, for a reason that is common."""
    mode = job.placing.numa_binding
    reason = next((it.why_unbound for it in placements if it.why_unbound and not it.warning), "")
    if mode is NumaBinding.AUTO or not reason:
        return ""
    return f"{reason} (numa_binding is {mode.value}: {job.origin('numa_binding')})"


def _too_few_cpus(machine: Machine, workers: int) -> str:
    count, quota = len(machine.allowed), machine.cpu_quota
    if quota is not None and quota < min(count, workers):
        share, its = (
            ("1 worker has", "its") if workers == 1 else (f"{workers} workers share", "their")
        )
        return f"{share} {counted(quota, 'CPU')}, the quota of {its} cgroup"
    if count >= workers:
        return ""
    few = f"{workers} workers share {counted(count, 'CPU')} ({machine.allowed})"
    if machine.isolated:
        return f"{few}: CPUs {machine.isolated} are isolated (isolcpus)"
    if CpuSet.union_of(machine.cores) <= machine.allowed:
        return few
    return (
        f"{few}: clusterrun itself may use no others; add -c to srun, or --bind-to none to mpirun"
    )


def idle_cpus_warning(
    machine: Machine,
    request: BindingRequest,
    placements: Sequence[Placement],
    others: Sequence[Placement],
) -> str:
    """Return a warning about idle CPUs, if they are more than a quarter and another mode uses them.

    CPUs of ``others``, which are other jobs' workers, are not idle.
    """
    masks = {placement.cpus for placement in placements}
    if None in masks:
        return ""
    masks |= {other.cpus for other in others}
    idle = CpuSet(machine.allowed - CpuSet.union_of(mask or () for mask in masks))
    if len(idle) * 4 <= len(machine.allowed):
        return ""
    for mode, used in _better_modes(machine, request, placements):
        if len(useful := CpuSet(idle & used)) * 4 > len(machine.allowed):
            unused = f"no worker is bound to CPUs {useful}, {len(useful)} of {len(machine.allowed)}"
            return f"{unused}; to use them: --numa-binding {mode.value}"
    return ""


def _better_modes(
    machine: Machine, request: BindingRequest, placements: Sequence[Placement]
) -> Iterator[tuple[NumaBinding, CpuSet]]:
    """Yield modes that use more CPUs and give no worker fewer cores, with the CPUs that they use.

    ``placements`` are made by the mode of ``request``.
    """
    masks = [placement.cpus or machine.allowed for placement in placements]
    now = CoreShares(machine, masks)
    for mode in (NumaBinding.NEAR, NumaBinding.NONE):
        planned = bind_own_workers(machine, replace(request, mode=mode))
        others = [placement.cpus or machine.allowed for placement in planned]
        then = CoreShares(machine, others)
        if len(then.used()) > len(now.used()) and all(
            then.of(other) >= now.of(mask) for mask, other in set(zip(masks, others, strict=True))
        ):
            yield mode, then.used()


def _idle_gpus(job: Job, machine: Machine, placements: Sequence[Placement]) -> str:
    each = job.placing.gpus_per_worker
    used = {gpu for placement in placements for gpu in placement.gpus}
    idle = [gpu for gpu in machine.visible if gpu not in used]
    if not each or not idle or job.tasks is not None:
        return ""
    plural = "GPUs" if len(idle) > 1 else "GPU"
    # All slices of a GPU have its number.
    names = (
        [gpu.uuid for gpu in idle] if idle[0].parent else number_ranges(gpu.index for gpu in idle)
    )
    have = "worker has" if len(placements) == 1 else "workers have"
    return f"no worker uses {plural} {','.join(names)}: {len(placements)} {have} {each} each"


def _one_slice(job: Job, machine: Machine) -> str:
    if len(machine.visible) < 2 or not only_slice(job, machine):
        return ""
    return f"{ONE_SLICE}; --virtual-local-rank gives each worker its own"


def _uncounted(job: Job, machine: Machine) -> str:
    """Return a warning about accelerators that are not counted, if the number of workers follows from GPUs."""
    counts_gpus = job.workers.nproc_per_node in {WorkerCount.PER_GPU, WorkerCount.AUTO}
    return machine.accelerators if counts_gpus else ""


def _bound_by_openmp(placements: Sequence[Placement], before: Mapping[str, str]) -> str:
    affinity = before.get("KMP_AFFINITY")
    if not affinity or all(placement.cpus is None for placement in placements):
        return ""
    return f"KMP_AFFINITY={affinity} is set: Intel's OpenMP uses it to bind its threads again"


def require_binding(job: Job, machine: Machine, placements: Sequence[Placement]) -> None:
    """Check that all workers are bound as requested.

    Raises:
        MachineError: a worker has a warning, or is unbound although binding matters; the hint has a
            line for each.

    """
    matters = binding_matters(job.placing.numa_binding, machine, len(placements))
    reasons = [
        placement.warning or (placement.why_unbound if matters else "") for placement in placements
    ]
    lines = [f"local rank {index}: {reason}" for index, reason in enumerate(reasons) if reason]
    lines = [*filter(None, [machine.visible_warning]), *lines]
    if lines:
        raise strict_error(job, machine.host, lines)


def strict_error(job: Job, host: str, reasons: Iterable[str]) -> MachineError:
    """Return the error of --numa-strict on ``host``, with a line for each reason."""
    message = f"{host} can't bind all workers as requested ({job.origin('numa_strict')})"
    return MachineError(message, "\n".join(map(printable, reasons)))
