"""What a mistake costs: a few lines that say what to type, exit code 2, and nothing started.

The transcripts in ``mistakes/`` are typed into a shell, in a folder that ``folder`` fills.
"""

import os
import subprocess
from pathlib import Path

import pytest
from clusterrun.sources.options.option import Kind
from clusterrun.sources.options.table import OPTIONS

from tests.contract.launched import COMMAND, plain_environment

TRANSCRIPTS = [path.read_text() for path in sorted(Path(__file__).parent.glob("mistakes/*.txt"))]


def mistakes() -> list[tuple[str, str]]:
    """Return the command line of each mistake, with what it printed."""
    sessions = [it for text in TRANSCRIPTS for it in text.removeprefix("$ ").split("\n\n$ ")]
    typed = (session.partition("\n") for session in sessions)
    return [(line, said.rstrip("\n") + "\n") for line, _, said in typed]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what people have in theirs; a worker would add a file to it."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "train.py").write_text("open('started', 'w')\n")
    (folder / "prepare.sh").write_text("#!/bin/sh\n")
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    (folder / "package").mkdir()
    (folder / "package/module.py").write_text("open('started', 'w')\n")
    (folder / "venv/bin").mkdir(parents=True)
    (folder / "venv/bin/python").touch(mode=0o755)
    return folder


@pytest.mark.parametrize(("line", "said"), mistakes())
def test_a_mistake_ends_before_anything_starts(folder: Path, line: str, said: str) -> None:
    """It says what is wrong, where that stands and what to type, and that is all that happens."""
    before = sorted(folder.rglob("*"))
    path = os.pathsep.join([str(Path(COMMAND).parent), os.defpath])

    done = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env={**plain_environment(), "PATH": path, "CLUSTERRUN_LOG_DIR": "logs"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stderr, done.stdout, done.returncode) == (said, "", 2)
    assert sorted(folder.rglob("*")) == before


def test_every_option_that_takes_a_value_has_its_mistake() -> None:
    """An option that is added brings the transcript of what happens to a wrong value of it."""
    complaints = [said.replace("-", "_") for _, said in mistakes()]
    lines = [line.replace("-", "_") for line, _ in mistakes()]
    options = [option for option in OPTIONS if option.kind is not Kind.FLAG]

    silent = [it.name for it in options if not any(it.name in text for text in complaints + lines)]

    assert silent == []
