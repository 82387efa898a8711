"""A launch inside a worker of another launch, and the variables it must not inherit."""

import re
from collections.abc import Mapping

from clusterrun.suspend import VARIABLE as PAGE_VARIABLE

RESUMED_VARIABLE = "CLUSTERRUN_RESUMED"
"""Set for all workers: the number of times that the scheduler has restarted the job."""

WORKER_VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
    *("TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_TIMER_FILE"),
    *(PAGE_VARIABLE, RESUMED_VARIABLE),
)
"""Variables of a worker of torchrun 2.15 (local_elastic_agent.py), NODE_RANK, and those of suspension.

OMP_NUM_THREADS and TORCH_NCCL_ASYNC_ERROR_HANDLING are missing because the user may have set them.
CUDA_VISIBLE_DEVICES is missing because a nested launch must use the outer worker's GPUs.
"""

SERVICES_VARIABLE = "CLUSTERRUN_MAIN_ADDR"
"""Set in a job with services, where each worker also has a PORT."""

RAS_VARIABLE = "NCCL_RAS_ADDR"
"""The address of the worker's NCCL RAS server; a loopback address was set by the outer launch."""

STEP_VARIABLE = "CLUSTERRUN_SLURM_STEP"
"""The Slurm step of the outer launch, set for its workers unless the run id is the step."""

NESTED_WARNING = (
    "started inside a worker of another job (LOCAL_RANK and TORCHELASTIC_RUN_ID are set): that"
    " job's worker variables, CLUSTERRUN_* and PET_* are ignored and not passed on"
)


def outer_launch_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables to remove if ``environ`` is that of a worker, else ().

    A worker has TORCHELASTIC_RUN_ID and LOCAL_RANK; a worker of a service may have ROLE_RANK instead.
    LOCAL_RANK alone is set by AzureML.
    """
    has_rank = not environ.keys().isdisjoint(("LOCAL_RANK", "ROLE_RANK"))
    if not has_rank or "TORCHELASTIC_RUN_ID" not in environ:
        return ()
    prefixes = ("CLUSTERRUN_", "PET_")
    names = {it for it in environ if it in WORKER_VARIABLES or it.startswith(prefixes)}
    if SERVICES_VARIABLE in environ:
        names |= environ.keys() & {"PORT"}
    if environ.get(RAS_VARIABLE, "").startswith("127.0.0.1:"):
        # The outer worker listens there.
        names.add(RAS_VARIABLE)
    return tuple(sorted(names))


def slurm_step(environ: Mapping[str, str]) -> str:
    """Return ``JOB.STEP`` of a process in Slurm, ``JOB.`` if it is not in a step, "" outside of Slurm."""
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID", "")
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID", "")
    return f"{job}.{step}" if job else ""


def is_new_step(environ: Mapping[str, str]) -> bool:
    """Return whether a worker started this process by srun, in a new step, which is a job of its own.

    The step of the outer launch is in ``STEP_VARIABLE``, or is its run id.
    """
    here = slurm_step(environ)
    outer = environ.get(STEP_VARIABLE) or environ["TORCHELASTIC_RUN_ID"]
    return here != outer and bool(
        re.fullmatch(r"[0-9]+\.[0-9]+", here) and re.fullmatch(r"[0-9]+\.[0-9]*", outer)
    )
