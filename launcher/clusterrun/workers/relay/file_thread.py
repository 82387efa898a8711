"""A thread that writes files: a write may wait for a hung disk, and the relay must not.

The relay's thread and the writing thread share no lock. Each number has one writer, queues are
``SimpleQueue`` and ``deque``, and a thread is woken after the change that it must notice.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

from clusterrun.processes import start_thread
from clusterrun.workers.children import no_process

_RETRY_SECONDS = 1.0

Work = Callable[[], bool]
"""May take long; returns False to be called again in a second, as there is no room now."""


class FileThread:
    """Does one piece of work after the other; calls ``wake`` when the relay should look again.

    Raises:
        MachineError: a limit of processes allows no thread.

    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self._works: SimpleQueue[Work] = SimpleQueue()
        self._stuck: dict[Work, None] = {}
        self._notes: SimpleQueue[str] = SimpleQueue()
        self._submitted = 0
        self._done = 0
        self._leaving = False
        if start_thread(self._run) is None:
            # The limit counts threads, too.
            raise no_process(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))

    @property
    def idle(self) -> bool:
        """Whether all work is done, and all notes are taken."""
        done = self._done == self._submitted and not self._stuck
        return done and self._notes.empty()

    def submit(self, work: Work) -> None:
        self._submitted += 1
        self._works.put(work)

    def hurry(self) -> None:
        """Wake the relay after each piece of work from now on: it waits for ``idle``."""
        self._leaving = True
        self.wake()

    def note(self, text: str) -> None:
        self._notes.put(text)
        self.wake()

    def notes(self) -> Iterator[str]:
        with suppress(Empty):
            while True:
                yield self._notes.get_nowait()

    def _run(self) -> None:
        retry_at = 0.0
        while True:
            with suppress(Empty):
                self._attempt(self._works.get(timeout=_RETRY_SECONDS if self._stuck else None))
                self._done += 1
            if self._stuck and time.monotonic() >= retry_at:
                for work in list(self._stuck):
                    self._attempt(work)
                retry_at = time.monotonic() + _RETRY_SECONDS
            if self._leaving:
                self.wake()

    def _attempt(self, work: Work) -> None:
        if work():
            self._stuck.pop(work, None)
        else:
            self._stuck[work] = None
