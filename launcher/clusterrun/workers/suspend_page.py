"""The agent's side of the page that it shares with its ranks: see ``clusterrun.suspend``."""

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
    WORD,
    WORDS_PER_SLOT,
)

SECONDS_TO_BE_HELD = 0.02
"""After this, a rank that saw no hold has its step in memory where the agent reads it."""

SECONDS_BETWEEN_CHECKS = 0.02
"""While ranks save; at no other time does the agent look without being called."""


class SuspendPage:
    """One attempt's page, with a slot for the agent and some for each rank: a source of events.

    A rank is at the highest step of its processes that call, and has saved once all of them have.
    """

    def __init__(self, path: Path, ranks: Iterable[LocalRank]) -> None:
        """Make the file and the pipe in an existing folder.

        Raises:
            OSError: the file system has no room, or no pipes.

        """
        self._ranks = tuple(ranks)
        slots = 1 + MAX_CALLERS_PER_RANK * (max(self._ranks, default=0) + 1)
        size = WORD * WORDS_PER_SLOT * slots
        # A new file, never the target of a link. Written, not only sized: on a full file system, a
        # store into the map would kill us.
        with path.open("xb") as file:
            file.write(bytes(size))
        fifo = f"{path}{FIFO_SUFFIX}"
        os.mkfifo(fifo, 0o600)
        # For writing too: without a writer, it would be readable all the time.
        self._calls = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        with path.open("r+b") as file:
            self._words = memoryview(mmap(file.fileno(), 0)).cast("Q")
        self._asked: set[LocalRank] = set()
        self._saved: set[LocalRank] = set()
        self._held_at = NEVER
        self._next_look = NEVER

    def fileno(self) -> int:
        return self._calls

    @property
    def due(self) -> float:
        return min(self._held_at, self._next_look)

    def hold(self, now: float) -> None:
        """Hold ranks at their next call; ``RanksHeld`` follows."""
        self._words[REQUEST_WORD] = HOLD
        self._held_at = now + SECONDS_TO_BE_HELD

    def release(self, mark: int) -> None:
        """Let held ranks go on, and have them save from ``mark`` on; 0: never."""
        self._words[REQUEST_WORD] = mark
        self._next_look = 0.0 if mark else NEVER

    def let_leave(self) -> None:
        """Let ranks that have saved exit, and held ones go on."""
        self._words[EXIT_WORD] = 1
        if self._words[REQUEST_WORD] == HOLD:
            self._words[REQUEST_WORD] = 0
        self._held_at = self._next_look = NEVER

    def events(self, now: float) -> Iterator[Event]:
        """Return what ranks have done since the last look."""
        with suppress(BlockingIOError):
            os.read(self._calls, 4096)
        marks = {rank: max(self._words_of(rank, STEP_WORD)) for rank in self._ranks}
        for rank, mark in marks.items():
            if mark and rank not in self._asked:
                self._asked.add(rank)
                yield RankCalledSuspend(rank, now)
        if now >= self._held_at:
            self._held_at = NEVER
            yield RanksHeld(max(marks.values(), default=0), now)
        if now >= self._next_look:
            self._next_look = now + SECONDS_BETWEEN_CHECKS
            yield from self._newly_saved(marks, now)

    def close(self) -> None:
        os.close(self._calls)
        self._words.release()

    def _newly_saved(self, marks: dict[LocalRank, int], now: float) -> Iterator[Event]:
        for rank, mark in marks.items():
            if rank not in self._saved and self._has_saved(rank):
                self._saved.add(rank)
                yield RankSaved(rank, mark, now)

    def _has_saved(self, rank: LocalRank) -> bool:
        callers = zip(
            self._words_of(rank, STEP_WORD), self._words_of(rank, SAVED_WORD), strict=True
        )
        saved = [bool(has_saved) for step, has_saved in callers if step]
        return bool(saved) and all(saved)

    def _words_of(self, rank: LocalRank, word: int) -> list[int]:
        """Return a word of each caller of the rank."""
        first = (1 + rank * MAX_CALLERS_PER_RANK) * WORDS_PER_SLOT + word
        return self._words[
            first : first + MAX_CALLERS_PER_RANK * WORDS_PER_SLOT : WORDS_PER_SLOT
        ].tolist()
