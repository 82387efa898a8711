"""What bench_slow.py plants in the ranks of its job: files of a folder that both know.

Only the standard library is imported: the ranks' Python may have no clusterrun.
"""

import json
import mmap
import struct
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Self

BATCH = 8
"""Samples in a batch of one rank."""

READ_BYTES = 1 << 18
"""What a rank's DataLoader process reads from the disk for each batch."""

DATA_BYTES = 16 << 20
"""The size of the file that it reads from."""


class Kind(StrEnum):
    """How a job trains."""

    DDP = "ddp"
    FSDP2 = "fsdp2"
    LIGHTNING = "lightning"
    HF = "hf"
    """The Trainer of transformers."""


class Cause(StrEnum):
    """Why ranks are slow."""

    BACKWARD_SLEEP = "backward_sleep"
    BACKWARD_BUSY = "backward_busy"
    LOADER = "loader"
    """``__getitem__`` of its dataset is slow."""
    STORAGE = "storage"
    """The disk is throttled from which the DataLoader processes of two ranks read."""
    SAVE = "save"
    BATCH = "batch"
    """Its batches are larger."""
    QUOTA = "quota"
    """Its cgroup has a CPU quota."""
    COMPETITOR = "competitor"
    """Other processes keep one CPU busy."""
    HEALTHY = "healthy"
    """No rank is slow; the CPUs are full."""
    HEALTHY_FREE = "healthy_free"
    """No rank is slow; two ranks sleep instead of most of their work, so CPUs are free."""


class Plan(NamedTuple):
    """Which ranks are slow, and why."""

    cause: Cause
    ranks: tuple[int, ...] = ()
    delay: float = 0.0
    """Seconds that a step of a slow rank takes longer, more or less."""

    def write(self, folder: Path) -> None:
        """Let all ranks know it: they read it in each step."""
        new = folder / "plan.new"
        new.write_text(json.dumps(self))
        new.replace(folder / "plan")

    @classmethod
    def of_rank(cls, rank: int, folder: Path) -> Self:
        """Return the plan as it concerns one rank: healthy if another one is slow."""
        cause, ranks, delay = json.loads((folder / "plan").read_text())
        return cls(Cause(cause), (rank,), delay) if rank in ranks else cls(Cause.HEALTHY)


class StepCounter:
    """How many steps a rank has begun: written by the rank, read by the benchmark."""

    def __init__(self, rank: int, folder: Path) -> None:
        """Open the file of this rank, or make it."""
        path = folder / f"{rank}.steps"
        if not path.exists():
            path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def add(self) -> None:
        """Count one more."""
        self._memory[:8] = struct.pack("q", self.count() + 1)

    def count(self) -> int:
        """Return how many there are so far."""
        return int(struct.unpack("q", self._memory[:8])[0])


def data_file(rank: int, folder: Path) -> Path:
    """Return what a rank's DataLoader process reads; it reads nothing if there is no such file."""
    return folder / f"{rank}.data"
