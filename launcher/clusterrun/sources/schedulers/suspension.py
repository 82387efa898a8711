"""What a job's scheduler has to do with its suspension: when it ends, and how it is put back."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec
from clusterrun.domain.scheduler import SchedulerJob
from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import Variables
from clusterrun.job.sources import Layer, value_of
from clusterrun.job.this_process import ThisProcess

PREFIXES = frozenset({"FLUX", "SLURM", "PBS", "LSB", "KUBERNETES"})
"""Beginnings of the variables of schedulers, up to the first _: without any, none is imported."""


class SchedulerFacts(Struct, frozen=True):
    """Values of the job under the same names."""

    scheduler: Fact[SchedulerJob | None]
    ends_at: Fact[float | None]
    resumed: Fact[int]
    no_end: str
    """Why the end is unknown, although it is needed; "": it is known, or not needed."""


def scheduler_facts(
    sources: Sequence[Layer],
    variables: Variables,
    process: ThisProcess,
    cluster: Fact[str],
    agent_rank: int | None,
) -> SchedulerFacts:
    """Return what is known of the scheduler's job; it is asked for the end if that is needed.

    ``cluster`` is the one that was detected; ``agent_rank`` this agent's among them, None if it is not
    known yet.

    Raises:
        UsageError: the job is to be put back into a queue, and is in none.

    """
    job, resumed = _find_job(variables, cluster)
    requeue = value_of("requeue", sources)
    if requeue.value and job.value is None:
        raise UsageError(
            f"{requeue.origin}: this is no job of Slurm, PBS, LSF, Flux or Kubernetes, which could"
            " start it again",
            f"leave {requeue.origin} out, or submit the job to a scheduler",
        )
    before = value_of("suspend_before", sources)
    if before.value is None:
        return SchedulerFacts(job, Fact(None, "default"), resumed, "")
    ends_at, no_end = _find_end(job, variables, process, agent_rank)
    return SchedulerFacts(job, ends_at, resumed, no_end)


def end_warnings(job: JobSpec) -> Iterator[str]:
    """Yield a warning if no end is known before which the job could be suspended.

    It runs nevertheless: the same command line also serves machines without a scheduler, and a job
    that is killed at its end has lost no more than without the option.
    """
    before = job.suspend_before
    if before.value is not None and job.given.no_end:
        yield f"{before.origin} {before.value:g} has no effect: {job.given.no_end}"


def default_run_id(job: Fact[SchedulerJob | None], sources: Sequence[Layer]) -> Fact[str] | None:
    """Return the scheduler's id for a job that is to be put back: it is the same the next time."""
    if not value_of("requeue", sources).value or job.value is None or not job.value.job_id:
        return None
    return Fact(job.value.job_id, job.origin)


def _find_job(
    variables: Variables, cluster: Fact[str]
) -> tuple[Fact[SchedulerJob | None], Fact[int]]:
    """Return the scheduler's job, and how often it was started again."""
    if PREFIXES.isdisjoint(name.partition("_")[0] for name in variables):
        return Fact(None, "default"), Fact(0, "default")
    from clusterrun.sources.schedulers.scheduler_job import find_resumed, find_scheduler_job

    job = find_scheduler_job(variables, cluster)
    return job, find_resumed(job, variables)


def _find_end(
    job: Fact[SchedulerJob | None],
    variables: Variables,
    process: ThisProcess,
    agent_rank: int | None,
) -> tuple[Fact[float | None], str]:
    """Return when the job ends, and why that is unknown, although this node must know it."""
    if job.value is None:
        return _unknown("no scheduler says when this job ends")
    from clusterrun.sources.schedulers.scheduler_job import end_in_answer, known_end

    known = known_end(job, variables)
    if known.value is not None:
        return known, ""
    if not job.value.ask_end:
        return _unknown(f"{job.value} does not say when this job ends")
    if agent_rank not in {0, None}:
        return Fact(None, "asked for by node 0"), ""
    command = " ".join(job.value.ask_end)
    answer = process.ask(job.value.ask_end, variables)
    if answer.error:
        return _unknown(f"{command}: {answer.error}")
    end = end_in_answer(job.value, answer.text, process.now())
    return (
        (Fact(end, command), "") if end else _unknown(f"{job.value} has no time limit ({command})")
    )


def _unknown(why: str) -> tuple[Fact[float | None], str]:
    return Fact(None, f"unknown: {why}"), why
