"""The scheduler's job that this job runs in: its end, its way back into the queue, earlier starts.

A cluster says where this process has its place; a scheduler, when the job ends and how it is put back.
Under mpirun in a job of Slurm, the cluster is Open MPI.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import Variables
from clusterrun.job.declaring import Fact
from clusterrun.job.job import Job, SchedulerJob
from clusterrun.job.sources import Layer, value_of
from clusterrun.job.this_process import ThisProcess


def iso_time(answer: str, _now: float) -> float | None:
    """Read ``EndTime=2026-11-22T23:59:01``, in local time (scontrol(1)); or seconds since the epoch.

    The latter if SLURM_TIME_FORMAT is ``%s``, which is what the question is asked with.
    """
    found = re.search(r"\bEndTime=(\S+)", answer)
    if found is None:
        return None
    if found[1].isdigit():
        return float(found[1])
    return _local(found[1], "%Y-%m-%dT%H:%M:%S")


def asctime_and_walltime(answer: str, _now: float) -> float | None:
    """Read start and limit as ``qstat -f`` prints them (pbs_job_attributes(7B)).

    PBS Professional and OpenPBS have ``stime``, Torque has ``start_time``; a long line goes on after
    a tab.
    """
    text = answer.replace("\n\t", "")
    started = re.search(r"^\s*(?:stime|start_time) = (.+)$", text, re.MULTILINE)
    limit = re.search(r"^\s*Resource_List\.walltime = ([\d:]+)$", text, re.MULTILINE)
    if started is None or limit is None:
        return None
    since = _local(started[1].strip(), "%a %b %d %H:%M:%S %Y")
    return None if since is None else since + _seconds(limit[1])


def seconds_left(answer: str, now: float) -> float | None:
    """Read the time that is left: seconds (flux-job(1)), or LSF's ``0:50 L`` (bjobs -WL): hours and minutes."""
    found = re.search(r"\d[\d:]*", answer)
    if found is None:
        return None
    if ":" not in found[0]:
        left = int(found[0])
        # flux prints UINT_MAX for a job without a limit.
        return None if left >= 1 << 31 else now + left
    # With LSB_HMS_TIME_FORMAT, LSF adds seconds.
    text = found[0] if found[0].count(":") == 2 else f"{found[0]}:00"
    return now + _seconds(text)


class SchedulerRow(Struct, frozen=True):
    """One scheduler; the last word of each of its commands, the job's id, is left out."""

    name: str
    variables: tuple[str, ...]
    """Those that hold the id of the job."""
    requeue: tuple[str, ...] = ()
    ask_end: tuple[str, ...] = ()
    read_end: Callable[[str, float], float | None] = seconds_left
    """Takes an answer and the time, and returns the end, both in seconds since the epoch; None: the
    job has no end."""
    end: str = ""
    """The variable with the time at which the job ends, in seconds since the epoch."""
    starts: str = ""
    """The variable with the number of earlier starts."""


SCHEDULERS = (
    # Before the others, which start it: flux runs as a job of Slurm or LSF, and not the other way.
    SchedulerRow(
        "Flux",
        ("FLUX_JOB_ID",),
        # No command of Flux puts a running job back: the same is submitted once more.
        requeue=(
            *("sh", "-c"),
            'spec=$(flux job info "$0" jobspec) && printf "%s" "$spec" | flux job submit',
        ),
        ask_end=("flux", "job", "timeleft"),
    ),
    SchedulerRow(
        "Slurm",
        ("SLURM_JOB_ID", "SLURM_JOBID"),
        requeue=("scontrol", "requeue"),
        ask_end=("scontrol", "show", "job", "-o"),
        read_end=iso_time,
        end="SLURM_JOB_END_TIME",
        starts="SLURM_RESTART_COUNT",
    ),
    SchedulerRow(
        "PBS",
        ("PBS_JOBID",),
        requeue=("qrerun",),
        ask_end=("qstat", "-f"),
        read_end=asctime_and_walltime,
    ),
    SchedulerRow(
        "LSF",
        ("LSB_JOBID",),
        requeue=("brequeue",),
        ask_end=("bjobs", "-noheader", "-o", "time_left"),
    ),
    # Its Job starts another pod by the exit code: docs/suspend.md.
    SchedulerRow("Kubernetes", ("KUBERNETES_SERVICE_HOST",)),
)
"""In the order of detection."""


