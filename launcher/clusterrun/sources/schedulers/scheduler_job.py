"""Which scheduler's job this process is in, and how often that job was started before.

A cluster (``job.clusters``) says where this process has its place; a scheduler, when the job
ends and how it is put back. Under mpirun in a job of Slurm, the cluster is Open MPI.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.domain.scheduler import SchedulerJob
from clusterrun.job.clusters.detection import NO_CLUSTER
from clusterrun.job.clusters.found import Variables
from clusterrun.sources.schedulers.end_times import asctime_and_walltime, iso_time, seconds_left

ReadEnd = Callable[[str, float], float | None]
"""Takes an answer and the time, both in seconds since the epoch; None: there is no end."""


class Scheduler(Struct, frozen=True):
    """One scheduler: ``{}`` in its commands stands for the job's id."""

    name: str
    variables: tuple[str, ...]
    """Those that hold the id of the job."""
    requeue: tuple[str, ...]
    ask_end: tuple[str, ...] = ()
    read_end: ReadEnd = seconds_left
    end: str = ""
    """The variable with the time at which the job ends, in seconds since the epoch."""
    starts: str = ""
    """The variable with the number of earlier starts."""


SCHEDULERS = (
    # Before the others, which start it: flux runs as a job of Slurm or LSF, and not the other way.
    Scheduler(
        "Flux",
        ("FLUX_JOB_ID",),
        # No command of Flux puts a running job back: the same is submitted once more.
        requeue=(
            *("sh", "-c"),
            'spec=$(flux job info "$0" jobspec) && printf "%s" "$spec" | flux job submit',
            "{}",
        ),
        ask_end=("flux", "job", "timeleft", "{}"),
    ),
    Scheduler(
        "Slurm",
        ("SLURM_JOB_ID", "SLURM_JOBID"),
        requeue=("scontrol", "requeue", "{}"),
        ask_end=("scontrol", "show", "job", "-o", "{}"),
        read_end=iso_time,
        end="SLURM_JOB_END_TIME",
        starts="SLURM_RESTART_COUNT",
    ),
    Scheduler(
        "PBS",
        ("PBS_JOBID",),
        requeue=("qrerun", "{}"),
        ask_end=("qstat", "-f", "{}"),
        read_end=asctime_and_walltime,
    ),
    Scheduler(
        "LSF",
        ("LSB_JOBID",),
        requeue=("brequeue", "{}"),
        ask_end=("bjobs", "-noheader", "-o", "time_left", "{}"),
    ),
    # Its Job starts another pod by the exit code: docs/suspend.md.
    Scheduler("Kubernetes", ("KUBERNETES_SERVICE_HOST",), requeue=()),
)
"""In the order of detection."""

NO_JOB: Fact[SchedulerJob | None] = Fact(None, "default")


def find_scheduler_job(variables: Variables, cluster: Fact[str]) -> Fact[SchedulerJob | None]:
    """Return the job of the scheduler that has started this process; None without one.

    With ``--cluster none``, and inside a worker of another job, no scheduler is looked for.
    """
    if cluster.value == NO_CLUSTER and cluster.origin != "default":
        return NO_JOB
    for row in SCHEDULERS:
        if found := variables.text(*row.variables):
            # An address is no id.
            job_id = found.value if row.requeue else ""
            commands = (_with_id(words, job_id) for words in (row.ask_end, row.requeue))
            return Fact(SchedulerJob(row.name, job_id, *commands), found.origin)
    return NO_JOB


def find_resumed(job: Fact[SchedulerJob | None], variables: Variables) -> Fact[int]:
    """Return how often the scheduler has started the job again; 0 if it counts no starts."""
    row = _row(job)
    found = variables.number(row.starts) if row and row.starts else None
    return found or Fact(0, "default")


def known_end(job: Fact[SchedulerJob | None], variables: Variables) -> Fact[float | None]:
    """Return when the job ends, in seconds since the epoch, by a variable; None: there is none."""
    row = _row(job)
    found = variables.number(row.end) if row and row.end else None
    return Fact(float(found.value), found.origin) if found else Fact(None, "default")


def end_in_answer(job: SchedulerJob, answer: str, now: float) -> float | None:
    """Return when the job ends by the output of ``ask_end``, in seconds since the epoch."""
    return _BY_NAME[job.scheduler].read_end(answer, now)


_BY_NAME: Mapping[str, Scheduler] = {row.name: row for row in SCHEDULERS}


def _row(job: Fact[SchedulerJob | None]) -> Scheduler | None:
    return _BY_NAME[job.value.scheduler] if job.value else None


def _with_id(words: tuple[str, ...], job_id: str) -> tuple[str, ...]:
    return tuple(job_id if word == "{}" else word for word in words)
