"""This process: its descriptors, its parent, and what /proc/self shows of it."""

from __future__ import annotations

import os

from .libc import PR_SET_PDEATHSIG, prctl
from .other_processes import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal


def status_of_this_process(key: str) -> str:
    """Return the value of a line of /proc/self/status (proc(5)); "" where the kernel has none."""
    for line in text_of("/proc/self/status").splitlines():
        if line.startswith(key + ":"):
            return line[len(key) + 1 :].strip()
    return ""


def allowed_cpus() -> str:
    """Return the CPUs that this process may use, "0-3,8"; "" where the kernel doesn't show them."""
    return status_of_this_process("Cpus_allowed_list")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends; exit if it has ended already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


def close_descriptors_above(highest: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > highest:
            try:
                os.close(int(name))
            except OSError:
                pass  # the one of the listing itself


def end_like(status: int) -> NoReturn:
    """End this process as another one ended, by its ``wait`` status."""
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    if code > 128:
        os.kill(os.getpid(), code - 128)
    # PID 1 of a namespace survives its own signals; its parent turns the code into the signal.
    os._exit(code)
