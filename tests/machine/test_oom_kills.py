"""Counters of the OOM killer; tests/contract/ends/test_memory.py has the kernel write them."""

from pathlib import Path

import pytest
from clusterrun.machine.cgroup import GroupMemory, OomCounters, oom_kills_between

from tests.machine_trees import write_files

MOUNT_1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
MOUNT_2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
MIB = 2**20


def version_1(root: Path, kills: int, limit: int) -> OomCounters:
    """Return what is read in group /job of version 1, below a parent that limits it."""
    write_files(
        root,
        {
            "proc/self/cgroup": "4:memory:/batch/job",
            "proc/self/mountinfo": MOUNT_1,
            "proc/vmstat": f"nr_free_pages 1\noom_kill {kills}",
            "sys/fs/cgroup/memory/batch/job/memory.oom_control": (
                f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}"
            ),
            "sys/fs/cgroup/memory/batch/job/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/batch/memory.oom_control": "oom_kill 0",
            "sys/fs/cgroup/memory/batch/memory.limit_in_bytes": str(limit),
        },
    )
    return OomCounters.read(root)


def version_2(root: Path, kills: int) -> OomCounters:
    """Return what is read in group /job of version 2."""
    write_files(
        root,
        {
            "proc/self/cgroup": "0::/job",
            "proc/self/mountinfo": MOUNT_2,
            "sys/fs/cgroup/job/memory.events": f"low 0\noom {kills}\noom_kill {kills}",
            "sys/fs/cgroup/job/memory.max": str(3 * 2**30),
        },
    )
    return OomCounters.read(root)


def counters(*groups: GroupMemory, machine: int = 0) -> OomCounters:
    return OomCounters(groups, machine)


def test_oom_message_names_the_limited_group(tmp_path: Path) -> None:
    """The victim's group counts the kill; a group around it may have the limit."""
    before = version_1(tmp_path, 0, 256 * MIB)
    after = version_1(tmp_path, 2, 256 * MIB)

    assert oom_kills_between(before, after) == (
        "the kernel's OOM killer ended 2 processes of this cgroup"
        " (limit 256 MiB, /sys/fs/cgroup/memory/batch)"
    )


def test_version_2_counts_in_memory_events(tmp_path: Path) -> None:
    """The limit is in memory.max."""
    before = version_2(tmp_path, 4)
    after = version_2(tmp_path, 5)

    assert oom_kills_between(before, after) == (
        "the kernel's OOM killer ended 1 process of this cgroup (limit 3 GiB, /sys/fs/cgroup/job)"
    )


def around(kills: int) -> GroupMemory:
    return GroupMemory("/sys/fs/cgroup/pod", kills, MIB)


def unlimited(kills: int) -> GroupMemory:
    return GroupMemory("/sys/fs/cgroup/pod/box", kills, None)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        # Earlier kills are not counted.
        (counters(unlimited(4)), counters(unlimited(4)), ""),
        # Another container's: a rank that ended meanwhile was killed by hand.
        (counters(unlimited(0), machine=7), counters(unlimited(0), machine=8), ""),
        # No cgroup can be read.
        (
            counters(machine=7),
            counters(machine=8),
            "1 process on this machine, perhaps not of this job",
        ),
        # A group of version 2 counts the kills of all groups in it.
        (
            counters(unlimited(0), around(1)),
            counters(unlimited(0), around(2)),
            "1 process of the cgroup around this one (limit 1 MiB, /sys/fs/cgroup/pod)",
        ),
        (
            counters(unlimited(0)),
            counters(unlimited(1)),
            "1 process of this cgroup (no limit, /sys/fs/cgroup/pod/box)",
        ),
    ],
)
def test_oom_kills_between(before: OomCounters, after: OomCounters, sentence: str) -> None:
    assert oom_kills_between(before, after) == (
        sentence and f"the kernel's OOM killer ended {sentence}"
    )


def test_no_oom_counters(tmp_path: Path) -> None:
    """Missing files are not an error."""
    assert OomCounters.read(tmp_path) == OomCounters((), 0)
