"""The programs in the folder ``programs``, run by Python alone and by the command."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.contract.launched import MARK, Ended, Launcher, plain_environment
from tests.workers.interpreters import environment_without_pth

PROGRAMS = Path(__file__).with_name("programs")

START_METHODS = ("fork", "spawn")
"""Values of ``--start-method``."""

SECONDS_TO_RUN = 100.0
"""For one program; with torch, it is slow on a busy machine."""

JOB_WIDE = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    "ROLE_NAME": "default",
    "TORCHELASTIC_RUN_ID": "in_place",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "TORCHELASTIC_ERROR_FILE": "/nowhere/error.json",
    "CLUSTERRUN_RESUMED": "0",
    "CLUSTERRUN_SUSPEND_PAGE": "/nowhere/suspend:0",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "NODE_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}

ADDRESS = re.compile(r"0x[0-9a-f]{4,}")

FRAME_OF_OURS = re.compile(
    r"(?:^|(?<=\(Pdb\) ))  .*/fork_server/(?:__main__|script_run)\.py.*\n(?:(?:-> |    ).*\n)*",
    re.MULTILINE,
)
"""The fork server's frame beneath the script: in tracebacks, faulthandler's stacks, and pdb's."""

REPORT = re.compile(r"^clusterrun: .*\n(?:^  .*\n)*", re.MULTILINE)


class Program(NamedTuple):
    """One way to run a program.

    ``words`` stand where ``python -u`` and ``clusterrun`` expect a script and its arguments;
    ``{folder}`` in them is where the programs are.
    """

    words: tuple[str, ...]
    stdin: str = ""
    environ: Mapping[str, str] = {}


def with_helpers_installed(program: Program) -> Program:
    """Return a program that finds its helpers in site-packages: see ``install_helpers``."""
    folder = Path(program.words[0]).parent
    return program._replace(environ={**program.environ, "PYTHONPATH": f"{folder}/site-packages"})


class Left(NamedTuple):
    """The result of a program; ``files`` are those that it has made in its folder."""

    code: int
    out: str
    err: str
    files: dict[str, bytes]


class Folder:
    """A copy of all programs, where they run: so paths are equal for all start methods."""

    def __init__(self, path: Path, python: str = sys.executable) -> None:
        """Make the copy, for an environment like the one of ``python``."""
        self.path = path
        self.python = environment_without_pth(python, path.with_name("environment"))
        shutil.copytree(PROGRAMS, path)
        shutil.make_archive(str(path / "zipped"), "zip", path / "zipped")
        (path / "link.py").symlink_to("on_pythonpath/linked.py")
        self.known = self._names()

    def install_helpers(self) -> None:
        """Move the modules that each folder's ``main.py`` imports to its site-packages."""
        for main in self.path.glob("**/main.py"):
            installed = main.parent / "site-packages"
            helpers = [entry for entry in main.parent.iterdir() if entry.name != "main.py"]
            installed.mkdir()
            for helper in helpers:
                helper.rename(installed / helper.name)
        self.known = self._names()

    def alone(self, program: Program, rank: int = 0, ranks: int = 1) -> Left:
        """Run it as ``python -u WORDS`` with a worker's variables."""
        with pipe_with(program.stdin) as stdin:
            done = subprocess.run(
                [self.python, "-u", *self._words(program)],
                cwd=self.path,
                env=as_user(program.environ) | worker_variables(rank, ranks) | {MARK: "alone"},
                stdin=stdin,
                capture_output=True,
                timeout=SECONDS_TO_RUN,
                start_new_session=True,
                check=False,
            )
        # As a shell and clusterrun report a signal.
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return self._left(Ended(code, out, err))

    def launched(self, program: Program, *options: str, ranks: int = 1) -> Left:
        """Run it as ``clusterrun OPTIONS WORDS``; remove the launcher's report from the result."""
        ended = self.started(program, *options, ranks=ranks)
        return self._left(ended._replace(err=REPORT.sub("", ended.err)))

    def started(self, program: Program, *options: str, ranks: int = 1) -> Ended:
        """Run it in the same way; return all output."""
        launcher = Launcher(self.path)
        # ``Launcher`` can only add variables.
        environ = as_user(program.environ)
        absent = [f"--unset={name}" for name in plain_environment().keys() - environ.keys()]
        try:
            with pipe_with(program.stdin) as stdin:
                job = launcher.command(
                    "--python",
                    self.python,
                    *options,
                    *self._words(program),
                    workers=ranks,
                    around=("env", *absent) if absent else (),
                    environ=environ,
                    stdin=stdin,
                )
            return job.ended(SECONDS_TO_RUN)
        finally:
            launcher.close()

    def _words(self, program: Program) -> list[str]:
        return [word.replace("{folder}", str(self.path)) for word in program.words]

    def _left(self, ended: Ended) -> Left:
        new = [self.path / name for name in sorted(self._names() - self.known)]
        files = {path.name: path.read_bytes() if path.is_file() else b"a folder" for path in new}
        for path in new:
            if path.is_file():
                path.unlink()
            else:
                shutil.rmtree(path)
        out, err = (
            ADDRESS.sub("0xADDRESS", FRAME_OF_OURS.sub("", text)) for text in (ended.out, ended.err)
        )
        return Left(ended.code, out, err, files)

    def _names(self) -> set[str]:
        return {path.name for path in self.path.iterdir()} - {"__pycache__"}


def as_user(environ: Mapping[str, str]) -> dict[str, str]:
    """Return a user's environment, with ``environ`` on top."""
    mine = {
        name: value
        for name, value in plain_environment().items()
        if not name.startswith(("PYTHON", "PYTEST_CURRENT"))
    }
    return {**mine, **environ}


def worker_variables(rank: int, ranks: int) -> dict[str, str]:
    """Return the variables of a worker of a single-node job that programs read."""
    of_rank = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(ranks))
    threads = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // ranks))}
    return JOB_WIDE | of_rank | sizes | threads


@contextmanager
def pipe_with(text: str) -> Iterator[int]:
    """Yield the read end of a pipe that contains ``text``."""
    read_end, write_end = os.pipe()
    try:
        os.write(write_end, text.encode())
        os.close(write_end)
        yield read_end
    finally:
        os.close(read_end)
