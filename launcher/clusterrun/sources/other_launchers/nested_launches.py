"""A launch inside a worker of another launch: what it must not take over from there."""

import re
from collections.abc import Mapping

WORKER_VARIABLES = (
    "LOCAL_RANK",
    "RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCHELASTIC_TIMER_FILE",
)
"""What torchrun 2.15 tells a worker of its place in the job (local_elastic_agent.py), and NODE_RANK.

Not OMP_NUM_THREADS and TORCH_NCCL_ASYNC_ERROR_HANDLING: the user may have set them, and nothing
tells whose they are. Not CUDA_VISIBLE_DEVICES: the outer worker's limits hold for all inside it.
"""

STEP_VARIABLE = "CLUSTERRUN_SLURM_STEP"
"""Tells a launch inside a worker which step of Slurm that lives in, where the run id does not."""

_STEP = re.compile(r"\d+\.\d+", re.ASCII)
_STEP_OR_JOB = re.compile(r"\d+\.\d*", re.ASCII)

NESTED_WARNING = (
    "started inside a worker of another launch (LOCAL_RANK and TORCHELASTIC_RUN_ID are set):"
    " its worker variables, CLUSTERRUN_* and PET_* are neither read nor passed on"
)


def left_by_outer_launch(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names to remove where ``environ`` is a worker's own; () where it is not.

    A worker is told by LOCAL_RANK and TORCHELASTIC_RUN_ID together: AzureML sets LOCAL_RANK alone.
    """
    if "LOCAL_RANK" not in environ or "TORCHELASTIC_RUN_ID" not in environ:
        return ()
    return tuple(sorted(name for name in environ if _belongs_to_launch(name)))


def slurm_step(environ: Mapping[str, str]) -> str:
    """Return ``JOB.STEP`` of a process in Slurm, ``JOB.`` where srun did not start it, else ""."""
    job = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID", "")
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID", "")
    return f"{job}.{step}" if job else ""


def is_new_step(environ: Mapping[str, str]) -> bool:
    """Tell whether a worker's environment came here by an srun that the worker called.

    Such a step is a job of its own, with as many tasks as it was given. The step of the outer
    launch is its run id or, where that is another, in ``STEP_VARIABLE``.
    """
    here = slurm_step(environ)
    outer = environ.get(STEP_VARIABLE) or environ["TORCHELASTIC_RUN_ID"]
    return here != outer and bool(_STEP.fullmatch(here) and _STEP_OR_JOB.fullmatch(outer))


def _belongs_to_launch(name: str) -> bool:
    return name in WORKER_VARIABLES or name.startswith(("CLUSTERRUN_", "PET_"))
