"""The way of a forked child to its program, step by step, each with a name."""

from __future__ import annotations

import errno
import fcntl
import os

from . import worker_signals
from .agent_socket import frame
from .scripts.hidden_modules import hidden_imports
from .system.libc import (
    MPOL_BIND,
    MPOL_PREFERRED,
    MPOL_PREFERRED_MANY,
    PR_SET_PDEATHSIG,
    prctl,
    set_memory_policy,
)
from .system.other_processes import allowed_cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any

    from .scripts.script import Script
    from .scripts.script_run import ScriptRun
    from .server import ForkServer
else:
    import _signal as signal


def become_worker(
    server: ForkServer,
    request: dict[str, Any],
    status: int,
    script: Script | None,
) -> ScriptRun:
    """In the child: take every step of a worker's start, and execute its program or return.

    Tells ``status`` the ``step`` that fails and its ``error``, and with ``remark`` of a binding, or
    ``memory_remark`` of a memory policy, that did not work, which is no reason not to train; the end
    of file means that all is done.

    Args:
        server: whose child this is.
        request: what the agent asks for.
        status: a pipe to the server.
        script: to be run in place; None: the program is executed.

    Returns:
        The run of the script; only where there is one.

    """
    step = "signals"
    try:
        signal.set_wakeup_fd(-1)
        step = "session"
        streams = request["descriptors"]
        enter_session(request["foreground"], streams[0])
        worker_signals.restore(server.ignored)
        step = "die with the fork server"
        die_with_parent(server.pid)
        step = "binding"
        pid = int(os.readlink("self", dir_fd=server.host_proc))
        # Before the program may bind itself, which is its own affair.
        remark = bind(request["cpus"]) or read_back(request["cpus"])
        memory_remark = take_memory_of(request["memory"])
        os.write(status, frame("progress", pid=pid, remark=remark, memory_remark=memory_remark))
        step = "output"
        status = take_streams(streams, status)
        if script is not None:
            step = "run in place " + script.path
            run = script.prepare_worker(request, server.script_ends.of(request["local_rank"]))
            server.agent.close()
            close_all_but_streams()
            return run
        step = "execute " + request["argv"][0]
        variables = worker_variables(request)
        signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
        os.execvpe(request["argv"][0], request["argv"], variables)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the child must not become a server
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        try:
            os.write(status, frame("progress", step=step, error=why))
        finally:
            os._exit(127)


def enter_session(foreground: int, terminal: int) -> None:
    """Lead a group of our own: in a new session, or as the foreground in place of that group.

    Where a shell (``bg``) or another launcher has the terminal by now, it keeps it.
    """
    if not foreground:
        os.setsid()
        return
    os.setpgid(0, 0)
    # 0 is a group outside of our PID namespace.
    if os.tcgetpgrp(terminal) in {foreground, 0}:
        # SIGTTOU is still ignored here, or this call would stop us.
        os.tcsetpgrp(terminal, os.getpid())


def die_with_parent(parent: int) -> None:
    """Have the kernel kill us when process ``parent`` ends; it may have ended already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


def bind(cpus: list[int] | None) -> str:
    """Bind to ``cpus``; return why that did not work, or ""."""
    if cpus is None or not is_to_be_bound(cpus):
        return ""
    with hidden_imports():
        psutil = import_psutil()
        try:
            if psutil is not None:
                psutil.Process().cpu_affinity(cpus)
            else:
                os.sched_setaffinity(0, cpus)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            return f"not bound to CPUs {listed(cpus)}: {why}"
    return ""


def read_back(cpus: list[int] | None) -> str:
    """Read where the kernel has this process; return a remark if that is not ``cpus``, or "".

    A kernel cuts a mask with the cpuset without a word.
    """
    if cpus is None:
        return ""
    wanted = listed(cpus)
    # Twice, if need be: a cpuset may be about to change.
    found = allowed_cpus()
    if found != wanted:
        found = allowed_cpus()
    return "" if found in {"", wanted} else f"asked for CPUs {wanted}, got {found}"


def listed(numbers: list[int]) -> str:
    """Return CPUs or nodes as the kernel lists them: "0-3,8"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}-{high}" if low != high else f"{low}" for low, high in runs)


def take_memory_of(policy: tuple[str, list[int]] | None) -> str:
    """Have the kernel take our memory from the nodes of ``policy``; return why it does not, or ""."""
    if policy is None:
        return ""
    mode, nodes = policy
    if mode == "bind":
        failed = set_memory_policy(MPOL_BIND, nodes)
    elif len(nodes) == 1:
        failed = set_memory_policy(MPOL_PREFERRED, nodes)
    else:
        failed = set_memory_policy(MPOL_PREFERRED_MANY, nodes)
        if failed == errno.EINVAL:
            # Linux before 5.15 prefers one node at most.
            failed = set_memory_policy(MPOL_PREFERRED, nodes[:1])
    return f"no memory policy, {mode} {listed(nodes)}: {os.strerror(failed)}" if failed else ""


def is_to_be_bound(cpus: list[int] | None) -> bool:
    """Tell whether ``cpus`` are others than those that we may use already."""
    return cpus is not None and set(cpus) != os.sched_getaffinity(0)


def import_psutil() -> Any:  # noqa: ANN401 - a module or None
    """Return psutil, or None where the job's interpreter has none; what it imports stays ours."""
    with hidden_imports():
        try:
            import psutil
        except Exception:  # noqa: BLE001 - a module of the job's by a name that psutil imports
            return None
        return psutil


def take_streams(streams: list[int], status: int) -> int:
    """Make ``streams`` descriptors 0, 1 and 2; return ``status``, moved out of their way."""
    status = fcntl.fcntl(status, fcntl.F_DUPFD_CLOEXEC, 10)
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in streams]
    for target, descriptor in enumerate(high):
        os.dup2(descriptor, target)
    return status


def close_all_but_streams() -> None:
    """Close what exec would close: everything but descriptors 0, 1 and 2, the status pipe too."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own


def worker_variables(request: dict[str, Any]) -> dict[str, str]:
    """Return the job's environment, which is ours, with what this worker gets on top."""
    variables = dict(os.environ)
    variables.update(request["env"])
    if request["startup"] is not None:
        # Python takes an empty one for none; together with ours it would mean this folder.
        users_own = [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
        variables["PYTHONPATH"] = os.pathsep.join([request["startup"], *users_own])
    return variables
