"""Runs work on files that may hang, and gives it up after some seconds."""

import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


class TimeLimited:
    """Runs pieces of work, ``seconds`` each at most; after one that hangs, it runs no more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._hangs = False

    def run(self, work: Callable[[], _Result]) -> _Result | None:
        """Return what ``work`` returns; None if it is not done in time. It must not raise."""
        if self._hangs:
            return None
        results: list[_Result] = []
        # No signal ends a system call that waits for a file server, but its thread can be abandoned.
        thread = start_thread(lambda: results.append(work()))
        if thread is None:
            return None
        thread.join(self._seconds)
        self._hangs = thread.is_alive()
        return results[0] if results else None


def start_thread(work: Callable[[], object]) -> threading.Thread | None:
    """Return the thread that does ``work``; None if a limit of processes allows no thread."""
    thread = threading.Thread(target=work, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
