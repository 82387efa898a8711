"""The control groups of this process, version 1 and 2: CPU quota, cpuset, memory, OOM kills."""

from pathlib import Path
from typing import Self

from msgspec import Struct

from clusterrun.cpuset import CpuSet
from clusterrun.machine.tree import Tree, parse_number

_NO_LIMIT = 2**60
"""Bytes. For no limit, version 1 writes the largest multiple of the page size."""


class Hierarchy(Struct, frozen=True):
    """The control groups in which one controller has this process."""

    version: int
    """1 or 2."""
    groups: tuple[str, ...]
    """Directories, relative to the root: the process's own group first, the root of the mount last."""


def hierarchy_of(tree: Tree, controller: str) -> Hierarchy | None:
    """Return the groups of this process for ``controller`` ("memory", "cpu"); None if not mounted.

    A controller is in a version 1 hierarchy or in the version 2 hierarchy, never in both.
    """
    paths = _own_paths(tree)
    for mount in _mounts(tree, controller):
        key = controller if mount.version == 1 else ""
        if key in paths and key in mount.controllers:
            return Hierarchy(mount.version, _groups(tree, mount, paths[key]))
    return None


class _Mount(Struct, frozen=True):
    version: int
    controllers: tuple[str, ...]
    """For version 2, ("",) as in /proc/self/cgroup."""
    root: str
    """The group that is mounted: "/", or in a container its own."""
    point: str
    """The mount point."""


