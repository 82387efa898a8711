"""Linux functions that Python lacks: calls of the C library, fields of /proc, signals to processes."""

from __future__ import annotations

import _signal as signal
import ctypes
import errno
import os
import resource
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61

# linux/mempolicy.h
MPOL_PREFERRED = 1
MPOL_BIND = 2
MPOL_PREFERRED_MANY = 5  # Linux 5.15

# asm/unistd.h: C libraries have no function for it.
_SET_MEMPOLICY = {
    "x86_64": 238,
    "aarch64": 237,
    "riscv64": 237,
    "loongarch64": 237,
    "ppc64le": 261,
    "s390x": 270,
}
_BITS_OF_A_LONG = 64

_LIBRARY = ctypes.CDLL(None, use_errno=True)
_LIBRARY.syscall.restype = ctypes.c_long

SECONDS_TO_CLEAN_UP = 5.0
"""A process that SIGKILL has not ended after this long hangs in the kernel (state D)."""

SECONDS_BETWEEN_CHECKS = 0.01

SECONDS_TO_KILL_SOME = 1.0
"""The server does nothing else meanwhile; usually it takes milliseconds."""


# This process.


def prctl(option: int, *arguments: int) -> int:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return int(_LIBRARY.prctl(option, *map(ctypes.c_ulong, padded)))


def refused_protections() -> list[str]:
    """Return what containment needs and is not there, in words: calls that a sandbox refuses, and /proc.

    To be called before there is a child: then the trial changes nothing.
    """
    tried = {
        "PR_SET_CHILD_SUBREAPER": prctl(PR_SET_CHILD_SUBREAPER, 1),
        "PR_SET_PDEATHSIG": prctl(PR_SET_PDEATHSIG, 0),
    }
    why = os.strerror(ctypes.get_errno())
    refused = [
        f"the kernel refuses {name} ({why})" for name, result in tried.items() if result != 0
    ]
    if not proc_is_own():
        refused.append("/proc shows another PID namespace (unshare has --mount-proc)")
    return refused


def set_mempolicy(policy: int, nodes: list[int]) -> int:
    """Set the memory policy of this thread and of those it starts; return 0 or an errno."""
    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None or sys.maxsize < 1 << 32:
        return errno.ENOSYS
    mask = sum(1 << node for node in set(nodes))
    words = mask.bit_length() // _BITS_OF_A_LONG + 1
    longs = (mask >> _BITS_OF_A_LONG * n & ((1 << _BITS_OF_A_LONG) - 1) for n in range(words))
    array = (ctypes.c_ulong * words)(*longs)
    # The kernel uses one bit less than this number.
    bits = ctypes.c_ulong(_BITS_OF_A_LONG * words + 1)
    result = _LIBRARY.syscall(ctypes.c_long(number), ctypes.c_long(policy), array, bits)
    return 0 if result == 0 else ctypes.get_errno()


def allow_many_open_files() -> None:
    """Raise the soft limit of open files to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # above fs.nr_open, which has been lowered
        pass


def flush_all() -> None:
    _LIBRARY.fflush(None)


def allowed_cpus() -> str:
    """Return the CPUs that this process may use, such as "0-3,8"; "" if the kernel doesn't show them."""
    return status_field("self", "Cpus_allowed_list")


def affinity() -> set[int]:
    """Return the CPUs that this process may use, even where a sandbox refuses sched_getaffinity."""
    try:
        return os.sched_getaffinity(0)
    except OSError:
        ranges = (each.split("-") for each in allowed_cpus().split(",") if each)
        return {cpu for each in ranges for cpu in range(int(each[0]), int(each[-1]) + 1)}


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when ``parent`` ends; exit if it has ended already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


def allow_tracing_by(tracer: int) -> None:
    """Let ``tracer`` and its descendants read this process's memory, as py-spy does.

    Yama's ptrace_scope 1 allows that only to ancestors and one other process. The permission survives
    exec, but child processes don't inherit it. With other scopes this function does nothing.
    """
    if text_of("/proc/sys/kernel/yama/ptrace_scope").strip() == "1":
        prctl(PR_SET_PTRACER, tracer)


