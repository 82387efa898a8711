"""What every process of the launcher does with its descriptors and its children."""

import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

SECONDS_BETWEEN_LOOKS = 0.05


def close_all_but(keep: Collection[int]) -> None:
    """Close every open descriptor of this process that is not in ``keep``.

    ``os.closerange`` would take minutes where the limit is 1,073,741,816 and Python was built
    without close_range (conda's).
    """
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) not in keep:
            # The descriptor that listed the folder is closed already.
            with suppress(OSError):
                os.close(int(entry.name))


def forked(child: Callable[[], object]) -> int:
    """Fork a child that calls ``child`` and exits; return its process id.

    The child has every signal blocked: none of the launcher's handlers may run in it, and a Ctrl-C
    that reaches both must not be written to the launcher's wake-up pipe twice.

    Raises:
        OSError: no process can be started.

    """
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _call_and_exit(child)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _call_and_exit(child: Callable[[], object]) -> NoReturn:
    try:
        child()
    finally:
        # After any exception: no traceback, and no exit handlers of the launcher.
        os._exit(0)


def stop_as_by_default() -> None:
    """Stop this process as Ctrl-Z does without a handler, and go on when it is continued.

    SIGSTOP would do so even where no shell can continue it, such as at the end of ``ssh -t``: there
    the kernel ignores SIGTSTP (signal(7), orphaned process groups).
    """
    handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, handler)


def status_of(pid: int, seconds: float) -> int | None:
    """Reap child ``pid``, if it ends in time: not even SIGKILL ends one that hangs in the kernel.

    Returns its ``wait`` status, 0 if it was reaped before, or None if it still runs.
    """
    deadline = time.monotonic() + seconds
    # Blocked, so that the end cannot come between a look and the wait for it. A pidfd would do,
    # but Linux before 5.3 has none, nor has the Python of conda (python-trio/trio#2855).
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        while (status := _status_by_now(pid)) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            # In steps: another thread, which does not block the signal, may have taken it.
            signal.sigtimedwait({signal.SIGCHLD}, min(left, SECONDS_BETWEEN_LOOKS))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return status


def _status_by_now(pid: int) -> int | None:
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return status if ended else None


def boot_id() -> str:
    """Return the kernel's id of this boot, which its containers share; "" where it is hidden."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