def _own_paths(tree: Tree) -> dict[str, str]:
    """Return the path of our group by controller; version 2 has the key ""."""
    paths: dict[str, str] = {}
    for line in tree.text("proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            # "0::PATH" is version 2. A version 1 hierarchy without a controller is "name=systemd".
            if controller or number == "0":
                paths[controller] = path
    return paths


def _mounts(tree: Tree, controller: str) -> list[_Mount]:
    """Return the mounted hierarchies, version 1 first."""
    lines = tree.text("proc/self/mountinfo").splitlines()
    if not lines:
        # A captured tree without the file. systemd mounts the hierarchies here.
        first = _Mount(1, (controller,), "/", f"sys/fs/cgroup/{controller}")
        return [first, _Mount(2, ("",), "/", "sys/fs/cgroup")]
    mounts = [mount for mount in map(_mount, lines) if mount]
    return sorted(mounts, key=lambda mount: mount.version)


def _mount(line: str) -> _Mount | None:
    # proc_pid_mountinfo(5): "32 31 0:29 ROOT POINT OPTIONS [TAGS ...] - TYPE SOURCE SUPEROPTIONS".
    before, _, after = line.partition(" - ")
    fields, kind = before.split(), after.split()
    if len(fields) < 5 or len(kind) < 3:
        return None
    match kind[0]:
        case "cgroup":
            return _Mount(1, tuple(kind[2].split(",")), fields[3], fields[4].strip("/"))
        case "cgroup2":
            return _Mount(2, ("",), fields[3], fields[4].strip("/"))
        case _:
            return None


def _groups(tree: Tree, mount: _Mount, path: str) -> tuple[str, ...]:
    below = _below(mount.root, path)
    # A container may see the host's path, which is not mounted. The mounted group is then ours.
    if not tree.exists(f"{mount.point}/{below}"):
        below = ""
    names = below.split("/") if below else []
    deepest_first = ("/".join(names[:length]) for length in range(len(names), -1, -1))
    return tuple(f"{mount.point}/{part}".rstrip("/") for part in deepest_first)


def _below(root: str, path: str) -> str:
    if ".." in path.split("/"):
        return ""
    if root == "/":
        return path.strip("/")
    return path.removeprefix(root).strip("/") if f"{path}/".startswith(f"{root}/") else ""


def cpu_quota(tree: Tree) -> float | None:
    """Return the lowest CPU limit of our groups, in CPUs; None if there is no limit."""
    hierarchy = hierarchy_of(tree, "cpu")
    if hierarchy is None:
        return None
    read = _quota_1 if hierarchy.version == 1 else _quota_2
    quotas = (read(tree, group) for group in hierarchy.groups)
    return min((quota for quota in quotas if quota is not None), default=None)


def cpuset_of(tree: Tree) -> CpuSet:
    """Return the CPUs that our control group may use; empty if unknown."""
    hierarchy = hierarchy_of(tree, "cpuset")
    if hierarchy is None:
        return CpuSet()
    name = "cpuset.cpus" if hierarchy.version == 1 else "cpuset.cpus.effective"
    # In version 2, a group without the controller has the CPUs of its parent.
    lists = (tree.cpu_list(f"{group}/{name}") for group in hierarchy.groups)
    return next(filter(None, lists), CpuSet())


def _quota_1(tree: Tree, group: str) -> float | None:
    # A quota of -1 means no limit.
    quota = parse_number(tree.text(f"{group}/cpu.cfs_quota_us"))
    period = parse_number(tree.text(f"{group}/cpu.cfs_period_us"))
    return quota / period if quota and period else None


def _quota_2(tree: Tree, group: str) -> float | None:
    # "max 100000" means no limit.
    quota, period = map(parse_number, tree.text(f"{group}/cpu.max").partition(" ")[::2])
    return quota / period if quota and period else None


class GroupMemory(Struct, frozen=True):
    """The OOM kills and the memory limit of one control group."""

    directory: str
    """``/sys/fs/cgroup/memory/job``."""
    kills: int
    limit: int | None
    """Bytes; None if the group itself has no limit."""


class OomCounters(Struct, frozen=True):
    """The kernel's counters at one time."""

    groups: tuple[GroupMemory, ...]
    """Our own group first, then its ancestors.

    Version 1 counts a kill in the victim's own group only, version 2 in all its ancestors too.
    """
    machine_kills: int
    """On the whole machine since boot; 0 if the kernel does not count them (before 4.13)."""

    @classmethod
    def read(cls, root: Path) -> Self:
        """Return the counters of this process's groups and of the machine, as far as they are readable."""
        tree = Tree(root)
        hierarchy = hierarchy_of(tree, "memory")
        groups = _memory_of_groups(tree, hierarchy) if hierarchy else ()
        return cls(groups, _kills(tree, "proc/vmstat") or 0)


def oom_kills_between(before: OomCounters, after: OomCounters) -> str:
    """Return a sentence about the processes that were OOM-killed in between; "" if there are none."""
    earlier = {group.directory: group.kills for group in before.groups}
    for position, group in enumerate(after.groups):
        kills = group.kills - earlier.get(group.directory, group.kills)
        if kills > 0:
            whose = "this cgroup" if position == 0 else "the cgroup around this one"
            return f"{_ended(kills)} of {whose} ({_limit_of(after.groups[position:])})"
    if after.groups:
        # The groups count all our kills. The machine's counter includes other jobs and containers.
        return ""
    kills = after.machine_kills - before.machine_kills
    return f"{_ended(kills)} on this machine, perhaps not of this job" if kills > 0 else ""


def _memory_of_groups(tree: Tree, hierarchy: Hierarchy) -> tuple[GroupMemory, ...]:
    counters, maximum = (
        ("memory.oom_control", "memory.limit_in_bytes")
        if hierarchy.version == 1
        else ("memory.events", "memory.max")
    )
    groups = []
    for directory in hierarchy.groups:
        kills = _kills(tree, f"{directory}/{counters}")
        if kills is not None:
            limit = tree.integer(f"{directory}/{maximum}")
            limited = limit is not None and limit < _NO_LIMIT
            groups.append(GroupMemory(f"/{directory}", kills, limit if limited else None))
    return tuple(groups)


def _kills(tree: Tree, path: str) -> int | None:
    return parse_number(tree.facts(path, " ").get("oom_kill", ""))


def _ended(kills: int) -> str:
    return f"the kernel's OOM killer ended {kills} process{'' if kills == 1 else 'es'}"


def _limit_of(groups: tuple[GroupMemory, ...]) -> str:
    """Return the lowest limit of the group and its ancestors, with the group that sets it."""
    limits = [(group.limit, group.directory) for group in groups if group.limit is not None]
    if not limits:
        return f"no limit, {groups[0].directory}"
    limit, directory = min(limits)
    return f"limit {_size(limit)}, {directory}"


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"
