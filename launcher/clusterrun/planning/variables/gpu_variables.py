"""The variables that choose GPUs, for all workers (``--devices``) or each (``--virtual-local-rank``)."""

from collections.abc import Mapping, Sequence

from clusterrun.domain.machine import Gpu, Machine
from clusterrun.errors import UsageError
from clusterrun.job.job import Job

_VARIABLES = {
    "amd": "HIP_VISIBLE_DEVICES",
    "intel": "ZE_AFFINITY_MASK",
    "huawei": "ASCEND_RT_VISIBLE_DEVICES",
}
"""By vendor; all others use NVIDIA's, which AMD's runtime reads, too."""

_COMMON = "CUDA_VISIBLE_DEVICES"

NAMES = frozenset({_COMMON, *_VARIABLES.values()})


def chosen_gpus_variables(job: Job, machine: Machine, before: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which all workers see the GPUs of ``--devices``, if that is given.

    ``before`` is the environment as the user made it.

    Raises:
        UsageError: the job's own variables choose others.

    """
    if not job.workers.devices:
        return {}
    variables = _visible(machine, machine.visible, before)
    other = next((name for name in variables if name in job.env), None)
    if other is not None:
        raise UsageError(
            f"{job.origin('devices')} and {other}={job.env[other]} ({job.origin(f'env.{other}')})"
            " both choose the GPUs",
            "leave one of them out",
        )
    return variables


def own_gpus_variables(
    job: Job, machine: Machine, gpus: Sequence[Gpu], index: int, before: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables by which a worker sees only its own GPUs; {} if it may see all.

    ``index`` is its local rank, ``before`` the environment as the user made it.

    Raises:
        UsageError: the worker has no GPU of its own.

    """
    asked = job.fact("virtual_local_rank")
    if not asked.value:
        return {}
    if machine.visible and not gpus:
        count = len(machine.visible)
        raise UsageError(
            f"{asked.origin}: local rank {index} has no GPU of its own:"
            f" {count} GPU{' is' if count == 1 else 's are'} visible",
            f"start at most one worker for each GPU, or leave {asked.origin} out",
        )
    variables = _visible(machine, gpus, before) if gpus else _unseen(index, before)
    return {**variables, "LOCAL_RANK": "0"}


def _visible(machine: Machine, gpus: Sequence[Gpu], before: Mapping[str, str]) -> dict[str, str]:
    variable = _VARIABLES.get(gpus[0].vendor, _COMMON)
    if variable == _COMMON:
        by_id = goes_by_id(machine, machine.visible)
        return {variable: ",".join(gpu.uuid if by_id else str(gpu.index) for gpu in gpus)}
    if variable != "HIP_VISIBLE_DEVICES":
        return {variable: ",".join(str(gpu.index) for gpu in gpus)}
    roots = before.get("ROCR_VISIBLE_DEVICES")
    value = ",".join(str(_below(roots, gpu)) for gpu in gpus)
    # HIP takes the other for an alias of its own: they must not differ.
    return dict.fromkeys((variable, *({_COMMON} & before.keys())), value)


def goes_by_id(machine: Machine, gpus: Sequence[Gpu]) -> bool:
    """Return whether CUDA is to find these GPUs by their UUIDs, and not by their numbers."""
    if gpus[0].vendor in _VARIABLES:
        return False
    # A slice has no number, and among several models the order depends on CUDA_DEVICE_ORDER.
    models = {other.model for other in machine.gpus if other.vendor == gpus[0].vendor}
    return (len(models) > 1 or any(gpu.parent for gpu in gpus)) and all(gpu.uuid for gpu in gpus)


def _below(roots: str | None, gpu: Gpu) -> int:
    """Return the number of a GPU among those that ROCR_VISIBLE_DEVICES leaves: HIP counts these."""
    for position, entry in enumerate((roots or "").split(",")):
        name = entry.strip().lower()
        is_by_id = name.startswith("gpu-") and gpu.uuid.lower().startswith(name)
        if is_by_id or name == str(gpu.index):
            return position
    return gpu.index


def _unseen(index: int, before: Mapping[str, str]) -> dict[str, str]:
    """Return the variable of torchrun, which does not check whether there is a GPU.

    Raises:
        UsageError: the user's list is too short.

    """
    inherited = before.get(_COMMON)
    if inherited is None:
        return {_COMMON: str(index)}
    entries = inherited.split(",")
    if index >= len(entries) > 1:
        raise UsageError(
            f"{_COMMON}={inherited} has no entry for local rank {index}",
            f"start at most {len(entries)} workers",
        )
    return {_COMMON: entries[index].strip()} if index < len(entries) else {}
