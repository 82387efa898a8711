"""Options of clusterrun after SCRIPT go to the script, with a warning if that is unlikely to be meant."""

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
def test_a_script_that_knows_no_such_option(word: str) -> None:
    """The script's text nowhere has the name: this is a mistake."""
    assert warnings("x", word, "2", text="import torch\n") == (SURE.format(word),)


def test_a_script_that_may_know_it() -> None:
    """A launcher's option that the script's text has somewhere, in either spelling."""
    text = "# start with torchrun --nproc-per-node 8\n"

    assert warnings("--nproc_per_node=8", text=text) == (UNSURE.format("--nproc_per_node"),)


def test_an_everyday_option_that_the_script_knows() -> None:
    """``--config`` of a script that reads one needs no warning at each start."""
    assert warnings("--config", "c.json", text="parser.add_argument('--config')\n") == ()


def test_a_module_or_program_may_know_all_everyday_options() -> None:
    """Their text is unknown, so only options that few scripts have are warned about."""
    args = ("--config", "c.json", "--nnodes=2")

    for kind in (ProgramKind.MODULE, ProgramKind.EXECUTABLE):
        assert warnings(*args, kind=kind) == (UNSURE.format("--nnodes"),)


def test_a_blank_at_the_end() -> None:
    r"""For a shell, a blank after a \\ is an argument, and the line ends there."""
    assert warnings("--lr", "1", " ") == (
        (
            "the last argument of train.py is a blank; if the line should continue, remove the blank"
            " after the \\"
        ),
    )


def test_a_folder_is_not_read() -> None:
    """A folder with __main__.py has no one text."""
    Path("app").mkdir()
    program = WorkerProgram(ProgramKind.SCRIPT, "app", ("--config", "x"))

    assert tuple(misplaced_options(program)) == ()


@pytest.mark.parametrize("args", [(), ("--lr", "1"), ("-v",), ("nnodes",), ("--", "--nnodes", "2")])
def test_other_arguments_have_no_warning(args: tuple[str, ...]) -> None:
    """The script's own options, its other arguments, and all arguments after its own ``--``."""
    assert warnings(*args) == ()


def test_a_script_in_another_encoding() -> None:
    """Bytes that are not UTF-8 do not matter to names that are."""
    Path("train.py").write_bytes(b"# \xe4\xf6\n")

    program = WorkerProgram(ProgramKind.SCRIPT, "train.py", ("--nnodes", "2"))

    assert tuple(misplaced_options(program)) == (SURE.format("--nnodes"),)
