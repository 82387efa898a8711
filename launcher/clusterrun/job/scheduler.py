"""The scheduler's job that this job runs in: its time limit, its requeue command, earlier starts.

The scheduler may differ from the cluster, which sets nodes and ranks: under mpirun in a job of Slurm,
the cluster is Open MPI.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from clusterrun.job.clusters.detection import NO_CLUSTER, current_scheduler_job
from clusterrun.job.clusters.found import Variables
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job, SchedulerJob
from clusterrun.job.sources import Layer, value_of
from clusterrun.job.this_process import ThisProcess

if TYPE_CHECKING:
    from clusterrun.job.clusters.scheduler import Scheduler


def find_scheduler_job(
    sources: Sequence[Layer],
    variables: Variables,
    process: ThisProcess,
    cluster: Setting[str],
    agent_rank: int | None,
) -> tuple[Setting[SchedulerJob | None], Setting[float | None], Setting[int], str | None]:
    """Return the scheduler's job, when it ends, how many times it was restarted, and why its end is unknown.

    The scheduler is asked for the end only if an option needs it. ``cluster`` is the detected cluster:
    with ``--cluster none`` (but not with ``--standalone``), and inside a worker of another job, there is
    no scheduler. ``agent_rank`` is None if it is not known yet.

    Raises:
        UsageError: a variable is not a number.

    """
    scheduler, job = _find_job(variables, cluster, value_of("standalone", sources).origin)
    resumed = variables.number(scheduler.restarts_variable) if scheduler else None
    ends_at, no_end = Setting[float | None](None, "default"), None
    if value_of("suspend_before", sources).value is not None:
        ends_at, no_end = _find_end(scheduler, job.value, variables, process, agent_rank)
    return job, ends_at, resumed or Setting(0, "default"), no_end


def default_run_id(
    job: Setting[SchedulerJob | None], sources: Sequence[Layer]
) -> Setting[str] | None:
    """Return the scheduler's id of a job that may be requeued: it has the same id then."""
    if not value_of("requeue", sources).value or job.value is None or not job.value.job_id:
        return None
    return Setting(job.value.job_id, job.origin)


def no_end_warnings(job: Job) -> Iterator[str]:
    """Yield a warning if ``--suspend-before`` has no effect because the end of the job is unknown.

    This is not an error, because the same command line may be used without a scheduler.
    """
    before = job.setting("suspend_before")
    if before.value is not None and job.given.no_end:
        yield f"{before.origin} {before.value:g} has no effect: {job.given.no_end}"


def is_scheduler_ignored(cluster: Setting[str], standalone: str) -> bool:
    """Return whether there is no scheduler for this job; ``standalone`` is the origin of that option."""
    # --standalone is about the nodes only.
    return cluster.value == NO_CLUSTER and cluster.origin not in {"default", standalone}


def _find_job(
    variables: Variables, cluster: Setting[str], standalone: str
) -> tuple["Scheduler | None", Setting[SchedulerJob | None]]:
    """Return the scheduler whose job this process runs in, and that job."""
    is_ignored = is_scheduler_ignored(cluster, standalone)
    here = None if is_ignored else current_scheduler_job(variables)
    if here is None:
        return None, Setting(None, "default")
    scheduler, found = here[0].scheduler, here[1]
    of_job = scheduler.id_of(found, variables)
    job_id = of_job.value if scheduler.has_id else ""
    end_command = (*scheduler.end_command, job_id) if scheduler.end_command else ()
    requeue = (*scheduler.requeue, job_id) if scheduler.requeue else ()
    return scheduler, Setting(
        SchedulerJob(scheduler.title, job_id, end_command, requeue), of_job.origin
    )


def _find_end(
    scheduler: "Scheduler | None",
    job: SchedulerJob | None,
    variables: Variables,
    process: ThisProcess,
    agent_rank: int | None,
) -> tuple[Setting[float | None], str | None]:
    """Return when the job ends, and why that is unknown if node 0 cannot find out."""
    if scheduler is None or job is None:
        return _unknown("no scheduler says when this job ends")
    if known := variables.number(scheduler.end_variable):
        return Setting(float(known.value), known.origin), None
    if not job.end_command:
        return _unknown(f"{job} does not say when this job ends")
    if agent_rank not in {0, None}:
        return Setting(None, "asked for by node 0"), None
    command = " ".join(job.end_command)
    # Seconds since the epoch are unambiguous; other times of scontrol have no time zone.
    result = process.run_command(job.end_command, {**variables, "SLURM_TIME_FORMAT": "%s"})
    if result.failure:
        return _unknown(f"{command}: {result.failure}")
    end = scheduler.parse_end(result.out, process.now())
    return (
        (Setting(end, command), None) if end else _unknown(f"{job} has no time limit ({command})")
    )


def _unknown(why: str) -> tuple[Setting[float | None], str]:
    return Setting(None, f"unknown: {why}"), why