def scheduler_facts(
    sources: Sequence[Layer],
    variables: Variables,
    process: ThisProcess,
    cluster: Fact[str],
    agent_rank: int | None,
) -> tuple[dict[str, Fact[Any]], str]:
    """Return what is known of the scheduler's job; it is asked for the end if that is needed.

    By the names of ``Job``; and why the end is unknown, although it is needed, or "".

    ``cluster`` is the one that was detected: with ``--cluster none``, and inside a worker of another
    job, no scheduler is looked for. ``agent_rank`` is this agent's among them; None: not known yet.

    Raises:
        UsageError: the job is to be put back into a queue, and is in none; a variable is not a number.

    """
    row, job = _find_job(variables, cluster)
    starts = variables.number(row.starts) if row else None
    requeue = value_of("requeue", sources)
    if requeue.value and job.value is None:
        raise UsageError(
            f"{requeue.origin}: this is not a job of Slurm, PBS, LSF, Flux or Kubernetes, which could"
            " start it again",
            f"leave {requeue.origin} out, or submit the job to a scheduler",
        )
    ends_at, no_end = Fact[float | None](None, "default"), ""
    if value_of("suspend_before", sources).value is not None:
        ends_at, no_end = _find_end(row, job.value, variables, process, agent_rank)
    resumed = starts or Fact(0, "default")
    return {"scheduler": job, "ends_at": ends_at, "resumed": resumed}, no_end


def default_run_id(job: Fact[SchedulerJob | None], sources: Sequence[Layer]) -> Fact[str] | None:
    """Return the scheduler's id for a job that is to be put back: it is the same the next time."""
    if not value_of("requeue", sources).value or job.value is None or not job.value.job_id:
        return None
    return Fact(job.value.job_id, job.origin)


def end_warnings(job: Job) -> Iterator[str]:
    """Yield a warning if no end is known before which the job could be suspended.

    It runs nevertheless: the same command line also serves machines without a scheduler, and a job
    that is killed at its end has lost no more than without the option.
    """
    before = job.fact("suspend_before")
    if before.value is not None and job.given.no_end:
        yield f"{before.origin} {before.value:g} has no effect: {job.given.no_end}"


def _find_job(
    variables: Mapping[str, str], cluster: Fact[str]
) -> tuple[SchedulerRow | None, Fact[SchedulerJob | None]]:
    """Return the first scheduler with a variable set, and its job."""
    is_ignored = cluster.value == "none" and cluster.origin != "default"
    for row in () if is_ignored else SCHEDULERS:
        name = next((name for name in row.variables if variables.get(name)), "")
        if name:
            # Kubernetes' variable is an address, and no id.
            job_id = variables[name] if row.requeue else ""
            ask_end = (*row.ask_end, job_id) if row.ask_end else ()
            requeue = (*row.requeue, job_id) if row.requeue else ()
            return row, Fact(SchedulerJob(row.name, job_id, ask_end, requeue), name)
    return None, Fact(None, "default")


def _find_end(
    row: SchedulerRow | None,
    job: SchedulerJob | None,
    variables: Variables,
    process: ThisProcess,
    agent_rank: int | None,
) -> tuple[Fact[float | None], str]:
    """Return when the job ends, and why that is unknown, although this node must know it."""
    if row is None or job is None:
        return _unknown("no scheduler says when this job ends")
    if known := variables.number(row.end):
        return Fact(float(known.value), known.origin), ""
    if not job.ask_end:
        return _unknown(f"{job} does not say when this job ends")
    if agent_rank not in {0, None}:
        return Fact(None, "asked for by node 0"), ""
    command = " ".join(job.ask_end)
    # As seconds since the epoch: scontrol has no time zone in its times.
    answer = process.ask(job.ask_end, {**variables, "SLURM_TIME_FORMAT": "%s"})
    if answer.failure:
        return _unknown(f"{command}: {answer.failure}")
    end = row.read_end(answer.out, process.now())
    return (Fact(end, command), "") if end else _unknown(f"{job} has no time limit ({command})")


def _unknown(why: str) -> tuple[Fact[float | None], str]:
    return Fact(None, f"unknown: {why}"), why


def _seconds(text: str) -> int:
    """Return the seconds of ``[[HOURS:]MINUTES:]SECONDS``."""
    seconds = 0
    for part in text.split(":"):
        seconds = 60 * seconds + int(part or 0)
    return seconds


def _local(text: str, form: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, form))
    except (ValueError, OverflowError):
        return None
