"""CPU affinity and memory policy of a worker, set in its own process before it runs its program."""

from __future__ import annotations

import errno
import os

from .hidden_modules import hidden_imports
from .kernel import (
    MPOL_BIND,
    MPOL_PREFERRED,
    MPOL_PREFERRED_MANY,
    affinity,
    set_mempolicy,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_MAX_PSUTIL_CPUS = 1024
"""psutil drops CPUs from this number on: glibc's ``cpu_set_t`` has that many bits."""


def must_be_bound(cpus: list[int] | None) -> bool:
    """Tell whether ``cpus`` differ from the current affinity of this process."""
    return cpus is not None and set(cpus) != affinity()


def bind(cpus: list[int] | None) -> str | None:
    """Bind to ``cpus``; return a warning if the kernel does not bind this process to exactly these."""
    if cpus is None or not must_be_bound(cpus):
        return None
    with hidden_imports():
        # psutil's functions look psutil up in sys.modules.
        psutil = _psutil()
        try:
            if psutil is not None and max(cpus, default=0) < _MAX_PSUTIL_CPUS:
                psutil.Process().cpu_affinity(cpus)
            else:
                os.sched_setaffinity(0, cpus)
        except Exception as error:  # psutil raises its own exceptions while it handles an OSError
            cause = error if isinstance(error, OSError) else error.__context__ or error
            why = getattr(cause, "strerror", None) or error
            if getattr(cause, "errno", None) == errno.EINVAL:
                return f"not bound to CPUs {cpulist(cpus)}: invalid CPU {cpulist(cpus)}"
            return f"no worker can be bound to CPUs: {why}"
    return _check(cpus)


def try_to_bind(cpus: Iterable[int] | None) -> None:
    """Bind to ``cpus``; ignore errors, which a worker's own binding reports."""
    if cpus is not None:
        try:
            os.sched_setaffinity(0, cpus)
        except (OSError, ValueError):
            pass


def _check(cpus: list[int]) -> str | None:
    """Return a warning if this process is bound to CPUs different from ``cpus``.

    The kernel silently reduces a mask to the cpuset.
    """
    # Not Cpus_allowed_list, which may include offline CPUs.
    actual = affinity()
    if actual != set(cpus):
        # A cpuset may have been changing when it was read.
        actual = affinity()
    if not actual or actual == set(cpus):
        return None
    return f"asked for CPUs {cpulist(cpus)}, got {cpulist(actual)}"


def set_memory_policy(policy: tuple[str, list[int]] | None) -> str | None:
    """Set ``policy``, a mode and NUMA nodes; return a warning if the kernel refuses it."""
    if policy is None:
        return None
    mode, nodes = policy
    if mode == "bind":
        failed = set_mempolicy(MPOL_BIND, nodes)
    elif len(nodes) == 1:
        failed = set_mempolicy(MPOL_PREFERRED, nodes)
    else:
        failed = set_mempolicy(MPOL_PREFERRED_MANY, nodes)
        if failed == errno.EINVAL:
            # Before Linux 5.15, only one node can be preferred.
            failed = set_mempolicy(MPOL_PREFERRED, nodes[:1])
    return f"no memory policy, {mode} {cpulist(nodes)}: {os.strerror(failed)}" if failed else None


def cpulist(numbers: Iterable[int]) -> str:
    """Return CPUs or NUMA nodes in the kernel's list format, such as "0-3,8"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{low}-{high}" if low != high else f"{low}" for low, high in runs)


def import_psutil() -> None:
    """Import psutil, if the job's interpreter has it, so that workers find it loaded; hide it from them."""
    with hidden_imports():
        _psutil()


def _psutil() -> Any:  # the module, or None
    try:
        import psutil
    except (
        Exception
    ):  # not installed, or a module of the job has the name of one that psutil imports
        return None
    return psutil
