"""Reaps a child within a time limit: not even SIGKILL ends one that hangs in the kernel."""

import os
import signal
import time


def status_of(pid: int, seconds: float) -> int | None:
    """Reap child ``pid``; return its ``wait`` status, 0 if it was reaped before, None if it still runs."""
    deadline = time.monotonic() + seconds
    # Blocked, so that the end cannot come between a look and the wait for it. A pidfd would do,
    # but Linux before 5.3 has none, nor has the Python of conda (python-trio/trio#2855).
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        while (status := _status_by_now(pid)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            signal.sigtimedwait({signal.SIGCHLD}, left)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return status


def _status_by_now(pid: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return status if ended else None
