"""Warnings for options of clusterrun after SCRIPT, which go to the script."""

from pathlib import Path

import pytest
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.program import misplaced_options


def warnings(*args: str, text: str = "", kind: ProgramKind = ProgramKind.SCRIPT) -> tuple[str, ...]:
    """Return the warnings for a script with this text and these arguments."""
    Path("train.py").write_text(text)
    return tuple(misplaced_options(WorkerProgram(kind, "train.py", args)))


SURE = "{0} after train.py goes to train.py, which does not use it: type it before train.py"
UNSURE = "{0} after train.py goes to train.py; clusterrun's own {0} must come before it"


@pytest.mark.parametrize("word", ["--nnodes", "--nproc-per-node", "--nproc_per_node", "--log-dir"])
def test_option_that_is_not_in_the_script(word: str) -> None:
    assert warnings("x", word, "2", text="import torch\n") == (SURE.format(word),)


def test_option_that_is_in_the_script() -> None:
    """The spelling with - or _ does not matter."""
    text = "# start with torchrun --nproc-per-node 8\n"

    assert warnings("--nproc_per_node=8", text=text) == (UNSURE.format("--nproc_per_node"),)


def test_common_option_that_is_in_the_script() -> None:
    """Many scripts have --config, so there is no warning."""
    assert warnings("--config", "c.json", text="parser.add_argument('--config')\n") == ()


def test_common_option_of_a_module_or_executable() -> None:
    """Its text is unknown, so only uncommon options cause a warning."""
    args = ("--config", "c.json", "--nnodes=2")

    for kind in (ProgramKind.MODULE, ProgramKind.EXECUTABLE):
        assert warnings(*args, kind=kind) == (UNSURE.format("--nnodes"),)


def test_blank_as_last_argument() -> None:
    """For a shell, a blank after a backslash is an argument, and the line ends there."""
    assert warnings("--lr", "1", " ") == (
        (
            "the last argument of train.py is a blank; if the line should continue, remove the blank"
            " after the \\"
        ),
    )


def test_folder_as_script() -> None:
    """A folder with __main__.py has no single text."""
    Path("app").mkdir()
    program = WorkerProgram(ProgramKind.SCRIPT, "app", ("--config", "x"))

    assert tuple(misplaced_options(program)) == ()


@pytest.mark.parametrize("args", [(), ("--lr", "1"), ("-v",), ("nnodes",), ("--", "--nnodes", "2")])
def test_other_arguments(args: tuple[str, ...]) -> None:
    """The script's own options, other arguments, and arguments after a -- cause no warning."""
    assert warnings(*args) == ()


def test_script_that_is_not_utf_8() -> None:
    Path("train.py").write_bytes(b"# \xe4\xf6\n")

    program = WorkerProgram(ProgramKind.SCRIPT, "train.py", ("--nnodes", "2"))

    assert tuple(misplaced_options(program)) == (SURE.format("--nnodes"),)
