"""What bench_slow.py does to ranks from outside: cgroups that limit them, and processes that compete.

Everything is undone at the end. Cgroups are made below the root of their hierarchy, as root only.
"""

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

import psutil
from clusterrun.machine.cgroup import hierarchy_of
from clusterrun.machine.tree import Tree
from slow_plan import READ_BYTES, Cause, Plan

PERIOD_MICROSECONDS, MIN_QUOTA_MICROSECONDS = 100_000, 2_000

QUOTA_PART = 0.4
"""A CPU quota leaves a rank so much of what it uses without one."""

READ_TIMES = 1.5
"""On the throttled disk the reads of one step take so many times the delay."""

BUSY_PROCESSES = 3
"""They compete for one CPU."""

SECONDS_TO_REMOVE = 5.0
"""A cgroup is busy until its last process has moved."""


class ThrottledGroup(NamedTuple):
    """A cgroup of this script's, of one controller."""

    path: Path
    home: Path
    """Where its processes came from."""
    version: int

    @classmethod
    @contextmanager
    def made(cls, controller: str) -> Iterator[Self]:
        """Make it; at the end move its processes back and remove it.

        Args:
            controller: its name in version 1: "cpu", "blkio".

        Raises:
            OSError: it can't be made here.

        """
        hierarchy = hierarchy_of(Tree(Path("/")), controller)
        if hierarchy is None:
            raise OSError(f"no cgroup hierarchy has the controller {controller}")
        top, home = Path("/", hierarchy.groups[-1]), Path("/", hierarchy.groups[0])
        group = cls(top / f"bench-slow-{os.getpid()}", home, hierarchy.version)
        with ExitStack() as stack:
            if hierarchy.version == 2:
                name = {"blkio": "io"}.get(controller, controller)
                stack.enter_context(_enabled(top / "cgroup.subtree_control", name))
            group.path.mkdir()
            stack.callback(group.remove)
            yield group

    def limit(self, limits: Mapping[str, str]) -> None:
        """Write to the group's files."""
        for name, text in limits.items():
            (self.path / name).write_text(text)

    def limit_cpu(self, cpus: float) -> None:
        """Set the CPU quota."""
        period = PERIOD_MICROSECONDS
        quota = max(MIN_QUOTA_MICROSECONDS, round(cpus * period))
        if self.version == 2:
            self.limit({"cpu.max": f"{quota} {period}"})
        else:
            self.limit({"cpu.cfs_period_us": f"{period}", "cpu.cfs_quota_us": f"{quota}"})

    def limit_reads(self, disk: str, bytes_per_second: int) -> None:
        """Throttle what its processes read from a disk, all together."""
        if self.version == 2:
            self.limit({"io.max": f"{disk} rbps={bytes_per_second}"})
        else:
            self.limit({"blkio.throttle.read_bps_device": f"{disk} {bytes_per_second}"})

    def take(self, pids: Collection[int]) -> None:
        """Move processes here, with all their threads."""
        for pid in pids:
            _write(self.path / "cgroup.procs", pid)

    def remove(self) -> None:
        """Move its processes back, those that they have started included, and remove it."""
        until = time.monotonic() + SECONDS_TO_REMOVE
        while True:
            for pid in (self.path / "cgroup.procs").read_text().split():
                # It may end meanwhile.
                with suppress(ProcessLookupError):
                    _write(self.home / "cgroup.procs", int(pid))
            try:
                self.path.rmdir()
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return


@contextmanager
def _enabled(file: Path, controller: str) -> Iterator[None]:
    """Enable a controller of version 2 for the groups below, if it is not."""
    if controller in file.read_text().split():
        yield
        return
    file.write_text(f"+{controller}")
    try:
        yield
    finally:
        file.write_text(f"-{controller}")


def _write(file: Path, pid: int) -> None:
    file.write_text(f"{pid}")


def disk_of(folder: Path) -> str:
    """Return the disk that a folder is on, as "MAJOR:MINOR".

    Raises:
        OSError: it is on none, as in a tmpfs.

    """
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    if not os.major(device):
        raise OSError(f"{folder} is not on a disk: set TMPDIR")
    block = Path("/sys/dev/block", number).resolve(strict=True)
    # What is throttled is the whole disk.
    return (
        (block.parent / "dev" if (block / "partition").exists() else block / "dev")
        .read_text()
        .strip()
    )


def why_impossible(cause: Cause, folder: Path) -> str | None:
    """Return why a cause can't be planted on this machine; None: it can."""
    try:
        match cause:
            case Cause.QUOTA:
                with ThrottledGroup.made("cpu") as group:
                    group.limit_cpu(1)
            case Cause.STORAGE:
                with ThrottledGroup.made("blkio") as group:
                    group.limit_reads(disk_of(folder), READ_BYTES)
            case Cause.COMPETITOR if len(os.sched_getaffinity(0)) < 2:
                return "there is one CPU only"
            case _:
                pass
    except OSError as error:
        return str(error)
    return None


@contextmanager
def planted(plan: Plan, pids: Mapping[int, int], cpus: float, folder: Path) -> Iterator[None]:
    """Make ranks slow.

    Args:
        plan: which and how; the ranks do the rest themselves.
        pids: all ranks' process ids, by rank.
        cpus: what a healthy rank uses.
        folder: where the ranks read the plan.

    """
    with ExitStack() as stack:
        own = {rank: pids[rank] for rank in plan.ranks}
        match plan.cause:
            case Cause.QUOTA:
                group = stack.enter_context(ThrottledGroup.made("cpu"))
                group.limit_cpu(QUOTA_PART * cpus)
                group.take(own.values())
            case Cause.STORAGE:
                group = stack.enter_context(ThrottledGroup.made("blkio"))
                speed = len(own) * READ_BYTES / (READ_TIMES * plan.delay)
                group.limit_reads(disk_of(folder), round(speed))
                group.take([child for pid in own.values() for child in children_of(pid)])
            case Cause.COMPETITOR:
                stack.enter_context(competitors(own.values(), pids.values()))
            case _:
                pass
        plan.write(folder)
        stack.callback(Plan(Cause.HEALTHY).write, folder)
        yield


@contextmanager
def competitors(slow: Collection[int], ranks: Collection[int]) -> Iterator[None]:
    """Keep one CPU busy; bind some ranks to it, and the others to the other CPUs."""
    first, *others = sorted(os.sched_getaffinity(0))
    before: dict[int, set[int]] = {}
    busy: list[subprocess.Popen[bytes]] = []
    try:
        for pid in ranks:
            cpus = {first} if pid in slow else set(others)
            for each in (pid, *children_of(pid)):
                for thread in threads_of(each):
                    with suppress(ProcessLookupError):
                        before[thread] = os.sched_getaffinity(thread)
                        os.sched_setaffinity(thread, cpus)
        for _ in range(BUSY_PROCESSES):
            busy.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            os.sched_setaffinity(busy[-1].pid, {first})
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
        for thread, cpus in before.items():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus)


def children_of(pid: int) -> list[int]:
    """Return the process ids of a rank's DataLoader processes."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def threads_of(pid: int) -> list[int]:
    """Return the numbers of a process's threads for the kernel."""
    return [thread.id for thread in psutil.Process(pid).threads()]
