"""Control groups of both versions, and their limit on CPU time."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from clusterrun.machine.cgroup import Hierarchy, cpu_quota, hierarchy_of
from clusterrun.machine.tree import Tree

from tests.machine_trees import write_files

CGROUP = "proc/self/cgroup"
MOUNTS = "proc/self/mountinfo"
VERSION_1 = "35 31 0:32 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
VERSION_2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def tree(root: Path, files: Mapping[str, str]) -> Tree:
    write_files(root, files)
    return Tree(root)


def test_version_2_lists_groups_from_own_to_root(tmp_path: Path) -> None:
    """Every group around ours may have a limit."""
    here = tree(
        tmp_path,
        {
            CGROUP: "0::/user.slice/job",
            MOUNTS: VERSION_2.format(root="/"),
            "sys/fs/cgroup/user.slice/job/cpu.max": "max 100000",
        },
    )

    groups = ("sys/fs/cgroup/user.slice/job", "sys/fs/cgroup/user.slice", "sys/fs/cgroup")
    assert hierarchy_of(here, "cpu") == Hierarchy(2, groups)


def test_version_1_has_one_hierarchy_per_controller(tmp_path: Path) -> None:
    """Controllers may share one; a controller of version 1 is not in version 2."""
    here = tree(
        tmp_path,
        {
            CGROUP: "5:cpu,cpuacct:/job\n1:name=systemd:/\n0::/other",
            MOUNTS: VERSION_2.format(root="/") + "\n" + VERSION_1.format(root="/"),
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "-1",
        },
    )

    groups = ("sys/fs/cgroup/cpu,cpuacct/job", "sys/fs/cgroup/cpu,cpuacct")
    assert hierarchy_of(here, "cpu") == Hierarchy(1, groups)


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/docker/abc/sub", "/docker/abc", ["/sub", ""]),
        ("/docker/abc", "/docker/abc", [""]),
        ("/docker/abcd", "/docker/abc", [""]),
        ("/not/mounted", "/", [""]),
        ("/../other", "/", [""]),
        ("/", "/", [""]),
    ],
)
def test_container_groups_end_at_the_mount(
    tmp_path: Path, path: str, root: str, expected: list[str]
) -> None:
    """The path may be that of the host, which the container does not see."""
    here = tree(
        tmp_path,
        {
            CGROUP: f"0::{path}",
            MOUNTS: VERSION_2.format(root=root),
            "sys/fs/cgroup/sub/cpu.max": "max",
        },
    )

    found = hierarchy_of(here, "cpu")

    assert found == Hierarchy(2, tuple(f"sys/fs/cgroup{group}" for group in expected))


def test_tree_without_mountinfo_uses_usual_mount_points(tmp_path: Path) -> None:
    """This holds for both versions."""
    first = tree(tmp_path / "1", {CGROUP: "4:cpu:/", "sys/fs/cgroup/cpu/tasks": ""})
    second = tree(tmp_path / "2", {CGROUP: "0::/", "sys/fs/cgroup/cgroup.procs": ""})

    assert hierarchy_of(first, "cpu") == Hierarchy(1, ("sys/fs/cgroup/cpu",))
    assert hierarchy_of(second, "cpu") == Hierarchy(2, ("sys/fs/cgroup",))


def test_no_cgroups_means_no_quota(tmp_path: Path) -> None:
    """Missing files mean that there is no limit."""
    assert hierarchy_of(Tree(tmp_path), "cpu") is None
    assert cpu_quota(Tree(tmp_path)) is None
