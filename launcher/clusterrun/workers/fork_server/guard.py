"""The process above the fork server, which ends what the server can't: when it is killed, or hangs.

Usually that is the agent. A server that is to stay outlives it, and one that imports modules that a user
names may hang with processes that they have started: it has a guard, its parent. With ``--contain`` the
guard is outside of the server's PID namespace, and the kernel ends all that is in it.
"""

from __future__ import annotations

import _signal as signal
import os

from .kernel import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    checked,
    die_with_parent,
    end_children,
    mount,
    prctl,
    state_and_parent,
    unshare,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# linux/sched.h and linux/mount.h
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

AGENT_ENDED = signal.SIGHUP
"""The kernel sends it to a guard when its parent ends, the agent."""

STAYS = signal.SIGUSR1
"""The server sends it to its guard: the two outlive the agent."""


def guard(agent: int) -> int:
    """Return in a child, which is the server; this process ends what the child leaves, and ends like it.

    It ends the child when the agent ends, until it has got ``STAYS`` from it.

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
    _close_what_others_wait_for()
    prctl(PR_SET_PDEATHSIG, AGENT_ENDED)
    stays, status = False, None
    while status is None:
        # Others may send these signals, too.
        if os.getppid() != agent and not stays:
            stays = _is_told(server, signal.sigtimedwait([STAYS], 0))
            if not stays:
                end_children()
                os._exit(1)
        # The agent blocked all signals before it executed this program: so none is lost.
        come = signal.sigwaitinfo(signal.valid_signals())
        stays = stays or _is_told(server, come)
        status = _status_by_now(server)
    end_children()
    end_like(status)


def _is_told(server: int, come: signal.struct_siginfo | None) -> bool:
    return come is not None and come.si_signo == STAYS and come.si_pid == server


def _status_by_now(pid: int) -> int | None:
    """Reap children that have ended; return the ``wait`` status of one, None if it runs."""
    ended = -1
    while ended != 0:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == pid:
            return status
    return None


def enter_pid_namespace(agent: int) -> int:
    """Return in a child, PID 1 of a PID namespace; this process ends like it.

    It ends with the agent, and all in the namespace with it, until it is told that the server stays.
    Users other than root get a user namespace of their own, too.

    Args:
        agent: the process that has executed this one.

    Returns:
        The pipe by which it is told: by a byte.

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
    told, telling = os.pipe()
    pid = os.fork()
    if pid != 0:
        os.close(telling)
        _close_what_others_wait_for()
        die_with_parent(agent)
        if os.read(told, 1):
            prctl(PR_SET_PDEATHSIG, 0)
        end_like(os.waitpid(pid, 0)[1])
    os.close(told)
    # Users may kill the parent, whose pid they know; it may have ended already. getppid is 0 here.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if state_and_parent(int(os.readlink("/proc/self")))[1] != parent:
        os._exit(127)
    checked(mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    checked(mount(b"proc", b"/proc", b"proc", 0, None))
    return telling


def end_like(status: int) -> NoReturn:
    """End this process as another one ended, by its ``wait`` status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL and number in signal.valid_signals():
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))


def _close_what_others_wait_for() -> None:
    """Close the standard streams, and descriptor 3, the socket to the agent."""
    for descriptor in range(4):
        os.close(descriptor)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
