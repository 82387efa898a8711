"""Binding on a real kernel with two NUMA nodes, in qemu."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/qemu_numa.py"
CANNOT_RUN = 77


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_workers_run_and_allocate_on_their_planned_nodes(pytestconfig: pytest.Config) -> None:
    """This is also true after a restart and with GPUs. Downloads are kept in pytest's cache."""
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("qemu_numa")

    ended = subprocess.run(
        [sys.executable, SCRIPT, "--cache", cache],
        timeout=1700,
        capture_output=True,
        text=True,
        check=False,
    )

    if ended.returncode == CANNOT_RUN:
        pytest.skip(ended.stdout.strip())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "rank 3, attempt 1: CPUs 6-7, memory prefer:1, pages by node {'1': 1024}" in ended.stdout
    assert "rank 0, attempt 0: CPUs 4-7, memory bind:1, pages by node {'1': 1024}" in ended.stdout
    assert ended.stdout.endswith("every worker is where its plan has it\n")
