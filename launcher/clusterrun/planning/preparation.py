"""What the fork server can prepare for the workers before the other nodes have joined."""

from collections.abc import Mapping

from clusterrun.domain.plan import NodePlan
from clusterrun.domain.preparation import Preparation
from clusterrun.job.job import Job, ProgramKind
from clusterrun.job.options import StartMethod
from clusterrun.planning.variables import GPU_VARIABLES, INTERFACE_VARIABLES

_KNOWN_EARLY = frozenset({"OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}) | GPU_VARIABLES
"""Set by clusterrun, equal for all workers of a node, and known from the machine alone."""

_KNOWN_LATER = frozenset({"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"})

IMPORT_TIMEOUT = 60.0
"""Seconds for which a preloaded import may make no progress; then each worker imports it itself."""


def preparation_of(job: Job, assumed: NodePlan, before: Mapping[str, str]) -> Preparation | None:
    """Return what the fork server is to prepare; None: workers are executed.

    ``assumed`` is the plan as far as it is known, ``before`` the environment as the user made it.
    """
    method, program = job.starting.start_method, job.program
    is_spawned = program.kind is ProgramKind.EXECUTABLE or program.is_standard_input
    # Each worker of --pdb executes a wrapper.
    if method is StartMethod.SPAWN or is_spawned or job.debugging.pdb:
        return None
    known = {name: value for name, value in assumed.env.items() if name in _KNOWN_EARLY}
    # The job's own are in the fork server's environment from the start.
    of_clusterrun = assumed.env.keys() - known.keys() - job.env.keys()
    per_worker = {name for worker in assumed.workers for name in worker.env}
    found_later = _KNOWN_LATER | (set(INTERFACE_VARIABLES) - before.keys())
    return Preparation(
        command=assumed.command,
        preload=job.starting.preload,
        must_fork=method is StartMethod.FORK,
        known_variables=known,
        later_variables=tuple(sorted(of_clusterrun | per_worker | found_later)),
        workers=len(assumed.workers),
        cpus=assumed.workers[0].cpus,
        import_timeout=IMPORT_TIMEOUT,
    )
