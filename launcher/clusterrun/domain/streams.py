"""Which of the workers' streams something is said about, in torchrun's words: ``3``, ``0:3,1:2``."""

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
    """Streams of all workers of a node, or of those that are named by their local ranks."""

    everyone: Std
    by_local_rank: Mapping[int, Std]
    """Where anyone is named, nothing is said of those who are not."""

    def of(self, local_rank: int) -> Std:
        """Return the streams of one worker."""
        return self.by_local_rank.get(local_rank, self.everyone)

    def __bool__(self) -> bool:
        """Return whether it names any stream at all."""
        return any((self.everyone, *self.by_local_rank.values()))

    def __str__(self) -> str:
        """Return it as a user would type it."""
        named = [f"{rank}:{streams.value}" for rank, streams in self.by_local_rank.items()]
        return ",".join(named) or str(self.everyone.value)
