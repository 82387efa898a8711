"""Each command of the pages can be run as it is shown; tests/test_docs.py has the transcripts."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from clusterrun.cli.commands import find_command
from clusterrun.errors import ExitCode

from tests import transcripts
from tests.transcripts import PROMPT, blocks

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

BEFORE = r"(?:(?:[A-Z_]+=\S+|srun|docker|python|coverage|exec) .*?)?"
"""What starts clusterrun or sets variables for it."""

SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu-[01-04]",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_CPUS_ON_NODE": "128",
}
"""What srun sets in the first task of a step on four nodes."""

EXPORTED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.2", "MASTER_PORT": "29500"}
"""What platforms export that count nodes with RANK and WORLD_SIZE."""

ABOUT_JOBS = {"ps", "slow", "stacks", "status", "stop", "suspend"}


class PageCommand(NamedTuple):
    """A command of a page."""

    before: str
    """``srun -c 8``, or ""."""
    words: list[str]
    """Those after ``clusterrun``."""
    file: str
    """A job file that the page has with the command, or ""."""
    text: str
    """Of that file."""


def commands(page: Path) -> list[PageCommand]:
    """Return the commands of a page: those of transcripts and the forms of a command line excluded."""
    found = []
    for block in blocks(page):
        lines = re.sub(r" *\\\n *", " ", block).splitlines()
        for line in lines[1:] if block.startswith(PROMPT) else lines:
            of_file = re.match(r"# (?:[\w.]+  +)?(?=\S.* --config (\S+))", line)
            text = line[of_file.end() :] if of_file else line.removeprefix("% ").partition("  #")[0]
            parts = re.fullmatch(rf"({BEFORE})(?:\S+/)?clusterrun (?!did )([a-z-].+)", text.strip())
            if parts:
                file = of_file[1] if of_file else ""
                words = shlex.split(parts[2].partition(" #")[0])
                found.append(PageCommand(parts[1], words, file, block if file else ""))
    return found


def shown(page: Path) -> list[object]:
    return [
        pytest.param(each, id=f"{page.stem}: {each.before}clusterrun {shlex.join(each.words)}")
        for each in commands(page)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the files that commands of the pages name."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "evaluate.py").touch()
    (tmp_path / "trl").symlink_to("/bin/true")
    (tmp_path / "hosts.txt").write_text("gpu-01\ngpu-02\n")
    (tmp_path / "job.yaml").write_text("script: train.py\n")
    (tmp_path / "token").write_text("0123456789abcdef0123456789abcdef\n")
    (tmp_path / "token").chmod(0o600)
    return tmp_path


def run(command: PageCommand, *options: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environ = {"XDG_RUNTIME_DIR": str(folder), "PATH": f"{os.environ['PATH']}:{folder}"}
    environ |= re.findall(r"([A-Z_]+)=(\S+) ", command.before)
    environ |= SRUN if "srun" in command.before else {}
    environ |= EXPORTED if {"$RANK", "pai-dlc"} & {*command.words} else {}
    values = {**EXPORTED, "HOST": "127.0.0.1", "/usr/bin/python3.10": sys.executable}
    words = [values.get(word.removeprefix("$"), word) for word in command.words]
    return transcripts.run(
        shlex.join(["clusterrun", *words]), *options, folder=folder, environ=environ
    )


@pytest.mark.parametrize("command", [each for page in PAGES for each in shown(page)])
def test_a_command_can_be_run(command: PageCommand, eight_gpus: Path, folder: Path) -> None:
    """A launch is planned; a command about a job finds none; a long check is read."""
    if command.file:
        (folder / command.file).write_text(command.text)
    word, *_ = command.words
    machine = ("--machine-root", str(eight_gpus))
    if word in {"doctor", "bench"}:
        found, _ = find_command(command.words, "clusterrun")
        assert found.word == word
        return
    if word in ABOUT_JOBS:
        done = run(command, folder=folder)
        assert done.returncode == ExitCode.NO_JOB
        assert "you have no clusterrun job on this host" in done.stderr
        return
    if word == "env":
        done = run(command, folder=folder)
    elif word == "topo":
        done = run(command._replace(words=[*command.words, *machine]), folder=folder)
    elif word == "submit":
        done = run(command._replace(words=["submit", "--print", *command.words[1:]]), folder=folder)
    else:
        # This host is not one of those that a page lists; by ssh, the first of them is planned.
        is_listed = {"--hosts", "--hostfile"} & {*command.words} and "ssh" not in command.words
        rank = ("--node-rank", "0") if is_listed else ()
        done = run(command, "--dry-run", *machine, *rank, folder=folder)
    assert done.returncode == 0, done.stderr
    # This host has other CPUs than the task of the page, and no Slurm to ask.
    assert "srun" in command.before or not done.stderr
