"""The environment variables of workers: torchrun's (docs/workers.md), GPUs, Paddle's.

A job's ``env`` can't set the variables that clusterrun sets for each worker: ``job/values.py`` rejects them.
"""

from collections.abc import Collection, Mapping, Sequence

from clusterrun import suspend
from clusterrun.bounds import LocalRank
from clusterrun.errors import UsageError
from clusterrun.job.job import Job
from clusterrun.job.nested_launches import RAS_VARIABLE, RESUMED_VARIABLE
from clusterrun.machine.machine import Gpu, Machine
from clusterrun.planning.plan import World

_SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""The network interface to the other nodes, for Gloo, NCCL and TensorPipe."""

_GPU_VARIABLES = {
    "amd": "HIP_VISIBLE_DEVICES",
    "intel": "ZE_AFFINITY_MASK",
    "huawei": "ASCEND_RT_VISIBLE_DEVICES",
}
"""By vendor. All others use NVIDIA's, which AMD's runtime also reads."""

_CUDA = "CUDA_VISIBLE_DEVICES"
_HIP = _GPU_VARIABLES["amd"]

_RAS_ENABLED = "NCCL_RAS_ENABLE"

GPU_VARIABLES = frozenset({_CUDA, *_GPU_VARIABLES.values()})


def user_environment(
    job: Job, environ: Mapping[str, str], unset: Collection[str]
) -> dict[str, str]:
    """Return the job's environment before clusterrun changes it: inherited, then the job's ``env``.

    CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS and the like are looked up in it.
    """
    inherited = {name: value for name, value in environ.items() if name not in unset}
    return inherited | job.env


def job_variables(
    job: Job, before: Mapping[str, str], threads: int, world: World, workers: int
) -> dict[str, str]:
    """Return the variables that clusterrun sets for the whole job, equal in every attempt.

    Defaults do not override ``before``, the environment before clusterrun changes it. The job's
    ``env`` is included. ``workers`` is the number of workers that print to our output.
    """
    suggested = {
        **_threads(job, threads, world),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        _SIGNALS: job.signals_to_handle,
        **(dict.fromkeys(INTERFACE_VARIABLES, world.interface) if world.interface else {}),
        **terminal_variables(job, workers, before),
    }
    asked = {_SIGNALS} if job.given.signals_to_handle else set()
    return {
        **{name: value for name, value in suggested.items() if name not in before or name in asked},
        **job.env,
        "ROLE_NAME": job.program.role,
        "TORCHELASTIC_RUN_ID": world.run_id,
        "TORCHELASTIC_MAX_RESTARTS": str(job.failures.max_restarts),
        RESUMED_VARIABLE: str(job.resumed),
        # "True" would make rank 0 wait for a store in the agent, which there is not.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _threads(job: Job, threads: int, world: World) -> dict[str, str]:
    if not job.as_torchrun:
        return {"OMP_NUM_THREADS": str(threads)}
    # torchrun does not set it for a single worker (torch/distributed/run.py of 2.13).
    return {"OMP_NUM_THREADS": "1"} if world.local_size > 1 else {}


def worker_variables(
    world: World, local_rank: LocalRank, error_files: str | None
) -> dict[str, str]:
    """Return the variables of one worker in one attempt, with MASTER_PORT only if it is known."""
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
    return {**variables, **file_variables(world, rank, local_rank, error_files)}


def file_variables(
    world: World, number: int, local_rank: LocalRank, error_files: str | None
) -> dict[str, str]:
    """Return the variables with paths of files that a worker shares with its agent.

    ``number`` is the worker's number in the job, ``error_files`` the folder; None: no files.
    """
    if error_files is None:
        return {}
    folder = f"{error_files}/attempt-{world.attempt}"
    return {
        "TORCHELASTIC_ERROR_FILE": f"{folder}/rank-{number}/error.json",
        suspend.VARIABLE: f"{folder}/suspend:{local_rank}",
    }


def terminal_variables(job: Job, workers: int, before: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables for workers whose lines are interleaved on a terminal."""
    if not job.coloured or is_sole_writer(job, workers) or before.get("NO_COLOR"):
        return {}
    # FORCE_COLOR is read by rich, loguru, termcolor, Python since 3.13 and others (force-color.org). Rich
    # would then redraw blocks of lines, which TTY_INTERACTIVE=0 prevents.
    return {"FORCE_COLOR": "1", "TTY_INTERACTIVE": "0"}


def is_sole_writer(job: Job, workers: int) -> bool:
    """Return whether only one worker prints to our output.

    A scheduler merges the output of all tasks, and ``--launcher ssh`` that of all nodes.
    """
    is_merged = job.workers.cluster != "none" or job.is_merged
    is_alone = workers == 1 and not job.services
    return is_alone and (job.agents == 1 or not is_merged)