def close_descriptors_above(highest: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > highest:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself


def boot_clock() -> float:
    """Return seconds of CLOCK_BOOTTIME, which all processes share and which counts suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# Processes, as /proc shows them.


def proc_is_own() -> bool:
    """Tell whether /proc is of this PID namespace; otherwise other processes have the numbers there."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def status_field(pid: int | str, key: str) -> str:
    """Return the value of a line of /proc/PID/status (proc(5)); "" if there is none."""
    if pid != "self" and not proc_is_own():
        return ""
    for line in text_of(f"/proc/{pid}/status").splitlines():
        if line.startswith(key + ":"):
            return line[len(key) + 1 :].strip()
    return ""


def handles_or_ignores(pid: int, number: int) -> bool:
    """Tell whether signal ``number`` will not kill ``pid`` (SigCgt, SigIgn: proc(5)).

    SIGQUIT must be handled: a process that ignores it prints no stacks.
    """
    keys = ("SigCgt",) if number == signal.SIGQUIT else ("SigCgt", "SigIgn")
    masks = [int(status_field(pid, key) or "0", 16) for key in keys]
    return any(mask >> (number - 1) & 1 for mask in masks)


def children_of(pid: int) -> list[int]:
    """Return the running children of ``pid``, and zombies that it can't reap: see ``tracer_of``."""
    return [
        child
        for child in children_and_zombies_of(pid)
        if state_and_parent(child)[0] not in "ZX" or tracer_of(child)
    ]


def tracer_of(pid: int | str) -> int:
    """Return the pid of a process's debugger; 0: it has none.

    A parent can't reap a zombie until its debugger detaches.
    """
    return int(status_field(pid, "TracerPid") or 0)


def children_and_zombies_of(pid: int) -> list[int]:
    """Return the processes whose parent is ``pid``, including those not reaped yet."""
    try:
        # Not "ascii": Python would import a module for it, and a script would find that imported.
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as children:
            candidates = [int(number) for number in children.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        candidates = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [child for child in candidates if state_and_parent(child)[1] == pid]


def group_of(leader: int) -> list[int]:
    """Return the processes of the group that ``leader`` leads, ``leader`` first."""
    others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != leader]
    return [leader, *(pid for pid in others if stat_fields(pid)[2] == str(leader))]


def state_and_parent(pid: int) -> tuple[str, int]:
    """Return a process's state letter and parent; ("X", 0) if there is none."""
    state, parent, *_ = stat_fields(pid)
    return state, int(parent)


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from state, parent, group on; X, 0, 0 if there is no process."""
    if not proc_is_own():
        return ["X", "0", "0"]
    # The name in parentheses may contain spaces and parentheses.
    return text_of(f"/proc/{pid}/stat").rpartition(")")[2].split() or ["X", "0", "0"]


def describe(pid: int) -> str:
    """Return "pid 12 (python, state D in nfs_wait)" for a process that SIGKILL does not end."""
    state, _parent = state_and_parent(pid)
    if state == "Z" and (tracer := tracer_of(pid)):
        name = text_of(f"/proc/{pid}/comm").strip() or "?"
        return f"pid {pid} ({name}, state Z, held by its tracer pid {tracer})"
    name, wait = (text_of(f"/proc/{pid}/{file}").strip() or "?" for file in ("comm", "wchan"))
    return f"pid {pid} ({name}, state {state} in {wait})"


def activity_counter(pid: int) -> float:
    """Return a number that grows while a process computes or reads: CPU ticks and bytes."""
    fields = stat_fields(pid)
    if len(fields) <= 12:
        return 0.0
    # Only the process's user may read this file.
    _, _, read = text_of(f"/proc/{pid}/io").partition("\n")[0].partition(" ")
    return float(int(fields[11]) + int(fields[12]) + int(read or 0))


def send_signal(pid: int, number: int, *, group: bool = False) -> None:
    """Signal a child that has not been reaped, or its group, or the child if it has no group yet."""
    if group:
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            return
        else:
            return
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill_children() -> None:
    """SIGKILL every child, including adopted orphans.

    Only children are signalled: until they are reaped, their pids can't be reused. When they die, this
    process adopts their children, and the next call kills those.
    """
    for pid in children_of(os.getpid()):
        send_signal(pid, signal.SIGKILL)


def list_children() -> list[tuple[int, str, int | None]]:
    """Return pid, name and rank of each child: see ``rank_of``."""
    pids = children_of(os.getpid())
    return [(pid, text_of(f"/proc/{pid}/comm").strip() or "?", rank_of(pid)) for pid in pids]


def rank_of(pid: int) -> int | None:
    """Return RANK of the environment in which a process executed its program, or None.

    A forked process that has not executed a program shows this process's environment.
    """
    environment = text_of(f"/proc/{pid}/environ")
    if environment == text_of("/proc/self/environ"):
        return None
    variables = dict(line.partition("=")[::2] for line in environment.split("\0"))
    rank = variables.get("RANK", "")
    return int(rank) if rank.isdecimal() and len(rank) < 10 else None


def kill_children_by_environment(variables: Mapping[str, str]) -> None:
    """Kill all children and orphans that were executed with these variables, for a second at most."""
    lines = {f"{name}={value}" for name, value in variables.items()}
    deadline = time.monotonic() + SECONDS_TO_KILL_SOME
    while time.monotonic() < deadline:
        children = children_of(os.getpid())
        left = [
            pid for pid in children if lines <= set(text_of(f"/proc/{pid}/environ").split("\0"))
        ]
        if not left:
            return
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        time.sleep(SECONDS_BETWEEN_CHECKS)


def end_children() -> None:
    """Kill and reap all children and orphans, for at most ``SECONDS_TO_CLEAN_UP``."""
    deadline = time.monotonic() + SECONDS_TO_CLEAN_UP
    while time.monotonic() < deadline:
        # First reap all that have ended: this shortens the list of children.
        try:
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
                pass
        except ChildProcessError:
            return
        kill_children()
        time.sleep(SECONDS_BETWEEN_CHECKS)


def text_of(path: str) -> str:
    """Return the text of a file in /proc or /sys; "" if it can't be read."""
    # Process names may have any bytes. Without an encoding, Python before 3.10 imports a module.
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def describe_fork_error(error: OSError) -> str:
    """Return why a process could not be forked, in one line."""
    if error.errno == errno.EAGAIN:
        limits = [limit for limit in (_user_limit(), _cgroup_limit()) if limit]
        return "too many processes: " + (" or ".join(limits) or "the kernel allows no more")
    if error.errno == errno.ENOMEM:
        mode = text_of("/proc/sys/vm/overcommit_memory").strip()
        strict = " (vm.overcommit_memory is 2: each process counts with all its memory)"
        return "not enough memory for another process" + (strict if mode == "2" else "")
    return error.strerror or str(error)


def execute(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Execute a program in place of this process; PATH of ``environment`` is searched for its name.

    execvp(3) would report the first folder of PATH that can't be read, not what is wrong with the program.

    Raises:
        OSError: it can't be executed; its message says why, in one line.

    """
    program = command[0]
    path = program if "/" in program else _found_on_path(program, environment)
    try:
        os.execve(path, tuple(command), environment)
    except OSError as error:
        raise OSError(error.errno, _describe_exec_error(path, error)) from None


def _found_on_path(program: str, environment: Mapping[str, str]) -> str:
    """Return the first file of this name that can be executed, else the first one."""
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    files = list(filter(os.path.isfile, (os.path.join(folder, program) for folder in folders)))
    executable = [file for file in files if os.access(file, os.X_OK)]
    for file in executable or files:
        return file
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _describe_exec_error(path: str, error: OSError) -> str:
    """Return why a file could not be executed.

    execve(2) says "no such file" even if only the interpreter of a script is missing.
    """
    why = error.strerror or str(error)
    try:
        with open(path, "rb") as file:
            first = file.readline(256)
    except OSError:
        return why
    if error.errno == errno.ENOEXEC:
        is_binary = first.startswith(b"\x7fELF")
        of_file = (
            "is built for a different architecture"
            if is_binary
            else "has no first line such as #!/bin/bash"
        )
        return f"{why}: the file {of_file}"
    if error.errno == errno.ENOENT and first.startswith(b"#!"):
        if first.endswith((b"\r\n", b"\r")):
            return (
                f"{why}: its first line ends in a carriage return, as on Windows (dos2unix {path})"
            )
        interpreter = os.fsdecode(first[2:].split()[0]) if first[2:].split() else ""
        return f"{why}: {interpreter}, which its first line names"
    return why


def _user_limit() -> str | None:
    """Return RLIMIT_NPROC in words."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return None if soft == resource.RLIM_INFINITY else f"the user's limit is {soft} (ulimit -u)"


def _cgroup_limit() -> str | None:
    """Return pids.max of the nearest cgroup that has one (cgroups(7)), in words, with its file."""
    for line in text_of("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        base = "/sys/fs/cgroup" if not controllers else "/sys/fs/cgroup/pids"
        if controllers and "pids" not in controllers.split(","):
            continue
        while True:
            file = f"{base}{path.rstrip('/')}/pids.max"
            limit = text_of(file).strip()
            if limit not in ("", "max"):
                return f"this cgroup's limit is {limit} ({file})"
            if path in ("", "/"):
                break
            path = path.rpartition("/")[0]
    return None
