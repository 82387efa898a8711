"""The program of a command line."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.program import check_script
from msgspec.structs import replace

from tests.command_lines import Flags
from tests.described import PROCESS, describe

NOBODY = 65534
MODULE = {"module": True}
NO_PYTHON = {"no_python": True}
RUN_PATH = {"run_path": True}
NOWHERE = {"PATH": "/nowhere"}


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """Create typical files in the folder."""
    (folder / "train.py").write_text("print(1)\n")
    (folder / "tool").write_text("#!/usr/bin/env python3\n")
    (folder / "tool").chmod(0o755)
    (folder / "app").mkdir()
    (folder / "app/__main__.py").touch()
    (folder / "venv/bin").mkdir(parents=True)
    (folder / "venv/bin/python").touch(mode=0o755)


@pytest.mark.parametrize(
    ("flags", "words", "program"),
    [
        (
            {},
            ("train.py", "--lr", "1"),
            WorkerProgram(ProgramKind.SCRIPT, "train.py", ("--lr", "1")),
        ),
        ({}, ("app",), WorkerProgram(ProgramKind.SCRIPT, "app", ())),
        ({}, ("tool",), WorkerProgram(ProgramKind.SCRIPT, "tool", ())),
        (MODULE, ("pkg.train", "x"), WorkerProgram(ProgramKind.MODULE, "pkg.train", ("x",))),
        (NO_PYTHON, ("sh", "-c", ":"), WorkerProgram(ProgramKind.EXECUTABLE, "sh", ("-c", ":"))),
        ({}, ("-", "x"), WorkerProgram(ProgramKind.SCRIPT, "-", ("x",))),
        (RUN_PATH, ("app", "x"), WorkerProgram(ProgramKind.RUN_PATH, "app", ("x",))),
        (RUN_PATH | NO_PYTHON, ("tool",), WorkerProgram(ProgramKind.RUN_PATH, "tool", ())),
        (NO_PYTHON, ("./tool",), WorkerProgram(ProgramKind.EXECUTABLE, "./tool", ())),
    ],
)
def test_program_kinds(
    flags: Mapping[str, bool], words: tuple[str, ...], program: WorkerProgram
) -> None:
    assert describe(*words, flags=flags).job.setting("script") == Setting(program, "command line")


def test_torchrun_runs_a_package_as_a_script(folder: Path) -> None:
    """Clusterrun says to use -m instead."""
    (folder / "app/__init__.py").touch()
    process = replace(PROCESS, called="torchrun")

    script = describe("app", process=process).job.script

    assert script == WorkerProgram(ProgramKind.SCRIPT, "app", ())
    with pytest.raises(UsageError, match="app is a package, not a script"):
        describe("app")


@pytest.mark.parametrize("name", ["srun", "accelerate", "clusterrun", "run", "help"])
def test_file_with_the_name_of_a_command_is_a_script(folder: Path, name: str) -> None:
    (folder / name).write_text("print(1)\n")

    assert describe(name).job.script == WorkerProgram(ProgramKind.SCRIPT, name, ())


def test_unreadable_script_is_an_error(folder: Path) -> None:
    """A child process without root rights checks it."""
    folder.chmod(0o755)
    (folder / "train.py").chmod(0)
    child = os.fork()
    if not child:
        os._exit(error_for_nobody() != "train.py can't be read")

    _, status = os.waitpid(child, 0)

    assert status == 0


def error_for_nobody() -> str:
    """Return the error about train.py for a user without rights, which this process becomes."""
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    try:
        check_script(["train.py"], "", "")
    except UsageError as error:
        return error.message
    return ""


def test_program_is_found_on_path_of_env(folder: Path) -> None:
    """--env PATH replaces PATH; an empty item of it is the current folder."""
    named = describe("tool", flags={**NO_PYTHON, "env": (f"PATH={folder}",)})
    current = describe("tool", flags=NO_PYTHON, environ={"PATH": ":/nowhere"})

    assert named.job.script.name == current.job.script.name == "tool"


def test_interpreter_and_hook_are_found_on_path(folder: Path) -> None:
    """On PATH, or on that of --env."""
    flags: Flags = {"python": "python", "suspend_hook": "tool"}
    path = f"{folder}/venv/bin:{folder}"

    jobs = [
        describe("train.py", flags=flags, environ={"PATH": path}).job,
        describe("train.py", flags={**flags, "env": (f"PATH={path}",)}, environ=NOWHERE).job,
    ]

    for job in jobs:
        assert job.setting("python") == Setting(f"{folder}/venv/bin/python", "--python")
        assert job.suspending.suspend_hook == ("tool",)


@pytest.mark.parametrize(
    ("flags", "python_exec", "expected"),
    [
        ({}, "", Setting(sys.executable, "default")),
        ({}, "venv/bin/python", Setting("venv/bin/python", "PYTHON_EXEC")),
        ({"python": sys.executable}, "venv/bin/python", Setting(sys.executable, "--python")),
    ],
)
def test_python_exec_sets_the_interpreter(
    flags: Flags, python_exec: str, expected: Setting[str]
) -> None:
    """An empty variable counts as unset, and --python is stronger."""
    job = describe("train.py", flags=flags, environ={"PYTHON_EXEC": python_exec}).job

    assert job.setting("python") == expected
