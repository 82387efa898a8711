"""``srun --pty bash`` of a real Slurm: one shell at a terminal, in a step of several tasks."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.shell import BASH, PROMPT, Shell
from tests.hosts.slurm import CLUSTERRUN_ON_PATH, Slurm

PRINT_RANK = """
import os
names = ("RANK", "WORLD_SIZE", "SLURMD_NODENAME")
print("this is rank", *(os.environ[name] for name in names), len(os.sched_getaffinity(0)))
"""

OpenShell = Callable[..., Shell]


@pytest.fixture
def open_shell(slurm: Slurm, tmp_path: Path) -> Iterator[OpenShell]:
    """Return a function that runs ``srun OPTIONS --pty bash`` and waits for the prompt."""
    opened: list[Shell] = []

    def open_it(*options: str) -> Shell:
        words = (*slurm.around(*options, "--pty"), *BASH)
        opened.append(Shell(tmp_path, words, **CLUSTERRUN_ON_PATH))
        opened[-1].expect(re.escape(PROMPT))
        return opened[-1]

    (tmp_path / "ranks.py").write_text(PRINT_RANK)
    yield open_it

    for shell in opened:
        shell.close()


def ranks(shell: Shell, number: int) -> list[tuple[str, ...]]:
    """Return what this number of ranks print: rank, world size, node, number of CPUs."""
    found = [shell.expect(r"this is rank (\d+) (\d+) (\w+) (\d+)").groups() for _ in range(number)]
    return sorted(found)


def test_hint_in_shell_of_several_tasks_uses_all_cpus(open_shell: OpenShell) -> None:
    """The shell has the GPUs of its node and the CPUs of one task."""
    shell = open_shell("-N1", "--ntasks-per-node=2", "--gres=gpu:2")

    shell.type("clusterrun ranks.py")
    line = shell.expect(
        r"bound this shell to 1 of the 2 CPUs of this node .* run: (srun .*ranks\.py)"
    )[1]
    alone = ranks(shell, 2)
    shell.expect(re.escape(PROMPT))
    shell.type(line)

    assert alone == [("0", "2", "n0", "1"), ("1", "2", "n0", "1")]
    assert ranks(shell, 2) == [("0", "2", "n0", "2"), ("1", "2", "n0", "2")]


def test_hint_in_shell_of_several_nodes_uses_all_nodes(open_shell: OpenShell) -> None:
    """The job itself runs on the shell's node."""
    shell = open_shell("-N2", "--ntasks-per-node=1", "-c2", "--gres=gpu:1")

    shell.type("clusterrun ranks.py")
    line = shell.expect(r"2 are allocated \(SLURM_STEP_NUM_NODES\).* run: (srun .*ranks\.py)")[1]
    alone = ranks(shell, 1)
    shell.expect(re.escape(PROMPT))
    shell.type(line)

    assert alone == [("0", "1", "n0", "2")]
    assert ranks(shell, 2) == [("0", "2", "n0", "2"), ("1", "2", "n1", "2")]
