"""What a fork server prepares for the workers before the other nodes have joined."""

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
"""Set by clusterrun, equal for all workers of a node, and known from the machine alone."""

_KNOWN_LATER = frozenset({"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"})


class Preparation(Struct, frozen=True):
    """What a fork server needs to get ready to run the workers' script in forked processes.

    Its fields are those of the message ``Prepare``.
    """

    command: tuple[str, ...]
    """What a worker would execute."""
    preload: str | tuple[str, ...]
    """``auto``, ``none`` or modules."""
    must_fork: bool
    """A worker that can't be forked is not started at all."""
    known_variables: Mapping[str, str]
    """Variables that are equal for all workers, and known already."""
    per_worker_variables: tuple[str, ...]
    """Names of the variables that differ per worker, or that the other nodes decide."""
    workers: int
    """Number of workers; a single one has no other to share its imports with."""
    cpus: CpuSet | None
    """The CPUs of a worker: libraries count them when they are loaded. None: it is not bound."""
    has_gpus: bool
    """The workers have GPUs of their own."""
    only_first: tuple[int, str] | None = None
    """The first imports only, and why the next one can't be made before the fork."""


def preparation_of(job: Job, assumed: NodePlan, before: Mapping[str, str]) -> Preparation | None:
    """Return what the fork server is to prepare; None: workers are executed.

    ``assumed`` is the plan as far as it is known, ``before`` the environment as the user made it.
    """
    method, script = job.starting.start_method, job.script
    # Those of services are executed.
    workers = [worker for worker in assumed.workers if worker.service is None]
    is_spawned = script.kind is ProgramKind.EXECUTABLE or script.is_standard_input
    # With --pdb, a program of ours runs the user's.
    if method is StartMethod.SPAWN or is_spawned or job.failures.pdb or not workers:
        return None
    known = {name: value for name, value in assumed.env.items() if name in _KNOWN_EARLY}
    # The job's own are in the fork server's environment from the start.
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
