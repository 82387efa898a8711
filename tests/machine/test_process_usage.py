"""Usage of a process, from captured files and from a real process."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from clusterrun.machine.process_usage import ProcessUsage, Units, usage_of, why_unresponsive
from clusterrun.machine.tree import Tree

from tests.contract.launched import await_status

UNITS = Units(100, 4096)
STAT = (
    "7 (odd) name) {} 1 7 7 0 -1 4194560 1 0 0 0 150 50 9 9 20 0 1 0 1 1000 25 18446744073709551615"
)


@pytest.mark.parametrize(
    ("letter", "state"),
    [("S", "running"), ("R", "running"), ("T", "stopped"), ("D", "waiting in the kernel")],
)
def test_stat_fields_follow_a_name_with_parentheses(
    tmp_path: Path, letter: str, state: str
) -> None:
    """Which may have blanks and parentheses."""
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/stat").write_text(STAT.format(letter))

    assert usage_of(Tree(tmp_path), 7, UNITS) == ProcessUsage(state, 2.0, 25 * 4096)


def test_exited_process_has_no_usage(tmp_path: Path) -> None:
    """It has no files."""
    assert usage_of(Tree(tmp_path), 7, UNITS) is None
    assert why_unresponsive(Tree(tmp_path), 7) == ""


def test_usage_of_a_real_process() -> None:
    """This one has used some CPU time; a stopped one is known as such."""
    own = usage_of(Tree(Path("/")), os.getpid(), UNITS)
    child = subprocess.Popen(["sleep", "60"])
    try:
        child.send_signal(signal.SIGSTOP)
        await_status(child.pid, psutil.STATUS_STOPPED)
        why = why_unresponsive(Tree(Path("/")), child.pid)
    finally:
        child.kill()
        child.wait()

    assert own is not None
    assert own.cpu_seconds > 0
    assert own.memory > 1 << 20
    assert why == f"pid {child.pid} is stopped; kill -CONT {child.pid} continues it: sleep 60"
