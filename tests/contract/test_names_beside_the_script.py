"""Files of the user's with names of ours: the script imports them, clusterrun does not.

A ``clusterrun.py`` beside the script is like a ``torch.py`` there: an import of the name gets it.
"""

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.contract.launched import COMMAND, plain_environment

MODULES = ("click", "msgspec", "psutil", "yaml", "launcher", "cli", "run")

SCRIPT = """
import os, sys
names = [{names}]
print(os.environ["RANK"], *(sys.modules[name].WHOSE for name in names))
"""

COMMANDS = {"command": [COMMAND], "module": [sys.executable, "-m", "clusterrun"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a script, and modules and files whose names clusterrun uses, too."""
    for name in (*MODULES, "topo"):
        (tmp_path / f"{name}.py").write_text("WHOSE = 'mine'\n")
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher/__init__.py").write_text("WHOSE = 'mine'\n")
    (tmp_path / "clusterrun.yaml").write_text("nnodes: 7\n")
    (tmp_path / "topo").write_text("not to be run\n")
    names = ", ".join(map(repr, MODULES))
    imports = "".join(f"import {name}\n" for name in MODULES)
    (tmp_path / "train.py").write_text(imports + SCRIPT.format(names=names))
    return tmp_path


def launch(
    folder: Path, *words: str, command: str = "command", path: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run clusterrun in the folder, with this PYTHONPATH; without any if it is empty."""
    return subprocess.run(
        [*COMMANDS[command], *words],
        cwd=folder,
        env=plain_environment() | ({"PYTHONPATH": path} if path else {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("command", "path"), list(product(COMMANDS, ["", ".", ".:/tmp"])))
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_script_imports_its_neighbours(
    folder: Path, command: str, path: str, method: str
) -> None:
    """They have the names of our imports and folders. The launcher reads no job file there."""
    words = ("--nproc-per-node=1", f"--start-method={method}", "train.py")

    done = launch(folder, *words, command=command, path=path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["0", *["mine"] * len(MODULES)]


@pytest.mark.parametrize(("command", "path"), list(product(COMMANDS, ["", "."])))
def test_job_files_and_drawings_use_clusterruns_own_modules(
    folder: Path, command: str, path: str
) -> None:
    """Modules of the same names in the folder are not imported."""
    (folder / "job.yaml").write_text("script: train.py\n")

    read = launch(folder, "--config=job.yaml", "--dry-run", command=command, path=path)
    drawn = launch(folder, "topo", command=command, path=path)

    assert (read.returncode, read.stderr) == (0, "")
    assert (drawn.returncode, drawn.stderr) == (0, "")


def test_a_clusterrun_of_the_users_own(folder: Path) -> None:
    """The command starts, and its script imports the user's module, unless PYTHONPATH has it first.

    ``python -m clusterrun`` runs the user's, as ``python -m`` does with any name.
    """
    (folder / "clusterrun.py").write_text("WHOSE = 'mine'\nprint('a script')\n")
    (folder / "imports.py").write_text("import clusterrun\nprint(clusterrun.WHOSE)\n")
    words = ("--nproc-per-node=1", "imports.py")

    by_command = launch(folder, *words)
    by_module = launch(folder, *words, command="module")
    by_path = launch(folder, *words, path=".")

    assert (by_command.returncode, by_command.stdout) == (0, "a script\nmine\n")
    assert (by_module.returncode, by_module.stdout) == (0, "a script\n")
    assert by_path.returncode == 1
    assert "'clusterrun' is not a package" in by_path.stderr
