"""Kills what workers leave behind: their groups, and every process that becomes the server's child."""

from __future__ import annotations

import os
import time

from .other_processes import children_of, describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .forking_process import ForkingProcess
    from .workers import Workers

SECONDS_TO_CLEAN_UP = 5.0
"""A process that SIGKILL has not ended after this long hangs in the kernel (state D)."""

_SECONDS_BETWEEN_LOOKS = 0.2
"""The kernel's list of children may lack one that is just becoming a child."""


class Cleanup:
    """Kills all workers and their descendants, again and again until none is left."""

    def __init__(self, process: ForkingProcess, workers: Workers) -> None:
        self._process = process
        self._workers = workers
        self._deadline: float | None = None

    def begin(self) -> None:
        """Kill everything; ``go_on`` reports ``cleaned_up``."""
        self._deadline = time.monotonic() + SECONDS_TO_CLEAN_UP
        self._kill_all()

    def milliseconds_left(self) -> float | None:
        """Return how long to wait before ``go_on`` is due; None: no cleanup is going on."""
        if self._deadline is None:
            return None
        left = max(0.0, self._deadline - time.monotonic())
        return min(_SECONDS_BETWEEN_LOOKS, left) * 1000

    def go_on(self, *, no_children: bool) -> None:
        """Kill new orphans; report once no child is left, or the time is over."""
        if self._deadline is None:
            return
        if not no_children and time.monotonic() < self._deadline:
            self._kill_all()
            return
        self._deadline = None
        survivors = [] if no_children else children_of(self._process.pid)
        self._process.agent.send("cleaned_up", survivors=[describe(pid) for pid in survivors])

    def run_to_the_end(self) -> None:
        """Kill and reap all children, new ones too, for at most ``SECONDS_TO_CLEAN_UP``."""
        deadline = time.monotonic() + SECONDS_TO_CLEAN_UP
        self._kill_all()
        while time.monotonic() < deadline:
            # All that have ended at once: this shortens the list of children to look through.
            try:
                while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
                    pass
            except ChildProcessError:
                return
            # No groups: the workers are reaped, and their pids may belong to other processes now.
            self._process.kill_children()
            self._process.wait_for_child(_SECONDS_BETWEEN_LOOKS)

    def _kill_all(self) -> None:
        self._workers.kill_groups()
        self._process.kill_children()
