"""What a fork server prepares for the workers before the other nodes have joined, and the result."""

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

IMPORT_TIMEOUT = 60.0
"""Seconds for which a preloaded import may make no progress; then each worker imports it itself."""


class Preparation(Struct, frozen=True):
    """What a fork server needs to get ready to run the workers' script in forked processes."""

    command: tuple[str, ...]
    """What a worker would execute."""
    preload: str | tuple[str, ...]
    """``auto``, ``none`` or modules."""
    must_fork: bool
    """A worker that can't be forked is not started at all."""
    known_variables: Mapping[str, str]
    """Variables that are equal for all workers, and known already."""
    later_variables: tuple[str, ...]
    """Names of the variables that differ per worker, or that the other nodes decide."""
    workers: int
    """Number of workers; a single one has no other to share its imports with."""
    cpus: CpuSet | None
    """The CPUs of a worker: libraries count them when they are loaded. None: it is not bound."""
    has_gpus: bool
    """The workers have GPUs of their own."""
    import_timeout: float
    """Seconds for which an import may make no progress."""
    most: tuple[int, str] | None = None
    """The first imports only, and why the next one can't be made before the fork."""


class Prepared(Struct, frozen=True):
    """The result, with the field names of the fork server's message."""

    why: str
    """Why workers are executed; "" if they are forked, and run the script in place."""
    complaint: bool
    """An import failed, which the user has to know."""
    costs_time: bool
    """Each worker imports by itself what could have been imported once."""
    spoiled: bool = False
    """Imports have begun, after which no worker is started from there."""
    again: int | None = None
    """The number of imports that another process may repeat; None: none."""
    loaded: tuple[tuple[str, float], ...] = ()
    """Imported modules, each with the seconds that the import took."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Modules that each worker imports itself, each with the reason."""
    not_once: str = ""
    """A module that takes time and that each worker imports itself; "" if there is none."""
    why_not_once: str = ""
    """The reason: a line of the script, as ``train.py:2 sets X before ...``, or what an import did."""
    naming_helps: bool = False
    """Whether ``--preload NAME`` imports it once all the same."""


def preparation_of(job: Job, assumed: NodePlan, before: Mapping[str, str]) -> Preparation | None:
    """Return what the fork server is to prepare; None: workers are executed.

    ``assumed`` is the plan as far as it is known, ``before`` the environment as the user made it.
    """
    method, script = job.starting.start_method, job.script
    # Those of services are executed.
    workers = [worker for worker in assumed.workers if worker.service is None]
    is_spawned = script.kind is ProgramKind.EXECUTABLE or script.is_standard_input
    # With --pdb, a program of ours runs the user's.
    if method is StartMethod.SPAWN or is_spawned or job.failing.pdb or not workers:
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
        later_variables=tuple(sorted(of_clusterrun | per_worker | found_later)),
        workers=len(workers),
        cpus=workers[0].cpus,
        has_gpus=any(worker.gpus for worker in workers),
        import_timeout=IMPORT_TIMEOUT,
    )
