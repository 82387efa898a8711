"""What the command prints without a job, and where its output can't be written."""

import os
import subprocess
from pathlib import Path
from typing import TextIO

import pytest

from tests.contract.launched import COMMAND, plain_environment

PRINTS = pytest.mark.parametrize(
    "words", ["--help", "--help all", "--version", "--print-completion bash", "--dry-run train.py"]
)
"""Each kind of output."""


@PRINTS
def test_a_full_device(tmp_path: Path, words: str) -> None:
    """Every kind of output ends with one line and an exit code."""
    with Path("/dev/full").open("w") as full:
        done = printed_to(full, words, tmp_path)

    why = "standard output can't be written: No space left on device"
    assert (done.returncode, done.stderr) == (3, f"clusterrun: error: {why}\n")


@PRINTS
def test_a_reader_that_has_gone(tmp_path: Path, words: str) -> None:
    """``| head``: 141 as in a shell, and nothing to read about it."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        done = printed_to(unread, words, tmp_path)

    assert (done.returncode, done.stderr) == (141, "")


def printed_to(stdout: TextIO, words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder with a script, where its output can't be written."""
    (folder / "train.py").touch()
    return subprocess.run(
        [COMMAND, *words.split()],
        cwd=folder,
        env=plain_environment(),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_mistake_that_a_stopped_terminal_does_not_show(
    tmp_path: Path, full_terminal: str
) -> None:
    """The command ends all the same, soon and with the exit code of a mistake."""
    with Path(full_terminal).open("w") as stopped:
        done = subprocess.run(
            [COMMAND, "--unknown"],
            cwd=tmp_path,
            env=plain_environment(),
            stderr=stopped,
            timeout=60,
            check=False,
        )

    assert done.returncode == 2
