"""Wrong command lines: the error and its hint, exit code 2, and no worker.

The transcripts in ``mistakes/`` are run in the folder of the fixture ``folder``: in this process, or in
a shell if a line needs one.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from clusterrun.job.options import OPTIONS

from tests.contract.launched import COMMAND, plain_environment
from tests.own_options import OWN_OPTIONS
from tests.typed import Typed, typed, words_without_a_shell

TRANSCRIPTS = [path.read_text() for path in sorted(Path(__file__).parent.glob("mistakes/*.txt"))]


def mistakes() -> list[tuple[str, str]]:
    """Return the command line and the output of each transcript."""
    sessions = [it for text in TRANSCRIPTS for it in text.removeprefix("$ ").split("\n\n$ ")]
    typed = (session.partition("\n") for session in sessions)
    return [(line, printed.rstrip("\n") + "\n") for line, _, printed in typed]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with common files; a worker would create another one."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "train.py").write_text("open('started', 'w')\n")
    (folder / "prepare.sh").write_text("#!/bin/sh\n")
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    (folder / "plain.sh").write_text("echo 1\n")
    (folder / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun clusterrun train.py\n")
    (folder / "binary").write_bytes(b"\x7fELF\x02\x01")
    (folder / "settings.yaml").write_text("script: train.py\n")
    (folder / "digits.ipynb").write_text('{"cells": []}')
    (folder / "src").mkdir()
    (folder / "src/main.py").touch()
    (folder / "package").mkdir()
    (folder / "package/module.py").write_text("open('started', 'w')\n")
    (folder / "src/models/vision").mkdir(parents=True)
    for package in ("src/models", "src/models/vision"):
        (folder / package / "__init__.py").touch()
        (folder / package / "train.py").write_text("open('started', 'w')\n")
    (folder / "src/models/vision/__main__.py").write_text("open('started', 'w')\n")
    (folder / "venv/bin").mkdir(parents=True)
    (folder / "venv/bin/python").touch(mode=0o755)
    return folder


@pytest.mark.parametrize(("line", "printed"), mistakes())
def test_transcript(folder: Path, line: str, printed: str) -> None:
    """The message has the problem and its origin, the hint what to type; no file is created."""
    before = sorted(folder.rglob("*"))
    path = os.pathsep.join([str(Path(COMMAND).parent), os.defpath])
    environ = {**plain_environment(), "PATH": path, "CLUSTERRUN_LOG_DIR": "logs"}

    if plain := words_without_a_shell(line):
        variables, words = plain
        done = typed(words, environ | variables, folder)
    else:
        done = run_in_shell(line, environ, folder)

    assert done == Typed(2, "", printed)
    assert sorted(folder.rglob("*")) == before


def run_in_shell(line: str, environ: Mapping[str, str], folder: Path) -> Typed:
    """Run a line that has a pipe, a variable or the like."""
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Typed(done.returncode, done.stdout, done.stderr)


def test_every_option_with_a_value_has_a_transcript() -> None:
    """Each transcript shows what happens to a wrong value."""
    messages = [printed.replace("-", "_") for _, printed in mistakes()]
    lines = [line.replace("-", "_") for line, _ in mistakes()]
    rows = [*OPTIONS.values(), *(row for own in OWN_OPTIONS.values() for row in own.values())]
    names = [row.name for row in rows if row.metavar]

    missing = [name for name in names if not any(name in text for text in messages + lines)]

    assert missing == []
