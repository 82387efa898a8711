"""The CPUs and the memory of a worker, set in its own process before it runs its program."""

from __future__ import annotations

import errno
import os

from .hidden_modules import hidden_imports
from .kernel import (
    MPOL_BIND,
    MPOL_PREFERRED,
    MPOL_PREFERRED_MANY,
    affinity,
    allowed_cpus,
    set_mempolicy,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_CPUS_OF_PSUTIL = 1024
"""It drops CPUs from this number on: glibc's ``cpu_set_t``, which it uses, has so many bits."""


def must_be_bound(cpus: list[int] | None) -> bool:
    """Tell whether ``cpus`` differ from those that this process may use already."""
    return cpus is not None and set(cpus) != affinity()


def bind(cpus: list[int] | None) -> str:
    """Bind to ``cpus`` and read them back; return why they are not as planned, or ""."""
    if cpus is None:
        return ""
    if not must_be_bound(cpus):
        return _check(cpus)
    with hidden_imports():
        # In this context, as psutil looks for itself among the modules.
        psutil = _psutil()
        try:
            if psutil is not None and max(cpus, default=0) < _CPUS_OF_PSUTIL:
                psutil.Process().cpu_affinity(cpus)
            else:
                os.sched_setaffinity(0, cpus)
        except Exception as error:  # psutil's are no OSError, and are raised while one is handled
            cause = error if isinstance(error, OSError) else error.__context__ or error
            why = getattr(cause, "strerror", None) or error
            if getattr(cause, "errno", None) == errno.EINVAL:
                return f"not bound to CPUs {listed(cpus)}: invalid CPU {listed(cpus)}"
            return f"no worker can be bound to CPUs: {why}"
    return _check(cpus)


def try_to_bind(cpus: Iterable[int] | None) -> None:
    """Bind to ``cpus`` if that is possible: a worker's own binding reports why it is not."""
    if cpus is not None:
        try:
            os.sched_setaffinity(0, cpus)
        except (OSError, ValueError):
            pass


def _check(cpus: list[int]) -> str:
    """Return a remark if the kernel has bound this process to other CPUs than ``cpus``, or "".

    The kernel reduces a mask to the cpuset, and reports no error.
    """
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
        failed = set_mempolicy(MPOL_BIND, nodes)
    elif len(nodes) == 1:
        failed = set_mempolicy(MPOL_PREFERRED, nodes)
    else:
        failed = set_mempolicy(MPOL_PREFERRED_MANY, nodes)
        if failed == errno.EINVAL:
            # Linux before 5.15 prefers one node at most.
            failed = set_mempolicy(MPOL_PREFERRED, nodes[:1])
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


def import_psutil() -> Any:  # a module or None
    """Return psutil, hidden from the job; None where the job's interpreter has none."""
    with hidden_imports():
        return _psutil()


def _psutil() -> Any:  # as above
    try:
        import psutil
    except Exception:  # a module of the job's by a name that psutil imports
        return None
    return psutil
