"""The CPUs and the memory of a worker, set in its own process before it runs its program."""

from __future__ import annotations

import errno
import os

from .scripts.hidden_modules import hidden_imports
from .system import libc
from .system.this_process import allowed_cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def must_be_bound(cpus: list[int] | None) -> bool:
    """Tell whether ``cpus`` differ from those that this process may use already."""
    return cpus is not None and set(cpus) != os.sched_getaffinity(0)


def bind(cpus: list[int] | None) -> str:
    """Bind to ``cpus``; return why that failed, or ""."""
    if cpus is None or not must_be_bound(cpus):
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


def check_binding(cpus: list[int] | None) -> str:
    """Return a remark if the kernel has bound this process to other CPUs than ``cpus``, or "".

    The kernel reduces a mask to the cpuset, and reports no error.
    """
    if cpus is None:
        return ""
    wanted = listed(cpus)
    found = allowed_cpus()
    if found != wanted:
        # A cpuset may have been changing at the first look.
        found = allowed_cpus()
    return "" if found in {"", wanted} else f"asked for CPUs {wanted}, got {found}"


def set_memory_policy(policy: tuple[str, list[int]] | None) -> str:
    """Take memory from the nodes of ``policy``; return why the kernel does not, or ""."""
    if policy is None:
        return ""
    mode, nodes = policy
    if mode == "bind":
        failed = libc.set_memory_policy(libc.MPOL_BIND, nodes)
    elif len(nodes) == 1:
        failed = libc.set_memory_policy(libc.MPOL_PREFERRED, nodes)
    else:
        failed = libc.set_memory_policy(libc.MPOL_PREFERRED_MANY, nodes)
        if failed == errno.EINVAL:
            # Linux before 5.15 prefers one node at most.
            failed = libc.set_memory_policy(libc.MPOL_PREFERRED, nodes[:1])
    return f"no memory policy, {mode} {listed(nodes)}: {os.strerror(failed)}" if failed else ""


def listed(numbers: list[int]) -> str:
    """Return CPUs or NUMA nodes as the kernel lists them: "0-3,8"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}-{high}" if low != high else f"{low}" for low, high in runs)


def import_psutil() -> Any:  # noqa: ANN401 - a module or None
    """Return psutil, hidden from the job; None where the job's interpreter has none."""
    with hidden_imports():
        try:
            import psutil
        except Exception:  # noqa: BLE001 - a module of the job's by a name that psutil imports
            return None
        return psutil
