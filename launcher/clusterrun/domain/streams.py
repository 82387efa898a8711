"""The workers' output streams: which an option is about, and what of them could not be written."""

from collections.abc import Mapping
from enum import IntFlag

from msgspec import Struct


class Std(IntFlag):
    """Streams of one worker, with torchrun's name and numbers (elastic/multiprocessing/api.py)."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR


class StreamChoice(Struct, frozen=True):
    """Streams of all workers of a node, or of some of them by local rank: ``3``, ``0:3,1:2``.

    The form is torchrun's.
    """

    default: Std
    """Streams of the workers that ``by_local_rank`` does not list."""
    by_local_rank: Mapping[int, Std]

    def of(self, local_rank: int) -> Std:
        return self.by_local_rank.get(local_rank, self.default)

    def __bool__(self) -> bool:
        return any((self.default, *self.by_local_rank.values()))

    def __str__(self) -> str:
        """Return the form that a user types."""
        listed = [f"{rank}:{streams.value}" for rank, streams in self.by_local_rank.items()]
        return ",".join(listed) or str(self.default.value)


class LostOutput(Struct, frozen=True):
    """``size`` bytes that could not be written to ``name``."""

    name: str
    """"log file /logs/7f3a/attempt-0/gpu-07-0/rank-3.out" or "standard output"."""
    size: int
    why: str
    """The error, "No space left on device"; "" if only the time was too short."""
