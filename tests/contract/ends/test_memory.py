"""Real memory limits: the kernel kills a process, and the report names the limit."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.contract.launched import Launcher
from tests.waiting import SECONDS_TO_ACT

# The kernel also counts kills of the whole machine, which other jobs would report.
pytestmark = pytest.mark.alone

CGROUPS = Path("/sys/fs/cgroup")
MIB = 1 << 20


class MemoryGroup:
    """A control group with a memory limit."""

    def __init__(self) -> None:
        """Create the group; version 1 of control groups has a separate tree for memory.

        Raises:
            OSError: this user can't create control groups.

        """
        version_1 = CGROUPS / "memory"
        self.path = (version_1 if version_1.exists() else CGROUPS) / f"tests-{os.getpid()}"
        self._limit = "memory.limit_in_bytes" if version_1.exists() else "memory.max"
        self._limit_with_swap = (
            "memory.memsw.limit_in_bytes" if version_1.exists() else "memory.swap.max"
        )
        self.path.mkdir()

    def limited(self, mebibytes: int) -> tuple[str, ...]:
        """Set the limit; return a command that runs another command inside the group."""
        (self.path / self._limit).write_text(str(mebibytes * MIB))
        # With swap, the process would end later. A kernel without swap may lack the file.
        if (self.path / self._limit_with_swap).exists():
            with_swap = 0 if self._limit == "memory.max" else mebibytes * MIB
            (self.path / self._limit_with_swap).write_text(str(with_swap))
        return ("sh", "-c", f'echo $$ >{self.path}/cgroup.procs; exec "$@"', "sh")

    def remove(self) -> None:
        """Remove the group, and kill the processes that a failed test left in it."""
        for pid in (self.path / "cgroup.procs").read_text().split():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(pid))
                process.kill()
                process.wait(SECONDS_TO_ACT)
        self.path.rmdir()


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    """Return a group for jobs; the test is skipped where none can be created."""
    try:
        group = MemoryGroup()
    except OSError as error:
        if os.environ.get("CI") and os.geteuid() == 0:
            raise
        pytest.skip(f"no control group for memory: {error}")

    yield group

    group.remove()


def test_report_of_rank_killed_for_memory_has_limit_and_cgroup(
    clusterrun: Launcher, memory_group: MemoryGroup
) -> None:
    ended = clusterrun.script(
        """
        import os, time
        if os.environ["RANK"] == "1":
            eaten = bytearray(1 << 30)
        time.sleep(100)
        """,
        workers=2,
        around=memory_group.limited(300),
    ).ended()

    assert ended.code == 137
    assert re.search(
        rf"clusterrun: rank 1 on \S+ was killed by SIGKILL: out of memory\n"
        rf"  local rank 1, pid \d+, at .+ after its start\n"
        rf"  out of memory: the kernel's OOM killer ended 1 process of this cgroup"
        rf" \(limit 300 MiB, {memory_group.path}\)\n"
        rf"  rank 0: stopped by clusterrun\n"
        rf"clusterrun: exit code 137, from rank 1: 128 \+ 9 for SIGKILL\n$",
        ended.err,
    )


@pytest.mark.long
def test_report_of_data_loader_killed_for_memory(
    clusterrun: Launcher, memory_group: MemoryGroup
) -> None:
    """The rank only loses a child. The report has its exception and the kernel's count of kills."""
    ended = clusterrun.script(
        """
        from torch.utils.data import DataLoader, Dataset

        class Eater(Dataset):
            def __len__(self):
                return 1
            def __getitem__(self, index):
                eaten = bytearray(4 << 30)
                return index

        for _ in DataLoader(Eater(), num_workers=1):
            pass
        """,
        workers=1,
        around=memory_group.limited(1200),
    ).ended(60)

    assert ended.code == 1
    assert re.search(r"clusterrun: rank 0 on \S+ failed: RuntimeError: DataLoader", ended.err)
    assert (
        "  out of memory: the kernel's OOM killer ended 1 process of this cgroup"
        f" (limit 1200 MiB, {memory_group.path})\n"
    ) in ended.err
    assert ended.err.endswith("clusterrun: exit code 1, from rank 0\n")
