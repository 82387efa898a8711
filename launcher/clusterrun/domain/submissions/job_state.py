"""What a scheduler says of a job that was submitted."""

from enum import Enum
from pathlib import Path

from msgspec import Struct


class Phase(Enum):
    """The part of its life that a job is in; one that is started again waits once more."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class JobState(Struct, frozen=True):
    """The state of a job, or of one of the jobs of an array."""

    job_id: str
    phase: Phase
    words: str
    """The scheduler's own: ``PENDING (Resources)``."""
    exit_code: int = 0
    """Once it has ended: the job's own, or what stands for the reason of its end."""
    output: Path | None = None
    """Where the scheduler writes its standard output; None: unknown."""
    error: Path | None = None
    """None: unknown, or the same file."""