def chosen_gpus_variables(job: Job, machine: Machine, before: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make only the GPUs of ``--devices`` visible to all workers.

    ``before`` is the environment before clusterrun changes it.

    Raises:
        UsageError: the job's ``env`` sets one of these variables too.

    """
    if not job.workers.devices:
        return {}
    variables = _visible(machine, machine.visible, before)
    other = next((name for name in variables if name in job.env), None)
    if other is not None:
        raise UsageError(
            f"{job.origin('devices')} and {other}={job.env[other]} ({job.origin(f'env.{other}')})"
            " both choose the GPUs",
            "remove one of them",
        )
    return variables


def visible_gpus_variables(
    machine: Machine, gpus: Sequence[Gpu], before: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that make only ``gpus`` visible to a worker of a job with services."""
    if not machine.visible:
        return {}
    if gpus:
        return _visible(machine, gpus, before)
    return dict.fromkeys(_visible(machine, machine.visible, before), "")


def own_gpus_variables(
    job: Job, machine: Machine, gpus: Sequence[Gpu], index: int, before: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that make only a worker's own GPUs visible to it; {} if it may see all.

    ``index`` is its local rank, ``before`` the environment before clusterrun changes it.

    Raises:
        UsageError: the worker has no GPU of its own.

    """
    asked = job.setting("virtual_local_rank")
    if not asked.value:
        return {}
    if machine.visible and not gpus:
        count = len(machine.visible)
        raise UsageError(
            f"{asked.origin}: local rank {index} has no GPU of its own:"
            f" {count} GPU{' is' if count == 1 else 's are'} visible",
            f"start at most one worker for each GPU, or remove {asked.origin}",
        )
    variables = _visible(machine, gpus, before) if gpus else _by_torchrun(index, before)
    return {**variables, "LOCAL_RANK": "0"}


def _visible(machine: Machine, gpus: Sequence[Gpu], before: Mapping[str, str]) -> dict[str, str]:
    variable = _GPU_VARIABLES.get(gpus[0].vendor, _CUDA)
    if variable == _CUDA:
        by_id = uses_uuids(machine, machine.visible)
        return {variable: ",".join(gpu.uuid if by_id else str(gpu.index) for gpu in gpus)}
    if variable != _HIP:
        return {variable: ",".join(str(gpu.index) for gpu in gpus)}
    rocr = before.get("ROCR_VISIBLE_DEVICES")
    value = ",".join(str(_hip_number(rocr, gpu)) for gpu in gpus)
    # HIP reads CUDA_VISIBLE_DEVICES as an alias of its own variable, so they must not differ.
    return dict.fromkeys((variable, *({_CUDA} & before.keys())), value)


def uses_uuids(machine: Machine, gpus: Sequence[Gpu]) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES must have UUIDs of these GPUs, not numbers."""
    if gpus[0].vendor in _GPU_VARIABLES:
        return False
    # A slice has no number. With several models, the order depends on CUDA_DEVICE_ORDER.
    models = {other.model for other in machine.gpus if other.vendor == gpus[0].vendor}
    return (len(models) > 1 or any(gpu.parent for gpu in gpus)) and all(gpu.uuid for gpu in gpus)


def _hip_number(rocr: str | None, gpu: Gpu) -> int:
    """Return HIP's number of a GPU: its position in ROCR_VISIBLE_DEVICES, if that is set."""
    for position, entry in enumerate((rocr or "").split(",")):
        name = entry.strip().lower()
        is_by_id = name.startswith("gpu-") and gpu.uuid.lower().startswith(name)
        if is_by_id or name == str(gpu.index):
            return position
    return gpu.index


def _by_torchrun(index: int, before: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchrun sets without checking whether there is a GPU.

    HIP prefers its own variable to NVIDIA's (``_set_local_rank_env`` of torch 2.15).
    """
    origin = _HIP if before.get(_HIP) else _CUDA
    inherited = before.get(origin)
    if inherited is None:
        return {_CUDA: str(index)}
    entries = inherited.split(",")
    if index >= len(entries) > 1:
        raise UsageError(
            f"{origin}={inherited} has no entry for local rank {index}",
            f"start at most {len(entries)} workers",
        )
    return dict.fromkeys((_CUDA, origin), entries[index].strip()) if index < len(entries) else {}


def is_ras_enabled(environment: Mapping[str, str]) -> bool:
    """Return whether NCCL's RAS is enabled in an environment, as it is by default.

    Any number other than 1 disables it (``ncclParamRasEnable`` in NCCL's src/bootstrap.cc).
    """
    return environment.get(_RAS_ENABLED, "").strip() in {"", "1"}


def needs_ras_port(job: Job, gpus: Sequence[Gpu], environment: Mapping[str, str]) -> bool:
    """Return whether a worker with these GPUs and variables gets its own port for NCCL's RAS.

    By default all workers of a machine share one port by SO_REUSEPORT, so a query may reach any of
    them, even another job's. With ``--exec`` there is no agent that could query it.
    """
    has_nccl = any(gpu.vendor == "nvidia" for gpu in gpus) and not job.starting.exec
    return has_nccl and RAS_VARIABLE not in environment and is_ras_enabled(environment)


def paddle_variables(job: Job, world: World, local_rank: LocalRank) -> dict[str, str]:
    """Return Paddle's variables of one worker.

    Raises:
        UsageError: the addresses of all workers are not known: not all hosts are, or nodes have
            different numbers of workers.

    """
    endpoints = _endpoints(job, world)
    rank = world.first_rank + local_rank
    return {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(world.size),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        # If CUDA_VISIBLE_DEVICES is set, Paddle takes this as an index into it.
        "FLAGS_selected_gpus": "0" if job.placing.virtual_local_rank else str(local_rank),
    }


def _endpoints(job: Job, world: World) -> list[str]:
    hosts = job.workers.hosts or ((world.master_addr,) if world.nodes == 1 else ())
    if len(hosts) != world.nodes:
        raise UsageError(
            f"PADDLE_TRAINER_ENDPOINTS needs the hosts of all {world.nodes} nodes"
            f" (nnodes: {job.origin('nnodes')}, cluster: {job.origin('cluster')})",
            "list them: --hosts A,B",
        )
    if world.size != world.nodes * world.local_size:
        raise UsageError(
            f"PADDLE_TRAINER_ENDPOINTS is unknown: the {world.nodes} nodes have {world.size}"
            f" workers, but this one has {world.local_size}",
            "give the same --nproc-per-node on all",
        )
    first = job.rendezvous.base_port
    return [f"{host}:{first + index}" for host in hosts for index in range(world.local_size)]
