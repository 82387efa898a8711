"""Facts about a host for a bug report: system, limits, shared memory."""

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
"""Files, relative to the root, that show the kind of container."""

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - only its size is read

LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "core files": resource.RLIMIT_CORE,
}


def host_facts(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield names and values of facts about this host, without its host name."""
    release = tree.facts("etc/os-release", "=")
    yield "system", release.get("PRETTY_NAME", "").strip('"') or "unknown"
    yield "kernel", f"{platform.release()}, {platform.machine()}"
    yield "C library", " ".join(platform.libc_ver()) or "unknown"
    containers = [name for path, name in CONTAINER_FILES.items() if tree.exists(path)]
    yield "container", ", ".join(containers) or "none is known"
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


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
