"""The agent's side of the memory page that it shares with its ranks: see ``clusterrun.suspend``."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from mmap import mmap
from pathlib import Path

from clusterrun.bounds import LocalRank
from clusterrun.loop import NEVER
from clusterrun.policy.events import Event, RankCalledSuspend, RankSaved, RanksHeld
from clusterrun.suspend import (
    EXIT_WORD,
    FIFO_SUFFIX,
    HOLD,
    MAX_CALLERS_PER_RANK,
    REQUEST_WORD,
    SAVED_WORD,
    STEP_WORD,
    WORD_SIZE,
    WORDS_PER_SLOT,
)

HOLD_SECONDS = 0.02
"""After this, a rank that missed the hold has written its step, so the agent reads it."""

SECONDS_BETWEEN_CHECKS = 0.02
"""While ranks save. At other times the agent checks only when a rank calls."""


class SuspendPage:
    """One attempt's page, with a slot for the agent and several for each rank: a source of events.

    A rank's step is the highest step of its calling processes. It has saved once all of them have.
    """

    def __init__(self, path: Path, ranks: Iterable[LocalRank]) -> None:
        """Create the file and the named pipe in an existing folder.

        Raises:
            OSError: the file system is full, or has no named pipes.

        """
        self._ranks = tuple(ranks)
        slots = 1 + MAX_CALLERS_PER_RANK * (max(self._ranks, default=0) + 1)
        size = WORD_SIZE * WORDS_PER_SLOT * slots
        # "x" follows no link. Written, not only sized: on a full file system, a store into the map
        # would kill this process.
        with path.open("xb") as file:
            file.write(bytes(size))
        fifo = f"{path}{FIFO_SUFFIX}"
        os.mkfifo(fifo, 0o600)
        # Open for writing too: a pipe without a writer is always readable.
        self._calls = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with path.open("r+b") as file:
            self._words = memoryview(mmap(file.fileno(), 0)).cast("Q")
        self._called: set[LocalRank] = set()
        self._saved: set[LocalRank] = set()
        self._hold_ends = NEVER
        self._next_check = NEVER

    def fileno(self) -> int:
        return self._calls

    @property
    def due(self) -> float:
        return min(self._hold_ends, self._next_check)

    def hold(self, now: float) -> None:
        """Hold ranks at their next call; ``RanksHeld`` follows."""
        self._words[REQUEST_WORD] = HOLD
        self._hold_ends = now + HOLD_SECONDS

    def release(self, step_count: int) -> None:
        """Let held ranks continue, and have them save after ``step_count`` steps; 0: never."""
        self._words[REQUEST_WORD] = step_count
        self._next_check = 0.0 if step_count else NEVER

    def let_exit(self) -> None:
        """Let ranks that have saved exit, and held ranks continue."""
        self._words[EXIT_WORD] = 1
        if self._words[REQUEST_WORD] == HOLD:
            self._words[REQUEST_WORD] = 0
        self._hold_ends = self._next_check = NEVER

    def events(self, now: float) -> Iterator[Event]:
        """Return what ranks have done since the last call."""
        with suppress(BlockingIOError):
            os.read(self._calls, 4096)
        step_counts = {rank: max(self._words_of(rank, STEP_WORD)) for rank in self._ranks}
        for rank, count in step_counts.items():
            if count and rank not in self._called:
                self._called.add(rank)
                yield RankCalledSuspend(rank, now)
        if now >= self._hold_ends:
            self._hold_ends = NEVER
            yield RanksHeld(max(step_counts.values(), default=0), now)
        if now >= self._next_check:
            self._next_check = now + SECONDS_BETWEEN_CHECKS
            for rank, count in step_counts.items():
                if rank not in self._saved and self._has_saved(rank):
                    self._saved.add(rank)
                    yield RankSaved(rank, count, now)

    def close(self) -> None:
        os.close(self._calls)
        self._words.release()

    def _has_saved(self, rank: LocalRank) -> bool:
        steps, saved = self._words_of(rank, STEP_WORD), self._words_of(rank, SAVED_WORD)
        return any(steps) and all(done for step, done in zip(steps, saved, strict=True) if step)

    def _words_of(self, rank: LocalRank, word: int) -> list[int]:
        """Return one word of each calling process of a rank."""
        first = (1 + rank * MAX_CALLERS_PER_RANK) * WORDS_PER_SLOT + word
        return self._words[
            first : first + MAX_CALLERS_PER_RANK * WORDS_PER_SLOT : WORDS_PER_SLOT
        ].tolist()
