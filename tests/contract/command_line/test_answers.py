"""What the command prints without a job, and outputs that cannot be written."""

import os
import subprocess
from pathlib import Path
from typing import TextIO

import pytest

from tests.contract.launched import COMMAND, plain_environment

each_output = pytest.mark.parametrize(
    "words", ["--help", "--help all", "--version", "--print-completion bash", "--dry-run train.py"]
)
"""Each kind of output."""


@each_output
def test_full_device_is_an_error(tmp_path: Path, words: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = run_with_stdout(full, words, tmp_path)

    why = "standard output can't be written: No space left on device"
    assert (done.returncode, done.stderr) == (3, f"clusterrun: error: {why}\n")


@each_output
def test_closed_pipe_exits_with_141(tmp_path: Path, words: str) -> None:
    """As in a shell with ``| head``; nothing is printed."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        done = run_with_stdout(unread, words, tmp_path)

    assert (done.returncode, done.stderr) == (141, "")


def run_with_stdout(stdout: TextIO, words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder with a script, with this standard output."""
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


def test_usage_error_on_a_stopped_terminal_exits(tmp_path: Path, full_terminal: str) -> None:
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
