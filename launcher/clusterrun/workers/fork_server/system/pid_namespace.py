"""``--contain``: a PID namespace, whose end is the end of all that is in it."""

from __future__ import annotations

import os

from .libc import PR_SET_PDEATHSIG, checked, mount, prctl, unshare
from .other_processes import state_and_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal

# linux/sched.h and linux/mount.h
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
MS_REC = 0x4000
MS_PRIVATE = 0x40000


def enter_pid_namespace(agent: int) -> None:
    """Become PID 1 of a PID namespace: when we end, the kernel ends all that is in it, at once.

    Returns in the child only. The parent, whom the agent started, waits for it and ends as it does;
    descriptor ``agent``, the socket, is the child's.
    As root the namespace is all that changes; others need a user namespace of their own, too.

    Raises:
        OSError: the kernel does not allow it here.

    """
    user, group = os.getuid(), os.getgid()
    if unshare(CLONE_NEWPID | CLONE_NEWNS) != 0:
        checked(unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS))
        write_file("/proc/self/setgroups", "deny")
        write_file("/proc/self/uid_map", f"{user} {user} 1")
        write_file("/proc/self/gid_map", f"{group} {group} 1")
    parent = os.getpid()
    pid = os.fork()
    if pid != 0:
        os.close(agent)
        end_like(os.waitpid(pid, 0)[1])
    # The agent knows, and users kill, the parent; it may have ended already. getppid says 0 here.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if state_and_parent(int(os.readlink("/proc/self")))[1] != parent:
        os._exit(127)
    checked(mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    checked(mount(b"proc", b"/proc", b"proc", 0, None))


def end_like(status: int) -> NoReturn:
    """End this process as another one ended, by its ``wait`` status."""
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    if code > 128:
        os.kill(os.getpid(), code - 128)
    # PID 1 of a namespace does not die of its own signals; its parent takes the code for one.
    os._exit(code)


def write_file(path: str, text: str) -> None:
    """Write ``text`` to a file of the kernel's."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
