"""The scheduler's job that this job runs in: how it is asked about it."""

from msgspec import Struct

RESUMED_VARIABLE = "CLUSTERRUN_RESUMED"
"""Set for all workers: how often the scheduler has started the job again."""


class SchedulerJob(Struct, frozen=True):
    """A job of a scheduler, and the commands that speak of it."""

    scheduler: str
    """Its name for people: "Slurm"."""
    job_id: str
    ask_end: tuple[str, ...]
    """Prints when the job ends; () if there is no such command."""
    requeue: tuple[str, ...]
    """Puts the job back into the queue; () if its exit code does."""

    def __str__(self) -> str:
        return f"{self.scheduler} job {self.job_id}" if self.job_id else self.scheduler
