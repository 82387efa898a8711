"""The variables that Paddle's programs read instead of RANK and the like (PaddlePaddle, launch_utils.py)."""

from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.world import World
from clusterrun.errors import UsageError
from clusterrun.job.job import Job


def paddle_variables(job: Job, world: World, local_rank: LocalRank) -> dict[str, str]:
    """Return the variables of one worker of a job for Paddle.

    Raises:
        UsageError: every worker must have the addresses of all, and not all hosts are known, or
            nodes have different numbers of workers.

    """
    endpoints = _endpoints(job, world)
    rank = world.first_rank + local_rank
    return {
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(world.size),
        "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        # An index into CUDA_VISIBLE_DEVICES, as Paddle counts where that is set.
        "FLAGS_selected_gpus": "0" if _sees_its_own_only(job) else str(local_rank),
    }


def _sees_its_own_only(job: Job) -> bool:
    return job.placing.virtual_local_rank


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
            f" workers, and this one {world.local_size}",
            "give the same --nproc-per-node on all",
        )
    first = job.meeting.base_port
    return [f"{host}:{first + index}" for host in hosts for index in range(world.local_size)]
