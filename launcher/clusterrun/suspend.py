"""All ranks of a job stop at one step: what a training script calls.

    from clusterrun import suspend

    for step in range(start, steps):
        train(step)
        if suspend.requested(step):
            save(step)
            suspend.ready()

Without clusterrun, ``requested`` is always False and ``ready`` returns at once. This file needs
nothing but the standard library (Python 3.8), so that a script without clusterrun can bring a copy.
"""

from __future__ import annotations

import os
import time
import warnings
from mmap import mmap

VARIABLE = "CLUSTERRUN_SUSPEND_PAGE"
"""Set by clusterrun for each rank: the file, a colon, and the local rank."""

FIFO_SUFFIX = ".calls"
"""Beside the file: a named pipe; a byte in it means that a rank has called for the first time."""

WORD = 8
"""Bytes. A word is an unsigned integer in the byte order of the machine."""

WORDS_PER_SLOT = 8
"""The first slot is the agent's; no two processes share a line of the cache."""

MAX_CALLERS_PER_RANK = 32
"""Slots of each rank: a script that starts a process for each GPU by itself has as many callers."""

REQUEST_WORD = 0
"""Of the agent: 0 (go on), ``HOLD``, or 1 + the step from which on ``requested`` returns True."""

EXIT_WORD = 1
"""Of the agent: 1 once ranks that have saved may end."""

STEP_WORD = 0
"""Of a caller: 1 + the step of its last call; 0 before the first call."""

SAVED_WORD = 1
"""Of a caller: 1 once it has saved."""

HOLD = (1 << 64) - 1
"""A rank that calls waits until the step is agreed on."""

_SECONDS_BETWEEN_CHECKS = 0.002


class _Page:
    """This process's part of the file that its rank shares with the agent."""

    def __init__(self, path: str, rank: int) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123 - pathlib would stay imported in the script
            self.words = memoryview(mmap(file.fileno(), 0)).cast("Q")
        slot = rank * MAX_CALLERS_PER_RANK + _claim(f"{path}.{rank}")
        self.own = (1 + slot) * WORDS_PER_SLOT
        self.step = -1
        """Of the last call."""
        self.stops = False
        """The last call has returned True."""

    def agreed_word(self) -> int:
        """Wait while the agent holds the ranks, and return what it has written then.

        Python promises no single store for a word: it counts once two reads agree.
        """
        before, word = HOLD, self.words[REQUEST_WORD]
        while word == HOLD or word != before:
            time.sleep(_SECONDS_BETWEEN_CHECKS)
            before, word = word, self.words[REQUEST_WORD]
        return word


_page: _Page | None = None
_is_open = False


def requested(step: int | None = None) -> bool:
    """Return whether this rank is to save now; True for all ranks of the job at the same step.

    Call it once for each step, on every rank. Where a script starts a process for each GPU by itself,
    all of those call it, or the one that has started them. It costs less than a microsecond and no system call,
    apart from the first call and while a request is being agreed on.

    Args:
        step: the number of the step, which never decreases over the run. None: calls are counted
            from 0; then all ranks must call it equally often.

    Raises:
        ValueError: ``step`` is smaller than in the call before, or negative.

    """
    page = _page if _is_open else _open()
    if page is None:
        return False
    if step is None:
        step = page.step + 1
    elif step < page.step or step < 0:
        raise ValueError(f"suspend.requested({step}): steps must not decrease ({page.step} before)")
    page.step = step
    # First the step, then the look: the agent holds the ranks first, and reads their steps then.
    page.words[page.own] = step + 1
    if not page.words[REQUEST_WORD]:
        return False
    page.stops = step + 1 >= (page.agreed_word() or HOLD)
    return page.stops


def ready() -> None:
    """Say that this rank has saved; wait until all ranks of the job have, and end this process.

    Returns at once if ``requested`` has not returned True, or if the job is not suspended after all
    because a rank has ended meanwhile.

    Raises:
        SystemExit: with code 0: all ranks have saved, or the job ends for another reason.

    """
    page = _page
    if page is None or not page.stops:
        return
    page.words[page.own + SAVED_WORD] = 1
    while not page.words[EXIT_WORD]:
        if not page.words[REQUEST_WORD]:
            page.stops = False
            return
        time.sleep(_SECONDS_BETWEEN_CHECKS)
    raise SystemExit(0)


def _open() -> _Page | None:
    """Open this rank's page at its first call; None without clusterrun."""
    global _page, _is_open  # noqa: PLW0603 - a process is one rank
    _is_open = True
    path, _, rank = os.environ.get(VARIABLE, "").rpartition(":")
    if path:
        # A process that this one executes is not the rank, nor one that it forks, as a data loader's.
        del os.environ[VARIABLE]
        try:
            page = _Page(path, int(rank))
            page.words[page.own] = 1
            _write_byte(path + FIFO_SUFFIX)
        except OSError as error:
            warnings.warn(f"clusterrun can't suspend this rank: {error}", stacklevel=3)
        else:
            _page = page
            os.register_at_fork(after_in_child=_close)
    return _page


def _close() -> None:
    global _page  # noqa: PLW0603 - a process is one rank
    _page = None


def _claim(path: str) -> int:
    """Return a number that no other process of this rank has."""
    for number in range(MAX_CALLERS_PER_RANK):
        try:
            claim = os.open(f"{path}.{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        os.close(claim)
        return number
    raise OSError(f"{MAX_CALLERS_PER_RANK} other processes of it have called")


def _write_byte(fifo: str) -> None:
    pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(pipe, b".")
    finally:
        os.close(pipe)
