"""``--contain``: a PID namespace; when its first process ends, the kernel ends all others in it."""

from __future__ import annotations

import _signal as signal
import os

from .other_processes import state_and_parent
from .this_process import PR_SET_PDEATHSIG, checked, end_like, mount, prctl, unshare

# linux/sched.h and linux/mount.h
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
MS_REC = 0x4000
MS_PRIVATE = 0x40000


def enter_pid_namespace(agent: int) -> None:
    """Become PID 1 of a PID namespace.

    Returns in a child only. The parent, which the agent started, waits for it and ends as it does;
    the socket, descriptor ``agent``, belongs to the child. Users other than root get a user namespace
    of their own, too.

    Raises:
        OSError: the kernel does not allow it here.

    """
    user, group = os.getuid(), os.getgid()
    if unshare(CLONE_NEWPID | CLONE_NEWNS) != 0:
        checked(unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS))
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    parent = os.getpid()
    pid = os.fork()
    if pid != 0:
        os.close(agent)
        end_like(os.waitpid(pid, 0)[1])
    # Users may kill the parent, whose pid they know; it may have ended already. getppid is 0 here.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if state_and_parent(int(os.readlink("/proc/self")))[1] != parent:
        os._exit(127)
    checked(mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    checked(mount(b"proc", b"/proc", b"proc", 0, None))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
