"""Whether the kernel's OOM killer killed a process: its counters, read before and after."""

from pathlib import Path
from typing import Self

from msgspec import Struct

from clusterrun.machine.cgroup import Hierarchy, hierarchy_of
from clusterrun.machine.tree import Tree, number_of

_NO_LIMIT = 2**60
"""Version 1 writes "no limit" as the largest multiple of a page."""


class GroupMemory(Struct, frozen=True):
    """One control group: how many processes the OOM killer ended in it, and what it may use."""

    directory: str
    """``/sys/fs/cgroup/memory/job``."""
    kills: int
    limit: int | None
    """Bytes; None: no limit of its own."""
    limit_reached: int | None = None
    """How often it, or a group in it, had no memory left below its limit; None: not counted."""


class OomCounters(Struct, frozen=True):
    """The kernel's counters at one time."""

    groups: tuple[GroupMemory, ...]
    """Our own group first, then those around it.

    Version 1 counts a kill in the victim's own group only, version 2 in those around it too.
    """
    machine_kills: int
    """On the whole machine, since it started; 0 where the kernel doesn't count (before 4.13)."""

    @classmethod
    def read(cls, root: Path) -> Self:
        """Return the counters of this process's groups and of the machine, as far as they can be read."""
        tree = Tree(root)
        hierarchy = hierarchy_of(tree, "memory")
        groups = _groups(tree, hierarchy) if hierarchy else ()
        return cls(groups, _kills(tree, "proc/vmstat") or 0)


def oom_kills_between(before: OomCounters, after: OomCounters) -> str:
    """Return a sentence on the processes that the OOM killer killed in between; "" if there are none."""
    earlier = {group.directory: group.kills for group in before.groups}
    for position, group in enumerate(after.groups):
        kills = group.kills - earlier.get(group.directory, group.kills)
        if kills > 0:
            whose = "this cgroup" if position == 0 else "the cgroup around this one"
            return f"{_ended(kills)} of {whose} ({_limit_of(after.groups[position:])})"
    kills = after.machine_kills - before.machine_kills
    return f"{_ended(kills)} on this machine, perhaps not of this job" if kills > 0 else ""


def machine_ran_out(before: OomCounters, after: OomCounters) -> bool:
    """Return whether the OOM killer struck in between because the machine had no memory left.

    It is called by a group that has reached its limit, or by the machine (Documentation/
    admin-guide/cgroup-v2.rst, ``memory.events``: ``oom`` counts the first, ``oom_kill`` both).
    Version 1 does not count what called it: a group with a limit is taken to be the reason.
    """
    earlier = {group.directory: group for group in before.groups}
    for group in after.groups:
        known = earlier.get(group.directory, group)
        if group.limit_reached is None and group.limit is not None:
            return False
        if group.limit_reached != known.limit_reached:
            return False
    return after.machine_kills > before.machine_kills


def _groups(tree: Tree, hierarchy: Hierarchy) -> tuple[GroupMemory, ...]:
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
            reached = number_of(tree.facts(f"{directory}/{counters}", " ").get("oom", ""))
            own = limit if limited else None
            groups.append(GroupMemory(f"/{directory}", kills, own, reached))
    return tuple(groups)


def _kills(tree: Tree, path: str) -> int | None:
    return number_of(tree.facts(path, " ").get("oom_kill", ""))


def _ended(kills: int) -> str:
    return f"the kernel's OOM killer ended {kills} process{'' if kills == 1 else 'es'}"


def _limit_of(groups: tuple[GroupMemory, ...]) -> str:
    """Return the lowest limit of the group and those around it, with the group that sets it."""
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
