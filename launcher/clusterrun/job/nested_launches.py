"""A launch inside a worker of another launch, and the variables it must not inherit."""

import re
from collections.abc import Mapping

from clusterrun.suspend import VARIABLE as PAGE_VARIABLE

RESUMED_VARIABLE = "CLUSTERRUN_RESUMED"
"""Set for all workers: how often the scheduler has started the job again."""

WORKER_VARIABLES = (
    *(
        "LOCAL_RANK",
        "RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "LOCAL_WORLD_SIZE",
        "WORLD_SIZE",
    ),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
    *("TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCHELASTIC_TIMER_FILE"),
    *(PAGE_VARIABLE, RESUMED_VARIABLE),
)
"""Variables of a worker of torchrun 2.15 (local_elastic_agent.py), NODE_RANK, and those of a suspension.

Without OMP_NUM_THREADS and TORCH_NCCL_ASYNC_ERROR_HANDLING, which the user may have set, and
without CUDA_VISIBLE_DEVICES: the outer worker's GPUs are the only ones for all inside it.
"""

SERVICES_VARIABLE = "CLUSTERRUN_MAIN_ADDR"
"""Set in a job with services, whose workers have a PORT each."""

RAS_VARIABLE = "NCCL_RAS_ADDR"
"""Where the worker's NCCL answers; on the loopback address, the outer launch has set it."""

STEP_VARIABLE = "CLUSTERRUN_SLURM_STEP"
"""The Slurm step of the outer launch, for a launch inside its workers, unless the run id is it."""

NESTED_WARNING = (
    "started inside a worker of another job (LOCAL_RANK and TORCHELASTIC_RUN_ID are set): that"
    " job's worker variables, CLUSTERRUN_* and PET_* are ignored and not passed on"
)


def outer_launch_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names to remove if ``environ`` is that of a worker; () if it is not.

    A worker has TORCHELASTIC_RUN_ID and LOCAL_RANK, or ROLE_RANK alone, if it is a service's. AzureML
    sets LOCAL_RANK on its own.
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
    """Return ``JOB.STEP`` of a process in Slurm, ``JOB.`` if srun did not start it, else ""."""
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID", "")
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID", "")
    return f"{job}.{step}" if job else ""


def is_new_step(environ: Mapping[str, str]) -> bool:
    """Return whether a worker called srun, which started this process in a step of its own.

    Such a step is a job of its own. The outer launch's step is in ``STEP_VARIABLE``, or is its run
    id.
    """
    here = slurm_step(environ)
    outer = environ.get(STEP_VARIABLE) or environ["TORCHELASTIC_RUN_ID"]
    return here != outer and bool(
        re.fullmatch(r"[0-9]+\.[0-9]+", here) and re.fullmatch(r"[0-9]+\.[0-9]*", outer)
    )
