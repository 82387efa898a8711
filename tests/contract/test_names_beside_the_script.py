"""Files of the user with names that clusterrun uses: the script imports them, clusterrun does not.

A ``clusterrun.py`` beside the script is like a ``torch.py`` there: an import of the name gets it.
"""

import sys
from itertools import product

import pytest

from tests.contract.launched import COMMAND, Ended, Launcher

MODULES = ("click", "msgspec", "psutil", "yaml", "launcher", "cli", "run")

SCRIPT = """
import os, sys
names = [{names}]
print(os.environ["RANK"], *(sys.modules[name].OWNER for name in names))
"""

COMMANDS = {"command": [COMMAND], "module": [sys.executable, "-m", "clusterrun"]}


@pytest.fixture
def beside(clusterrun: Launcher) -> Launcher:
    """Return a launcher in a folder with a script, and modules and files whose names clusterrun uses."""
    folder = clusterrun.folder
    for name in (*MODULES, "topo"):
        (folder / f"{name}.py").write_text("OWNER = 'user'\n")
    (folder / "launcher").mkdir()
    (folder / "launcher/__init__.py").write_text("OWNER = 'user'\n")
    (folder / "clusterrun.yaml").write_text("nnodes: 7\n")
    (folder / "topo").write_text("not to be run\n")
    names = ", ".join(map(repr, MODULES))
    imports = "".join(f"import {name}\n" for name in MODULES)
    (folder / "train.py").write_text(imports + SCRIPT.format(names=names))
    return clusterrun


def launch(beside: Launcher, *words: str, command: str = "command", path: str = "") -> Ended:
    """Run clusterrun in the folder, with this PYTHONPATH if it is not empty."""
    beside.program, *before = COMMANDS[command]
    environ = {"PYTHONPATH": path} if path else {}
    return beside.command(*before, *words, environ=environ).ended()


@pytest.mark.parametrize(("command", "path"), list(product(COMMANDS, ["", ".", ".:/tmp"])))
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_script_imports_modules_beside_it(
    beside: Launcher, command: str, path: str, method: str
) -> None:
    """The launcher reads no job file of that folder."""
    words = ("--nproc-per-node=1", f"--start-method={method}", "train.py")

    done = launch(beside, *words, command=command, path=path)

    assert (done.code, done.err) == (0, "")
    assert done.out.split() == ["0", *["user"] * len(MODULES)]


@pytest.mark.parametrize(("command", "path"), list(product(COMMANDS, ["", "."])))
def test_clusterrun_imports_its_own_modules(beside: Launcher, command: str, path: str) -> None:
    (beside.folder / "job.yaml").write_text("script: train.py\n")

    read = launch(beside, "--config=job.yaml", "--dry-run", command=command, path=path)
    drawn = launch(beside, "topo", command=command, path=path)

    assert (read.code, read.err) == (0, "")
    assert (drawn.code, drawn.err) == (0, "")


@pytest.mark.parametrize("path", ["", "."])
@pytest.mark.parametrize("words", ["train.py", "-m train"])
def test_user_module_called_warnings(beside: Launcher, words: str, path: str) -> None:
    """Workers start, although ``os`` imports ``warnings`` to execute their program."""
    (beside.folder / "warnings.py").write_text("OWNER = 'user'\n")
    (beside.folder / "train.py").write_text("import warnings\nprint(warnings.OWNER)\n")

    done = launch(beside, "--nproc-per-node=1", *words.split(), path=path)

    assert (done.code, done.out, done.err) == (0, "user\n", "")


def test_user_module_called_clusterrun(beside: Launcher) -> None:
    """The command runs, unless PYTHONPATH has the module. ``python -m clusterrun`` runs the module."""
    (beside.folder / "clusterrun.py").write_text("OWNER = 'user'\nprint('a script')\n")
    (beside.folder / "imports.py").write_text("import clusterrun\nprint(clusterrun.OWNER)\n")
    words = ("--nproc-per-node=1", "imports.py")

    by_command = launch(beside, *words)
    by_module = launch(beside, *words, command="module")
    by_path = launch(beside, *words, path=".")

    assert (by_command.code, by_command.out) == (0, "a script\nuser\n")
    assert (by_module.code, by_module.out) == (0, "a script\n")
    assert by_path.code == 1
    assert "'clusterrun' is not a package" in by_path.err
