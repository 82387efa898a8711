"""The parent of a fork server that imports modules named by the user (``--preload NAMES``).

Such an import may hang after it has started processes. The guard kills what is left when the server ends,
and the server too when the agent ends.
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
"""The kernel sends it to the guard when the agent, its parent, ends."""


def guard(agent: int) -> int:
    """Fork; return the guard's pid in the child, which becomes the server.

    This process becomes the guard: it ends with the server's exit status. ``agent`` is its parent.
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
        # AGENT_ENDED is not proof: any process may send that signal.
        if os.getppid() != agent:
            _await_end(server)
            end_children()
            os._exit(1)
        # The agent blocked all signals before it executed this program, so none is lost.
        signal.sigwaitinfo(signal.valid_signals())
        status = _reap(server)
    end_children()
    _end_like(status)


def _await_end(server: int) -> None:
    """Wait until the server, which sees the agent's end too, has cleaned up; not long, as it may hang."""
    deadline = time.monotonic() + SECONDS_TO_END
    while (left := deadline - time.monotonic()) > 0 and _reap(server) is None:
        signal.sigtimedwait(signal.valid_signals(), left)


def _reap(pid: int) -> int | None:
    """Reap all children that have ended; return the ``wait`` status of ``pid``, None while it runs."""
    ended = -1
    while ended != 0:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == pid:
            return status
    return None


def _end_like(status: int) -> NoReturn:
    """End this process with the ``wait`` status of another one."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL and number in signal.valid_signals():
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))
