"""The variables of torchrun's contract (docs/contract.md).

A job's ``env`` has none that clusterrun sets for each worker: ``job/values.py`` refuses them.
"""

from collections.abc import Collection, Mapping

from clusterrun import suspend
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.world import World
from clusterrun.job.job import Job
from clusterrun.job.nested_launches import RESUMED_VARIABLE

_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Name the interface that leads to the other nodes, for gloo, NCCL and TensorPipe."""


def environment_before(
    job: Job, environ: Mapping[str, str], unset: Collection[str]
) -> dict[str, str]:
    """Return the job's environment as its user made it: inherited, then the job's own ``env``.

    CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS and the like are looked up there.
    """
    inherited = {name: value for name, value in environ.items() if name not in unset}
    return inherited | dict(job.env)


def job_variables(
    job: Job, before: Mapping[str, str], threads: int, world: World, workers: int
) -> dict[str, str]:
    """Return the variables that clusterrun sets for the whole job, equal in every attempt.

    Variables in ``before``, the environment as the user made it, are not set; those of the job's
    ``env`` are. ``workers`` is the number of workers that print to our output.
    """
    suggested = {
        **_threads(job, threads, world),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        _SIGNALS: job.signals_to_handle,
        **(dict.fromkeys(INTERFACE_VARIABLES, world.interface) if world.interface else {}),
        **colour_variables(job, workers, before),
    }
    asked = {_SIGNALS} if job.given.signals_to_handle else set()
    return {
        **{name: value for name, value in suggested.items() if name not in before or name in asked},
        **job.env,
        "ROLE_NAME": job.role,
        "TORCHELASTIC_RUN_ID": world.run_id,
        "TORCHELASTIC_MAX_RESTARTS": str(job.failing.max_restarts),
        RESUMED_VARIABLE: str(job.resumed),
        # True would make rank 0 wait for a store that no agent serves.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _threads(job: Job, threads: int, world: World) -> dict[str, str]:
    if not job.as_torchrun:
        return {"OMP_NUM_THREADS": str(threads)}
    # torchrun leaves a single worker alone (torch/distributed/run.py of 2.13).
    return {"OMP_NUM_THREADS": "1"} if world.local_size > 1 else {}


def worker_variables(
    world: World, local_rank: LocalRank, error_files: str | None
) -> dict[str, str]:
    """Return what one worker gets in one attempt; MASTER_PORT only once it is known."""
    rank = world.first_rank + local_rank
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "ROLE_RANK": str(world.first_role_rank + local_rank),
        "GROUP_RANK": str(world.node_rank),
        "NODE_RANK": str(world.node_rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "ROLE_WORLD_SIZE": str(world.role_size),
        "GROUP_WORLD_SIZE": str(world.nodes),
        "MASTER_ADDR": world.master_addr,
        "TORCHELASTIC_RESTART_COUNT": str(world.attempt),
    }
    if world.master_port is not None:
        variables["MASTER_PORT"] = str(world.master_port)
    if error_files is not None:
        path = f"{error_files}/attempt-{world.attempt}/rank-{rank}/error.json"
        variables["TORCHELASTIC_ERROR_FILE"] = path
        variables[suspend.VARIABLE] = f"{error_files}/attempt-{world.attempt}/suspend:{local_rank}"
    return variables


def colour_variables(job: Job, workers: int, before: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variable for ``workers`` whose lines are mixed on one terminal."""
    if not job.coloured or has_output_to_itself(job, workers) or before.get("NO_COLOR"):
        return {}
    # Read by rich, loguru, termcolor, Python itself from 3.13 on, and others (force-color.org).
    return {"FORCE_COLOR": "1"}


def has_output_to_itself(job: Job, workers: int) -> bool:
    """Return whether one worker alone prints to our output.

    A scheduler merges that of all tasks, and ``--launcher ssh`` that of all nodes.
    """
    is_merged = job.workers.cluster != "none" or job.is_merged
    return workers == 1 and (job.agents == 1 or not is_merged)
