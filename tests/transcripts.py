"""Transcripts in documents: their blocks and commands, and what these commands print."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.contract.launched import COMMAND, plain_environment

PROGRAMS = Path(__file__).parent / "shown_in_docs"
SCRIPTS = Path(__file__).parents[1] / "scripts"
PROMPT = "$ clusterrun "


class Transcript(NamedTuple):
    """A command, and what it prints."""

    command: str
    shown: str


def blocks(page: Path) -> list[str]:
    """Return the indented blocks of a page, without their indent."""
    found = re.findall(r"(?m)(?:^    .*\n|^\n(?=    ))+", page.read_text())
    return [re.sub(r"(?m)^    ", "", block).strip("\n") for block in found]


def transcripts(page: Path) -> list[Transcript]:
    """Return the blocks that begin with a prompt."""
    shown = [block.partition("\n") for block in blocks(page) if block.startswith(PROMPT)]
    return [Transcript(command.removeprefix("$ "), text) for command, _, text in shown]


def run(
    command: str,
    *options: str,
    folder: Path,
    merged: bool = False,
    environ: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a command beside the programs that documents name.

    Args:
        command: it begins with ``clusterrun``.
        options: more of them, before its own.
        folder: where to run it.
        merged: standard error goes to standard output, as on a terminal.
        environ: more variables.

    """
    shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True)
    (folder / "scripts").symlink_to(SCRIPTS)
    _, *words = shlex.split(command)
    # The machine that a test replays has GPUs.
    environment = plain_environment()
    del environment["CUDA_VISIBLE_DEVICES"]
    return subprocess.run(
        [COMMAND, *options, *words],
        cwd=folder,
        env={**environment, **(environ or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        text=True,
        timeout=180,
        check=False,
    )


MACHINE_LINES = (
    r"clusterrun: \d+ workers share \d+ CPUs? .*\n",
    r"clusterrun: importing \S+ before workers are forked: \d+ s so far .*\n",
)
"""What clusterrun says of a small machine, and of a busy one."""


def without_accidents(text: str) -> str:
    """Return text without host, folders, pid, times and figures, which differ in each run.

    Lines about the machine are left out.
    """
    text = re.sub(rf"(?m)^(?:{'|'.join(MACHINE_LINES)})", "", text)
    text = re.sub(r"/\S+/bin/clusterrun", "clusterrun", text)
    # A long path breaks the line of a batch script.
    text = text.replace(" \\\n    ", " ")
    text = re.sub(r"loss \S+, \d+ images|accuracy \S+", "FIGURES", text)
    text = re.sub(r" on \S+ (failed|was killed)", r" on HOST \1", text)
    text = re.sub(r'"/[^"]*/(\w+\.py)"', r'"\1"', text)
    text = re.sub(r"\(pid \d+, of rank", "(pid N, of rank", text)
    return re.sub(r"pid \d+, at \S+ \S+, \S+ s", "pid N, at TIME, N s", text).strip()
