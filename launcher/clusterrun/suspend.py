"""Lets all ranks of a job save and stop at the same step. Training scripts call it.

    from clusterrun import suspend

    for step in range(start, steps):
        train(step)
        if suspend.requested(step):
            save(step)
            suspend.ready()

Without clusterrun, ``requested`` always returns False and ``ready`` returns at once. This file needs
only the standard library (Python 3.8), so a project without clusterrun can include a copy.
"""

from __future__ import annotations

import os
import time
import warnings
from mmap import mmap
from operator import index

VARIABLE = "CLUSTERRUN_SUSPEND_PAGE"
"""Set by clusterrun for each rank: path of the page, a colon, local rank."""

FIFO_SUFFIX = ".calls"
"""Suffix of a named pipe next to the page. Each process writes one byte to it at its first call."""

WORD_SIZE = 8
"""Bytes. A word is an unsigned integer in native byte order."""

WORDS_PER_SLOT = 8
"""The first slot is the agent's. No two processes share a cache line."""

MAX_CALLERS_PER_RANK = 32
"""Slots of each rank. A script may start a process for each GPU by itself, and each may call."""

REQUEST_WORD = 0
"""In the agent's slot: 0 (continue), ``HOLD``, or 1 + the first step at which ranks save."""

EXIT_WORD = 1
"""In the agent's slot: 1 once ranks that have saved may exit."""

STEP_WORD = 0
"""In a caller's slot: 1 + the step of its last call; 0 before its first call."""

SAVED_WORD = 1
"""In a caller's slot: 1 once it has saved."""

HOLD = (1 << 64) - 1
"""Ranks that call wait until the agents have agreed on a step."""

_SECONDS_BETWEEN_CHECKS = 0.002


class _Page:
    """The file that the ranks of a node share with the agent, and this process's slot in it."""

    def __init__(self, path: str, rank: int) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123 - pathlib would stay imported in the script
            self.words = memoryview(mmap(file.fileno(), 0)).cast("Q")
        slot = rank * MAX_CALLERS_PER_RANK + _take_slot(f"{path}.{rank}")
        self.own = (1 + slot) * WORDS_PER_SLOT
        self.step = -1
        """The step of the last call."""
        self.stops = False
        """Whether the last call has returned True."""

    def agreed_word(self) -> int:
        """Wait while the agent makes ranks wait, and return the word that it writes then.

        Two reads must agree, because Python does not promise to store a word atomically.
        """
        before, word = HOLD, self.words[REQUEST_WORD]
        while word == HOLD or word != before:
            time.sleep(_SECONDS_BETWEEN_CHECKS)
            before, word = word, self.words[REQUEST_WORD]
        return word


_page: _Page | None = None
_is_open = False


def requested(step: int | None = None) -> bool:
    """Return whether this rank must save now; True for all ranks of the job at the same step.

    Call it once per step on every rank. If a script starts a process for each GPU by itself, either
    all of these call it, or only the process that started them. A call takes less than a microsecond
    and no system call, except the first call and while ranks agree on a step.

    Args:
        step: the number of the step, from 0, which must never decrease. None: calls are counted from 0,
            and all ranks must call it equally often.

    Raises:
        ValueError: ``step`` is not a whole number from 0, or, under clusterrun, smaller than in the call
            before.

    """
    if step is not None and (type(step) is not int or step < 0):
        step = _whole_number(step)
    page = _page if _is_open else _open()
    if page is None:
        return False
    if step is None:
        step = page.step + 1
    elif step < page.step:
        raise ValueError(
            f"suspend.requested({step}): steps must not decrease (the previous step was"
            f" {page.step})"
        )
    page.step = step
    # The step is written before the word is read: the agent writes HOLD first and then reads the steps.
    page.words[page.own] = step + 1
    if not page.words[REQUEST_WORD]:
        return False
    page.stops = step + 1 >= (page.agreed_word() or HOLD)
    return page.stops


def ready() -> None:
    """Report that this rank has saved, wait until all ranks of the job have, and exit.

    Returns if ``requested`` did not return True, or if the suspension is cancelled because a rank has
    exited meanwhile.

    Raises:
        SystemExit: with code 0, when all ranks have saved or the job ends for another reason.

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


def _whole_number(step: int) -> int:
    """Return a step of another type, such as numpy's, as an int."""
    try:
        number = index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"suspend.requested({step}): the step must be a whole number from 0")
    return number


def _open() -> _Page | None:
    """Open the page at the first call; return None without clusterrun."""
    global _page, _is_open  # noqa: PLW0603 - a process is one rank
    _is_open = True
    path, _, rank = os.environ.get(VARIABLE, "").rpartition(":")
    if path:
        # Programs that this process executes, and processes that it forks (a DataLoader's), are not the rank.
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


def _take_slot(path: str) -> int:
    """Return the number of a slot that no other process of this rank has taken."""
    for number in range(MAX_CALLERS_PER_RANK):
        try:
            lock = os.open(f"{path}.{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        os.close(lock)
        return number
    raise OSError(
        f"{MAX_CALLERS_PER_RANK} other processes of this rank have already called"
        " suspend.requested()"
    )


def _write_byte(fifo: str) -> None:
    pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(pipe, b".")
    finally:
        os.close(pipe)
