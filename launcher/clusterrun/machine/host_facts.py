"""What is worth knowing of a host in a bug report: its system, its limits, its shared memory."""

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import suppress

from clusterrun.machine.tree import Tree

CONTAINER_FILES = {
    ".dockerenv": "Docker",
    "run/.containerenv": "Podman",
    "singularity": "Apptainer",
}
"""Files at the root by which containers are known, below the root."""

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - only its size is read

LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "core files": resource.RLIMIT_CORE,
}


def host_facts(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield the facts of this host with their names; the name of the host is not among them."""
    release = tree.facts("etc/os-release", "=")
    yield "system", release.get("PRETTY_NAME", "").strip('"') or "unknown"
    yield "kernel", f"{platform.release()}, {platform.machine()}"
    yield "C library", " ".join(platform.libc_ver()) or "unknown"
    yield "container", _container(tree) or "none is known"
    groups = "v2" if tree.exists("sys/fs/cgroup/cgroup.controllers") else "v1 or none"
    yield "control groups", groups
    memory = tree.facts("proc/meminfo", ":").get("MemTotal", "")
    yield "memory", memory or "unknown"
    with suppress(OSError):
        found = os.statvfs(SHARED_MEMORY)
        size, free = (blocks * found.f_frsize for blocks in (found.f_blocks, found.f_bavail))
        yield SHARED_MEMORY, f"{size >> 20} MiB, {free >> 20} MiB free"
    for name, number in LIMITS.items():
        soft, hard = resource.getrlimit(number)
        yield f"limit of {name}", f"{_limit(soft)} (hard: {_limit(hard)})"


def _container(tree: Tree) -> str:
    known = [name for path, name in CONTAINER_FILES.items() if tree.exists(path)]
    return ", ".join(known)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
