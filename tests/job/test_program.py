"""The program that a command line names, and the errors for common mistakes."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.command_lines import Flags
from tests.described import describe, mistake
from tests.job.door import (
    Fact,
    Program,
    ProgramKind,
    UsageError,
    check_script,
)

NOBODY = 65534
MODULE = {"module": True}
NO_PYTHON = {"no_python": True}
RUN_PATH = {"run_path": True}


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    """Fill the folder with typical files."""
    (folder / "train.py").write_text("print(1)\n")
    (folder / "plain.sh").write_text("echo 1\n")
    (folder / "tool").write_text("#!/usr/bin/env python3\n")
    (folder / "tool").chmod(0o755)
    (folder / "binary").write_bytes(b"\x7fELF\x02\x01")
    (folder / "job.yaml").write_text("script: train.py\n")
    (folder / "digits.ipynb").write_text('{"cells": []}')
    (folder / "src").mkdir()
    (folder / "src/main.py").touch()
    (folder / "app").mkdir()
    (folder / "app/__main__.py").touch()
    (folder / "venv/bin").mkdir(parents=True)
    (folder / "venv/bin/python").touch(mode=0o755)


@pytest.mark.parametrize(
    ("flags", "words", "program"),
    [
        ({}, ("train.py", "--lr", "1"), Program(ProgramKind.SCRIPT, "train.py", ("--lr", "1"))),
        ({}, ("app",), Program(ProgramKind.SCRIPT, "app", ())),
        ({}, ("tool",), Program(ProgramKind.SCRIPT, "tool", ())),
        (MODULE, ("pkg.train", "x"), Program(ProgramKind.MODULE, "pkg.train", ("x",))),
        (NO_PYTHON, ("sh", "-c", ":"), Program(ProgramKind.EXECUTABLE, "sh", ("-c", ":"))),
        ({}, ("-", "x"), Program(ProgramKind.SCRIPT, "-", ("x",))),
        (RUN_PATH, ("app", "x"), Program(ProgramKind.RUN_PATH, "app", ("x",))),
        (RUN_PATH | NO_PYTHON, ("tool",), Program(ProgramKind.RUN_PATH, "tool", ())),
        (NO_PYTHON, ("./tool",), Program(ProgramKind.EXECUTABLE, "./tool", ())),
    ],
)
def test_programs(flags: Mapping[str, bool], words: tuple[str, ...], program: Program) -> None:
    """Scripts, folders that run, modules, and programs by name and by path."""
    assert describe(*words, flags=flags).job.fact("program") == Fact(program, "command line")


MISSING = [
    (("nowhere/x.py",), "nowhere/x.py does not exist", ""),
    (("TRAIN.py",), "TRAIN.py does not exist", "did you mean train.py?"),
    (
        ("~/train.py",),
        "~/train.py begins with ~, which only a shell expands",
        "write the path in full",
    ),
    (
        (" ",),
        "the name of the script is a blank",
        "if it should continue the line, remove the blank after the \\",
    ),
    *(
        (
            (f"{dash}{name}", "2", "train.py"),
            f"{dash}{name} begins with {dash} ({code}) instead of -",
            f"type {option}",
        )
        for dash, name, code, option in [
            ("\u2013", "nproc-per-node", "U+2013", "--nproc-per-node"),
            ("\u2014", "max-restarts=1", "U+2014", "--max-restarts=1"),
            ("\u2212", "m", "U+2212", "-m"),
            ("\u2010", "\u2010log\u2010dir", "U+2010", "--log-dir"),
        ]
    ),
    *(
        (
            tuple(words.split()),
            f"{words.split()[0]} does not exist",
            f"for clusterrun's own {words.split()[0]}:\n  {line}",
        )
        for words, line in [
            ("help", "clusterrun --help"),
            ("help placing", "clusterrun --help placing"),
            ("version", "clusterrun --version"),
        ]
    ),
    *(
        (
            tuple(words.split()),
            f"{words.split()[0]} does not exist",
            f"leave {words.split()[0]} out:\n  clusterrun [OPTIONS] {rest}",
        )
        for words, rest in [
            ("exec train.py --lr 1", "train.py --lr 1"),
            ("launch train.py", "train.py"),
            ("start", "train.py"),
        ]
    ),
]

PYTHON_FIRST = (
    "leave it out; --python sets the workers' interpreter:\n"
    "  clusterrun [OPTIONS] {without}\n"
    "or run it as a program:\n"
    "  clusterrun [OPTIONS] --no-python {words}"
)

UNFIT = [
    *(
        (
            tuple(words.split()),
            f"{words.split()[0]} is an interpreter, not a script",
            PYTHON_FIRST.format(without=without, words=words),
        )
        for words, without in [
            ("python3.11 -u train.py", "train.py"),
            ("/usr/bin/python3 -m pkg.train x", "-m pkg.train x"),
            ("pypy3", "SCRIPT"),
        ]
    ),
    *(
        (
            tuple(words.split()),
            f"{launcher} is a launcher, not a script",
            "leave it out; clusterrun takes the same options:\n  clusterrun [OPTIONS] " + line,
        )
        for words, launcher, line in [
            (
                "python3.8 -u -m torch.distributed.launch --use_env train.py",
                "torch.distributed.launch",
                "--use_env train.py",
            ),
            ("python -m torch.distributed.run train.py", "torch.distributed.run", "train.py"),
            ("/opt/bin/torchrun --standalone x.py", "/opt/bin/torchrun", "--standalone x.py"),
        ]
    ),
    *(
        (
            tuple(words.split()),
            f"{words.split()[0]} must come before clusterrun",
            f"type:\n  {line}",
        )
        for words, line in [
            ("srun train.py", "srun clusterrun [OPTIONS] train.py"),
            ("srun -N2 train.py --lr 1", "srun -N2 clusterrun [OPTIONS] train.py --lr 1"),
            ("/bin/srun -m pkg.train", "/bin/srun clusterrun [OPTIONS] -m pkg.train"),
            ("mpirun -np 2 python train.py", "mpirun -np 2 clusterrun [OPTIONS] train.py"),
            ("mpiexec -n 2", "mpiexec -n 2 clusterrun [OPTIONS] train.py"),
        ]
    ),
    *(
        (
            tuple(words.split()),
            f"{words.split()[0]} is a launcher, not a script",
            f"leave it and its options out:\n  clusterrun [OPTIONS] {line}",
        )
        for words, line in [
            ("accelerate launch --num_processes 2 train.py --lr 1", "train.py --lr 1"),
            ("deepspeed --num_gpus 2 train.py", "train.py"),
        ]
    ),
    (
        ("clusterrun", "--nnodes", "1", "train.py"),
        "clusterrun is a launcher, not a script",
        (
            "leave it out; clusterrun takes the same options:\n"
            "  clusterrun [OPTIONS] --nnodes 1 train.py"
        ),
    ),
    (
        ("job.yaml",),
        "job.yaml is not a Python script: it is YAML",
        "if it is a job file:\n  clusterrun [OPTIONS] --config job.yaml",
    ),
    (
        ("job.yaml", "--lr", "1"),
        "job.yaml is not a Python script: it is YAML",
        ("if it is an argument of the script:\n  clusterrun [OPTIONS] train.py job.yaml --lr 1"),
    ),
    (
        ("digits.ipynb",),
        "digits.ipynb is not a Python script: it is a notebook",
        (
            "convert it to a script:\n  jupyter nbconvert --to script digits.ipynb\n"
            "  clusterrun [OPTIONS] digits.py"
        ),
    ),
    (("src",), "src is a folder without __main__.py", "did you mean src/main.py?"),
    (
        ("plain.sh",),
        "plain.sh is not a Python script: it is a shell script",
        "run it as a program:\n  clusterrun [OPTIONS] --no-python bash plain.sh",
    ),
    (
        ("./binary",),
        "./binary is not a Python script: it is a compiled program",
        "run it as a program:\n  chmod +x ./binary\n  clusterrun [OPTIONS] --no-python ./binary",
    ),
]


@pytest.mark.parametrize(("words", "message", "hint"), [*MISSING, *UNFIT])
def test_scripts_that_cannot_run(words: tuple[str, ...], message: str, hint: str) -> None:
    """What was given as SCRIPT is none."""
    assert mistake(*words) == (message, hint)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"nnodes": "2", "master_addr": "n0"}, "nnodes is 2 (--nnodes)"),
        ({"max_restarts": "1"}, "max_restarts is 1 (--max-restarts)"),
        ({"start_method": "fork"}, "start_method is fork (--start-method)"),
    ],
)
def test_a_script_that_several_would_read(flags: Mapping[str, str], why: str) -> None:
    """All but the first would find standard input at its end, and succeed having done nothing."""
    assert mistake("-", flags=flags) == (
        f"a script on standard input (-) can be read by one worker only, once, but {why}",
        "save it to a file, and give the file",
    )


@pytest.mark.parametrize("name", ["srun", "accelerate", "clusterrun", "run", "help"])
def test_a_script_with_the_name_of_a_command(folder: Path, name: str) -> None:
    """What is here by that name is what is meant."""
    (folder / name).write_text("print(1)\n")

    assert describe(name).job.program == Program(ProgramKind.SCRIPT, name, ())


def test_a_script_that_is_not_ours_to_read(folder: Path) -> None:
    """The user who starts the job must be able to read it; root can read all files."""
    folder.chmod(0o755)
    (folder / "train.py").chmod(0)
    child = os.fork()
    if not child:
        os._exit(complaint_to_nobody() != "train.py cannot be read")

    _, status = os.waitpid(child, 0)

    assert status == 0


def complaint_to_nobody() -> str:
    """Return the error about train.py for a user without rights, which this process becomes."""
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    try:
        check_script(["train.py"], "", "")
    except UsageError as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    ("name", "dotted"), [("./src/main.py", "src.main"), ("src/main", "src.main")]
)
def test_module_given_as_a_path(name: str, dotted: str) -> None:
    """Both ways out are there to copy."""
    assert mistake(name, flags=MODULE) == (
        f"{name} is a path, not the name of a module",
        (
            f"for the module:\n  clusterrun [OPTIONS] -m {dotted}\n"
            f"for the script:\n  clusterrun [OPTIONS] {name}"
        ),
    )


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("", "the name of the program is empty", "give the path of a program"),
        ("./nowhere", "./nowhere does not exist", "give the path of a program"),
        (
            "./train.py",
            "./train.py is not executable",
            "for a Python script, leave out --no-python:\n  clusterrun [OPTIONS] ./train.py",
        ),
    ],
)
def test_programs_that_cannot_run(name: str, message: str, hint: str) -> None:
    """What was given after ``--no-python`` is no program."""
    assert mistake(name, flags=NO_PYTHON) == (message, hint)


def test_a_program_is_found_on_the_jobs_path(folder: Path) -> None:
    """``--env PATH`` holds for the search too; an empty part of it is the current folder."""
    named = describe("tool", flags={**NO_PYTHON, "env": (f"PATH={folder}",)})
    current = describe("tool", flags=NO_PYTHON, environ={"PATH": ":/nowhere"})

    assert named.job.program.name == current.job.program.name == "tool"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        (
            "/no/python",
            "--python: /no/python does not exist",
            "give the path of a Python, such as /usr/bin/python3",
        ),
        (
            "./venv/bin/pyton",
            "--python: ./venv/bin/pyton does not exist",
            "did you mean ./venv/bin/python?",
        ),
    ],
)
def test_interpreters_that_cannot_run(name: str, message: str, hint: str) -> None:
    """What was given to ``--python`` is no program."""
    assert mistake("train.py", flags={"python": name}) == (message, hint)


def test_interpreter_by_name(folder: Path) -> None:
    """A name is looked up on PATH, and the path that was found is what counts."""
    job = describe("train.py", flags={"python": "python"}, environ={"PATH": f"{folder}/venv/bin"})

    assert job.job.fact("python") == Fact(f"{folder}/venv/bin/python", "--python")


def test_interpreter_and_hook_are_found_on_the_jobs_path(folder: Path) -> None:
    """``--env PATH`` holds for all that the job runs, not only for its program."""
    flags: Flags = {
        "python": "python",
        "suspend_hook": "tool",
        "env": (f"PATH={folder}/venv/bin:{folder}",),
    }

    job = describe("train.py", flags=flags, environ={"PATH": "/nowhere"}).job

    assert job.python == f"{folder}/venv/bin/python"
    assert job.suspending.suspend_hook == ("tool",)


def test_interpreter_by_default() -> None:
    """PYTHON_EXEC beats our own, an empty one does not, and a flag beats both."""
    here, there = sys.executable, "venv/bin/python"

    assert describe("train.py").job.fact("python") == Fact(here, "default")
    assert describe("train.py", environ={"PYTHON_EXEC": ""}).job.fact("python") == Fact(
        here, "default"
    )
    assert describe("train.py", environ={"PYTHON_EXEC": there}).job.fact("python") == Fact(
        there, "PYTHON_EXEC"
    )
    assert describe("train.py", flags={"python": here}, environ={"PYTHON_EXEC": there}).job.fact(
        "python"
    ) == Fact(here, "--python")
