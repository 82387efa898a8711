"""The process above a fork server that imports modules which a user names (``--preload NAMES``).

Such a server may hang together with processes that it has started. Its guard, which is its parent, ends
what the server leaves when it is killed, and all of it when the agent ends.
"""

from __future__ import annotations

import _signal as signal
import os
import time

from .kernel import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    die_with_parent,
    end_children,
    prctl,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

SECONDS_TO_END = 1.0

AGENT_ENDED = signal.SIGHUP
"""The kernel sends it to a guard when its parent ends, the agent."""


def guard(agent: int) -> int:
    """Return in a child, which is the server; this process ends what the child leaves, and ends like it.

    Args:
        agent: the process that has executed this one.

    Returns:
        The process id of the guard.

    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    own = os.getpid()
    pid = os.fork()
    if pid != 0:
        _live_as_guard(pid, agent)
    die_with_parent(own)
    return own


def _live_as_guard(server: int, agent: int) -> NoReturn:
    # The standard streams, and descriptor 3, the socket to the agent: others wait for their end.
    for descriptor in range(4):
        os.close(descriptor)
    prctl(PR_SET_PDEATHSIG, AGENT_ENDED)
    status = None
    while status is None:
        # Others may send that signal, too.
        if os.getppid() != agent:
            _await_end(server)
            end_children()
            os._exit(1)
        # The agent blocked all signals before it executed this program: so none is lost.
        signal.sigwaitinfo(signal.valid_signals())
        status = _status_by_now(server)
    end_children()
    _end_like(status)


def _await_end(server: int) -> None:
    """Let the server end what it has started, and then the connection that it holds; it may hang."""
    deadline = time.monotonic() + SECONDS_TO_END
    while (left := deadline - time.monotonic()) > 0 and _status_by_now(server) is None:
        signal.sigtimedwait(signal.valid_signals(), left)


def _status_by_now(pid: int) -> int | None:
    """Reap children that have ended; return the ``wait`` status of one, None if it runs."""
    ended = -1
    while ended != 0:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == pid:
            return status
    return None


def _end_like(status: int) -> NoReturn:
    """End this process as another one ended, by its ``wait`` status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL and number in signal.valid_signals():
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))
