"""The cgroups of this process, versions 1 and 2, and their CPU limit."""

from msgspec import Struct

from clusterrun.machine.tree import Tree, number_of


class Hierarchy(Struct, frozen=True):
    """Where one controller of this process is."""

    version: int
    """1 or 2."""
    groups: tuple[str, ...]
    """Directories below the root: the process's own group first, the mount's root last."""


def hierarchy_of(tree: Tree, controller: str) -> Hierarchy | None:
    """Return the groups that ``controller`` ("memory", "cpu") has us in; None if not mounted.

    A controller is in a version 1 hierarchy or in the one of version 2, never in both.
    """
    paths = _own_paths(tree)
    for mount in _mounts(tree, controller):
        key = controller if mount.version == 1 else ""
        if key in paths and key in mount.controllers:
            return Hierarchy(mount.version, _groups(tree, mount, paths[key]))
    return None


def cpu_quota(tree: Tree) -> float | None:
    """Return the CPU limit of our groups, in CPUs; None: no limit."""
    hierarchy = hierarchy_of(tree, "cpu")
    if hierarchy is None:
        return None
    read = _quota_1 if hierarchy.version == 1 else _quota_2
    quotas = (read(tree, group) for group in hierarchy.groups)
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_1(tree: Tree, group: str) -> float | None:
    quota = tree.integer(f"{group}/cpu.cfs_quota_us")
    period = tree.integer(f"{group}/cpu.cfs_period_us")
    # -1 is no limit.
    return quota / period if quota and period and quota > 0 else None


def _quota_2(tree: Tree, group: str) -> float | None:
    # "max 100000" is no limit.
    quota, period = map(number_of, tree.text(f"{group}/cpu.max").partition(" ")[::2])
    return quota / period if quota and period else None


class _Mount(Struct, frozen=True):
    version: int
    controllers: tuple[str, ...]
    """Of version 1; ("",) for version 2, as in /proc/self/cgroup."""
    root: str
    """The group that is mounted: "/", or a container's own."""
    point: str


def _own_paths(tree: Tree) -> dict[str, str]:
    """Return the path of our group by controller; that of version 2 has the name ""."""
    paths: dict[str, str] = {}
    for line in tree.text("proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            # "0::" is version 2; version 1 without a controller is "name=systemd".
            if controller or number == "0":
                paths[controller] = path
    return paths


def _mounts(tree: Tree, controller: str) -> list[_Mount]:
    """Return the mounted hierarchies, version 1 first."""
    lines = tree.text("proc/self/mountinfo").splitlines()
    if not lines:
        # A captured tree: where systemd mounts them.
        first = _Mount(1, (controller,), "/", f"sys/fs/cgroup/{controller}")
        return [first, _Mount(2, ("",), "/", "sys/fs/cgroup")]
    mounts = [mount for mount in map(_mount, lines) if mount]
    return sorted(mounts, key=lambda mount: mount.version)


def _mount(line: str) -> _Mount | None:
    # "32 31 0:29 ROOT POINT OPTIONS [TAGS ...] - TYPE SOURCE SUPEROPTIONS", see proc(5).
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
    # In a container the path may be the host's, which is hidden: the mounted group is then ours.
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
