"""The agent's children: those that it forks, and orphans that the kernel reparents to it.

The agent kills and reaps here what outlives the fork server.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from clusterrun.errors import MachineError
from clusterrun.processes import forked, reap_child
from clusterrun.workers.fork_server.kernel import (
    PR_SET_CHILD_SUBREAPER,
    children_and_zombies_of,
    children_of,
    describe,
    describe_fork_error,
    prctl,
    send_signal,
    state_and_parent,
)


def fork(child: Callable[[], object]) -> int:
    """Call ``processes.forked``.

    Raises:
        MachineError: a limit allows no more processes.

    """
    try:
        return forked(child)
    except OSError as error:
        raise process_limit_error(error) from error


def process_limit_error(error: OSError) -> MachineError:
    return MachineError(
        describe_fork_error(error), "raise the limit, or end processes that it counts"
    )


class Orphans:
    """Children of the agent that it did not start: the fork server's descendants once it has ended.

    Children that this process had before the launcher ran are exempt, and so are their orphans: a shell
    may run ``server & exec clusterrun ...``. As PID 1 the agent also gets orphans of unrelated
    processes, so there it reaps orphans but signals none.
    """

    def __init__(self) -> None:
        # The fork server reports it if the kernel refuses.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.helpers: set[int] = set()
        """The agent's helper processes, which other code waits for."""
        self._exempt = frozenset(children_of(os.getpid()))
        self._may_kill = os.getpid() != 1

    def exempt_current_children(self, fork_server: int) -> None:
        """Exempt all present children: while the fork server lives, it gets the workers' orphans."""
        children = frozenset(children_of(os.getpid()))
        # Checked after the list was made: if it lives now, it lived then.
        if state_and_parent(fork_server)[0] not in "ZX":
            self._exempt = children

    def reap(self) -> None:
        """Reap orphans that have ended, until a helper is next."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, options)) is not None:
                if ended.si_pid in self.helpers:
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)

    def end(self, seconds: float) -> tuple[str, ...]:
        """Kill and reap all orphans for at most ``seconds``; return descriptions of the survivors."""
        deadline = time.monotonic() + seconds
        while orphans := self._orphans():
            for pid in orphans:
                send_signal(pid, signal.SIGKILL)
            for pid in orphans:
                if reap_child(pid, deadline - time.monotonic()) is None:
                    left = [pid for pid in self._orphans() if reap_child(pid, 0.0) is None]
                    return tuple(describe(pid) for pid in left)
        return ()

    def _orphans(self) -> list[int]:
        if not self._may_kill:
            return []
        # Zombies too: their own children may have been reparented after the list was made.
        children = children_and_zombies_of(os.getpid())
        return [pid for pid in children if pid not in self.helpers | self._exempt]
