"""Warnings for options of clusterrun after SCRIPT, which go to the script."""

from pathlib import Path

import pytest
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.program import misplaced_options


def warnings(*args: str, text: str = "", kind: ProgramKind = ProgramKind.SCRIPT) -> tuple[str, ...]:
    """Return the warnings for a script with this text and these arguments."""
    Path("train.py").write_text(text)
    return tuple(misplaced_options(WorkerProgram(kind, "train.py", args)))


SURE = "{0} after train.py goes to train.py, which does not use it: put it before train.py"
UNSURE = "{0} after train.py goes to train.py; clusterrun's own {0} must come before it"


@pytest.mark.parametrize(
    ("args", "text", "kind", "expected"),
    [
        (("x", "--nnodes", "2"), "import torch\n", ProgramKind.SCRIPT, SURE.format("--nnodes")),
        (("--log-dir", "2"), "", ProgramKind.SCRIPT, SURE.format("--log-dir")),
        (("--nproc-per-node", "2"), "", ProgramKind.SCRIPT, SURE.format("--nproc-per-node")),
        (("--nproc_per_node", "2"), "", ProgramKind.SCRIPT, SURE.format("--nproc_per_node")),
        # The script's text has the option, with - or _.
        (
            ("--nproc_per_node=8",),
            "# start with torchrun --nproc-per-node 8\n",
            ProgramKind.SCRIPT,
            UNSURE.format("--nproc_per_node"),
        ),
        # Many scripts have --config.
        (("--config", "c.json"), "add_argument('--config')\n", ProgramKind.SCRIPT, None),
        # The text of a module or an executable is unknown.
        (("--config", "c", "--nnodes=2"), "", ProgramKind.MODULE, UNSURE.format("--nnodes")),
        (("--config", "c", "--nnodes=2"), "", ProgramKind.EXECUTABLE, UNSURE.format("--nnodes")),
        # The script's own options, other arguments, and arguments after a --.
        ((), "", ProgramKind.SCRIPT, None),
        (("--lr", "1"), "", ProgramKind.SCRIPT, None),
        (("-v",), "", ProgramKind.SCRIPT, None),
        (("nnodes",), "", ProgramKind.SCRIPT, None),
        (("--", "--nnodes", "2"), "", ProgramKind.SCRIPT, None),
    ],
)
def test_arguments_after_the_script(
    args: tuple[str, ...], text: str, kind: ProgramKind, expected: str | None
) -> None:
    assert warnings(*args, text=text, kind=kind) == ((expected,) if expected else ())


def test_blank_as_last_argument() -> None:
    """For a shell, a blank after a backslash is an argument, and the line ends there."""
    assert warnings("--lr", "1", " ") == (
        (
            "the last argument of train.py is a space; if the line should continue, remove the"
            " space after the \\"
        ),
    )


def test_script_without_a_text() -> None:
    """A folder with __main__.py has no single text; what is not UTF-8 is read nevertheless."""
    Path("app").mkdir()
    Path("odd.py").write_bytes(b"# \xe4\xf6\n")
    folder = WorkerProgram(ProgramKind.SCRIPT, "app", ("--config", "x"))
    odd = WorkerProgram(ProgramKind.SCRIPT, "odd.py", ("--nnodes", "2"))

    assert tuple(misplaced_options(folder)) == ()
    assert tuple(misplaced_options(odd)) == (SURE.format("--nnodes").replace("train", "odd"),)
