"""The agent's own layer of containment: what outlives the fork server comes to us, and ends here."""

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress

from clusterrun.processes.reaping import status_of
from clusterrun.workers.fork_server.system.libc import PR_SET_CHILD_SUBREAPER, prctl
from clusterrun.workers.fork_server.system.other_processes import (
    children_of,
    describe,
    every_child_of,
    state_and_parent,
)


class Adoptees:
    """Children that we did not start ourselves: orphans of the job, that is of the fork server.

    As PID 1 we also get strangers; those are reaped, but never signalled. So are children that
    were ours before the launcher ran (a shell that said ``server & exec clusterrun ...``), and
    what these leave behind.
    """

    def __init__(self) -> None:
        """Become a subreaper; what is our child by now is a stranger."""
        # The fork server says so if the kernel refuses it.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._strangers = frozenset(children_of(os.getpid()))
        self._everyone_is_ours = os.getpid() != 1

    def spare_strangers(self, fork_server: int) -> None:
        """Tell strangers by their time: while the fork server lives, it gets the job's orphans."""
        children = frozenset(children_of(os.getpid()))
        # Asked only now: if it lives, it lived when the children were listed.
        if state_and_parent(fork_server)[0] not in "ZX":
            self._strangers = children

    def reap(self, ours: Collection[int]) -> None:
        """Collect adopted children that have ended; those in ``ours`` have somebody who waits."""
        with suppress(ChildProcessError):
            while (
                dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ) is not None:
                if dead.si_pid in ours:
                    return
                os.waitpid(dead.si_pid, os.WNOHANG)

    def end(self, ours: Collection[int], seconds: float) -> tuple[str, ...]:
        """Kill and reap all adoptees for at most ``seconds``; return those that won't die."""
        deadline = time.monotonic() + seconds
        while adopted := self._adopted(ours):
            for pid in adopted:
                # Not even we may signal what runs under another user; it is named below.
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in adopted:
                if not wait_for(pid, deadline - time.monotonic()):
                    left = [pid for pid in self._adopted(ours) if not wait_for(pid, 0.0)]
                    return tuple(describe(pid) for pid in left)
        return ()

    def _adopted(self, ours: Collection[int]) -> list[int]:
        if not self._everyone_is_ours:
            return []
        # The dead, too: who died since the children were listed has left us its own meanwhile.
        children = every_child_of(os.getpid())
        return [pid for pid in children if pid not in {*ours, *self._strangers}]


def wait_for(pid: int, seconds: float) -> bool:
    """Reap our child ``pid`` within ``seconds``; return whether it is gone."""
    return status_of(pid, seconds) is not None
