"""Programs with popular packages, two ranks of each, run by Python alone and by the command."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from free_ports import free_port

from tests.contract.in_place.programs_in_place import as_user, worker_variables
from tests.contract.launched import Ended, Launcher, plain_environment

FOLDER = Path(__file__).with_name("packages")
ROOT = Path(__file__).parents[3]
REQUIREMENTS = FOLDER / "requirements.txt"

SECONDS_TO_INSTALL = 1500.0
SECONDS_TO_RUN = 100.0
RANKS = 2


def python_with_packages() -> str:
    """Return the interpreter of an environment with all packages; it is kept for later test runs."""
    given = os.environ.get("CLUSTERRUN_TESTS_PACKAGES")
    folder = Path(given) if given else ROOT / ".venv-packages"
    python = str(folder / "bin/python")
    stamp = folder / "filled"
    with REQUIREMENTS.open() as file:
        # Tests run in several processes; one of them fills it.
        fcntl.flock(file, fcntl.LOCK_EX)
        wanted = file.read()
        if stamp.exists() and stamp.read_text() == wanted:
            return python
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [python, "-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS)],
        ):
            subprocess.run(command, check=True, timeout=SECONDS_TO_INSTALL)
        stamp.write_text(wanted)
    return python


def run_alone(
    python: str, words: Sequence[str], folder: Path, environ: Mapping[str, str]
) -> list[str]:
    """Return the output of each rank of ``python -u WORDS``, all at once; they must succeed."""
    port = {"MASTER_PORT": str(free_port())}
    jobs = [
        subprocess.Popen(
            [python, "-u", *words],
            cwd=folder,
            env={**as_user({}), **worker_variables(rank, RANKS), **port, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(RANKS)
    ]
    try:
        printed = [job.communicate(timeout=SECONDS_TO_RUN)[0].decode() for job in jobs]
    finally:
        for job in jobs:
            with job:
                job.kill()
    assert not any(job.returncode for job in jobs), printed
    return printed


def run_launched(
    python: str, words: Sequence[str], folder: Path, environ: Mapping[str, str]
) -> Ended:
    """Return how ``clusterrun -v --python PYTHON WORDS`` ended; it must succeed."""
    launcher = Launcher(folder)
    absent = [f"--unset={name}" for name in plain_environment().keys() - as_user({}).keys()]
    try:
        ended = launcher.command(
            *("-v", "--python", python),
            *words,
            workers=RANKS,
            around=("env", *absent) if absent else (),
            environ={**as_user({}), **environ},
        ).ended(SECONDS_TO_RUN)
    finally:
        launcher.close()
    assert ended.code == 0, ended.err
    return ended
