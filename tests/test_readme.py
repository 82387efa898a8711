"""The README shows what the code does."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.contract.launched import COMMAND, plain_environment
from tests.machine_trees import dgx_a100, write_tree

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

TRAIN = """\
import os
import time


def main():
    if os.environ["RANK"] == "1":
        raise ValueError("the loss is not a number")
    time.sleep(30)

main()
"""
"""The program that fails in the README: the traceback has its lines."""


def blocks() -> list[str]:
    """Return the indented blocks, without their indent."""
    found = re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", README)
    return [re.sub(r"(?m)^    ", "", block).strip("\n") for block in found]


def commands() -> list[str]:
    """Return the lines that begin with clusterrun, without their comments."""
    lines = [line for block in blocks() for line in block.splitlines()]
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("clusterrun ")]


def run(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run clusterrun as the README does, outside of any other launch."""
    (cwd / "train.py").write_text(TRAIN)
    environment = plain_environment()
    del environment["CUDA_VISIBLE_DEVICES"]
    return subprocess.run(
        [COMMAND, *words],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def without_accidents(report: str) -> str:
    """Return a report without what differs from run to run."""
    report = re.sub(r" on \S+ failed", " on HOST failed", report)
    report = re.sub(r'"/.*/train.py"', '"train.py"', report)
    return re.sub(r"pid \d+, at \S+ \S+, \S+ s", "pid N, at TIME, N s", report).strip()


def test_it_is_short() -> None:
    """Everything else has a page in docs."""
    assert len(README.splitlines()) <= 150


def test_links_lead_somewhere() -> None:
    """Files that the README names are there."""
    targets = re.findall(r"\]\(([^)#:]+)\)", README)

    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("command", commands())
def test_commands_are_right_for_eight_gpus(command: str, tmp_path: Path) -> None:
    """Each command is planned without an error or a warning."""
    machine = ["--machine-root", str(write_tree(tmp_path / "machine", dgx_a100()))]
    _, *words = shlex.split(command)
    # This host is none of those that the README lists.
    place = ["--node-rank", "0"] if "--hosts" in words else []
    words = ["topo", *machine] if words == ["topo"] else ["--dry-run", *machine, *place, *words]

    done = run(*words, cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "GPU" in done.stdout


def test_the_report_of_a_failure_is_a_real_one(tmp_path: Path) -> None:
    """It differs from that of a real job in host, folder, pid and times only."""
    (shown,) = (block for block in blocks() if "the loss is not a number" in block)

    done = run("--nproc-per-node", "4", "train.py", cwd=tmp_path)

    report = done.stderr[done.stderr.index("clusterrun: rank") :]
    assert without_accidents(report) == without_accidents(shown)
