"""The scheduler's job that this job runs in: its end, its way back into the queue, earlier starts.

A cluster says where this process has its place; a scheduler, when the job ends and how it is put back.
Under mpirun in a job of Slurm, the cluster is Open MPI.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from clusterrun.errors import UsageError
from clusterrun.job.clusters.detection import CLUSTERS, current_scheduler_job
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
) -> tuple[dict[str, Setting[Any]], str]:
    """Return what is known of the scheduler's job; it is asked for the end if that is needed.

    By the names of ``Job``; and why the end is unknown, although it is needed, or "".

    ``cluster`` is the one that was detected: with ``--cluster none``, and inside a worker of another
    job, no scheduler is looked for. ``agent_rank`` is this agent's among them; None: not known yet.

    Raises:
        UsageError: the job is to be put back into a queue, and is in none; a variable is not a number.

    """
    scheduler, job = _find_job(variables, cluster)
    starts = variables.number(scheduler.starts) if scheduler else None
    requeue = value_of("requeue", sources)
    if requeue.value and job.value is None:
        *others, last = (each.scheduler.title for each in CLUSTERS if each.job)
        raise UsageError(
            f"{requeue.origin}: this is not a job of {', '.join(others)} or {last}, which could"
            " start it again",
            f"leave {requeue.origin} out, or submit the job to a scheduler",
        )
    ends_at, no_end = Setting[float | None](None, "default"), ""
    if value_of("suspend_before", sources).value is not None:
        ends_at, no_end = _find_end(scheduler, job.value, variables, process, agent_rank)
    resumed = starts or Setting(0, "default")
    return {"scheduler": job, "ends_at": ends_at, "resumed": resumed}, no_end


def default_run_id(
    job: Setting[SchedulerJob | None], sources: Sequence[Layer]
) -> Setting[str] | None:
    """Return the scheduler's id for a job that is to be put back: it is the same the next time."""
    if not value_of("requeue", sources).value or job.value is None or not job.value.job_id:
        return None
    return Setting(job.value.job_id, job.origin)


def no_end_warnings(job: Job) -> Iterator[str]:
    """Yield a warning if no end is known before which the job could be suspended.

    It runs nevertheless: the same command line also serves machines without a scheduler, and a job
    that is killed at its end has lost no more than without the option.
    """
    before = job.fact("suspend_before")
    if before.value is not None and job.given.no_end:
        yield f"{before.origin} {before.value:g} has no effect: {job.given.no_end}"


def _find_job(
    variables: Variables, cluster: Setting[str]
) -> tuple["Scheduler | None", Setting[SchedulerJob | None]]:
    """Return the scheduler in whose job this process runs, and that job."""
    is_ignored = cluster.value == "none" and cluster.origin != "default"
    here = None if is_ignored else current_scheduler_job(variables)
    if here is None:
        return None, Setting(None, "default")
    scheduler, found = here[0].scheduler, here[1]
    job_id = found.value if scheduler.has_id else ""
    end_command = (*scheduler.end_command, job_id) if scheduler.end_command else ()
    requeue = (*scheduler.requeue, job_id) if scheduler.requeue else ()
    return scheduler, Setting(
        SchedulerJob(scheduler.title, job_id, end_command, requeue), found.origin
    )


def _find_end(
    scheduler: "Scheduler | None",
    job: SchedulerJob | None,
    variables: Variables,
    process: ThisProcess,
    agent_rank: int | None,
) -> tuple[Setting[float | None], str]:
    """Return when the job ends, and why that is unknown, although this node must know it."""
    if scheduler is None or job is None:
        return _unknown("no scheduler says when this job ends")
    if known := variables.number(scheduler.end):
        return Setting(float(known.value), known.origin), ""
    if not job.end_command:
        return _unknown(f"{job} does not say when this job ends")
    if agent_rank not in {0, None}:
        return Setting(None, "asked for by node 0"), ""
    command = " ".join(job.end_command)
    # As seconds since the epoch: scontrol has no time zone in its times.
    answer = process.ask(job.end_command, {**variables, "SLURM_TIME_FORMAT": "%s"})
    if answer.failure:
        return _unknown(f"{command}: {answer.failure}")
    end = scheduler.read_end(answer.out, process.now())
    return (Setting(end, command), "") if end else _unknown(f"{job} has no time limit ({command})")


def _unknown(why: str) -> tuple[Setting[float | None], str]:
    return Setting(None, f"unknown: {why}"), why
