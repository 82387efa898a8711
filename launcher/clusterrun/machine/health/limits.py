"""Checks of what this process may use: files, processes, memory, CPU time."""

import resource
from collections.abc import Callable, Iterator

from clusterrun.domain.machine import Machine
from clusterrun.machine.health.finding import Finding, failure, warning, well
from clusterrun.machine.tree import Tree

FEW_FILES = 1024
TOO_FEW_FILES = 512
"""A worker of eight with data loaders opens hundreds; node 0 opens one for each node."""

FEW_PROCESSES = 4096

LITTLE_MEMORY = 0.1
"""The part of the memory that is available."""

Limit = Callable[[int], tuple[int, int]]
"""Returns soft and hard limit, as ``resource.getrlimit``."""


def check_limits(tree: Tree, limit: Limit = resource.getrlimit) -> Iterator[Finding]:
    """Check the limits of this process, which workers inherit."""
    soft, hard = limit(resource.RLIMIT_NOFILE)
    advice = f"type ulimit -n {_words(hard)} before the launch, or raise it in limits.conf"
    if _is_less(soft, TOO_FEW_FILES):
        yield failure("open files", _words(soft), advice)
    elif _is_less(soft, FEW_FILES):
        yield warning("open files", _words(soft), advice)
    else:
        yield well("open files", _words(soft))
    soft, hard = limit(resource.RLIMIT_NPROC)
    if _is_less(soft, FEW_PROCESSES):
        advice = f"type ulimit -u {_words(hard)}: each thread counts as a process"
        yield warning("processes", _words(soft), advice)
    else:
        yield well("processes", _words(soft))
    soft, _ = limit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and tree.names("sys/class/infiniband"):
        advice = (
            "InfiniBand registers memory: set LimitMEMLOCK=infinity, in Docker --ulimit memlock=-1"
        )
        yield failure("locked memory", f"{soft} bytes", advice)
    else:
        yield well("locked memory", _words(soft))


def check_memory(tree: Tree) -> Iterator[Finding]:
    """Check how much memory is left."""
    facts = tree.facts("proc/meminfo", ":")
    total, available = (
        int(facts.get(name, "0").split()[0]) for name in ("MemTotal", "MemAvailable")
    )
    words = f"{available >> 10} of {total >> 10} MiB available"
    if available < LITTLE_MEMORY * total:
        yield warning("memory", words, "end what else runs on this machine: ps aux --sort -rss")
    else:
        yield well("memory", words)


def check_quota(machine: Machine) -> Iterator[Finding]:
    """Check whether the control group leaves the CPUs that this process may use."""
    quota, count = machine.cpu_quota, len(machine.allowed)
    if quota is not None and quota < count:
        words = f"{quota:g} CPUs of the {count} that may be used"
        advice = "threads wait for their turn: raise the container's limit of CPUs (--cpus)"
        yield warning("CPU quota", words, advice)
    else:
        yield well("CPU quota", "none" if quota is None else f"{quota:g} CPUs")


def _is_less(value: int, than: int) -> bool:
    return value != resource.RLIM_INFINITY and value < than


def _words(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
