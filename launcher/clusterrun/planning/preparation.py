"""What the fork server prepares for the workers before the other nodes have joined."""

from collections.abc import Mapping

from msgspec import Struct

from clusterrun.cpuset import CpuSet
from clusterrun.job.job import Job, ProgramKind
from clusterrun.job.nested_launches import RAS_VARIABLE
from clusterrun.job.options import StartMethod
from clusterrun.planning.plan import NodePlan
from clusterrun.planning.variables import GPU_VARIABLES, INTERFACE_VARIABLES

_KNOWN_EARLY = GPU_VARIABLES | {
    "OMP_NUM_THREADS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "FORCE_COLOR",
    "TTY_INTERACTIVE",
}
"""Variables that clusterrun sets equally for all workers of a node, and that depend only on the machine."""

_KNOWN_LATER = frozenset({"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"})


class Preparation(Struct, frozen=True):
    """What the fork server needs to prepare for running the workers' script in forked processes.

    The fields are those of the message ``Prepare``.
    """

    command: tuple[str, ...]
    """The command line of a worker that is executed instead of forked."""
    preload: str | tuple[str, ...]
    """``auto``, ``none`` or modules."""
    must_fork: bool
    """Whether to fail if a worker can't be forked, instead of executing it."""
    known_variables: Mapping[str, str]
    """Variables that are equal for all workers and known already."""
    per_worker_variables: tuple[str, ...]
    """Names of variables that differ per worker or depend on the other nodes."""
    workers: int
    """The number of workers. A single worker can't share its imports."""
    cpus: CpuSet | None
    """The CPUs of a worker, which libraries count when they are loaded; None if it is not bound."""
    has_gpus: bool
    """Whether the workers have their own GPUs."""
    only_first: tuple[int, str] | None = None
    """Limits the number of imports before the fork; with the reason why the next one can't be made there."""


def preparation_of(job: Job, assumed: NodePlan, before: Mapping[str, str]) -> Preparation | None:
    """Return what the fork server must prepare; None if workers are not forked.

    ``assumed`` is the plan as far as it is known; ``before`` is the environment before clusterrun
    changes it.
    """
    method, script = job.starting.start_method, job.script
    # Workers of services are never forked.
    workers = [worker for worker in assumed.workers if worker.service is None]
    is_spawned = script.kind is ProgramKind.EXECUTABLE or script.is_standard_input
    # With --pdb, the command is a program of ours that runs the user's.
    if method is StartMethod.SPAWN or is_spawned or job.failures.pdb or not workers:
        return None
    known = {name: value for name, value in assumed.env.items() if name in _KNOWN_EARLY}
    # The job's own variables are in the fork server's environment from the start.
    of_clusterrun = assumed.env.keys() - known.keys() - job.env.keys()
    per_worker = {name for worker in workers for name in worker.env}
    if any(worker.needs_ras_port for worker in workers):
        per_worker.add(RAS_VARIABLE)
    found_later = _KNOWN_LATER | (set(INTERFACE_VARIABLES) - before.keys())
    return Preparation(
        command=workers[0].command,
        preload=job.starting.preload,
        must_fork=method is StartMethod.FORK,
        known_variables=known,
        per_worker_variables=tuple(sorted(of_clusterrun | per_worker | found_later)),
        workers=len(workers),
        cpus=workers[0].cpus,
        has_gpus=any(worker.gpus for worker in workers),
    )
