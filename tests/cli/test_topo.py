"""The word ``topo``, and what stands before and behind it."""

from pathlib import Path

import pytest
from clusterrun.cli.options import Answer, names_topo, parse
from clusterrun.cli.run import run
from clusterrun.cli.topo import options_of_topo
from clusterrun.errors import UsageError
from clusterrun.sources.command_line import CommandLine
from clusterrun.sources.settings import Flags


def line(*words: str) -> CommandLine:
    """Return a command line, split."""
    found = parse(words)
    assert isinstance(found, CommandLine)
    return found


def options(*words: str) -> Flags:
    """Return the options of a command line of topo."""
    found = options_of_topo(line(*words))
    assert not isinstance(found, Answer)
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "is_command"),
    [
        (("topo",), True),
        (("--nproc-per-node", "2", "topo", "--json"), True),
        (("./topo",), False),
        (("topo.py",), False),
        (("-m", "topo"), False),
        (("--no-python", "topo"), False),
        (("--run-path", "topo"), False),
        (("train.py", "topo"), False),
        ((), False),
    ],
)
def test_the_word_alone_is_the_command(words: tuple[str, ...], is_command: bool) -> None:  # noqa: FBT001 - a row's last column
    """Not a path, a module or a program of that name, nor an argument."""
    assert names_topo(line(*words)) is is_command


def test_options_stand_on_either_side() -> None:
    """What stands behind the word wins."""
    assert options("--nproc-per-node=2", "--json", "topo", "--nproc-per-node", "4") == {
        "nproc_per_node": "4",
        "json": True,
    }


def test_torchrun_has_no_such_command(capfd: pytest.CaptureFixture[str]) -> None:
    """Called by that name, the word is a script's."""
    code = run(["topo"], {}, "torchrun")

    assert code == 2
    assert "topo does not exist" in capfd.readouterr().err


@pytest.mark.parametrize("words", [("topo", "train.py"), ("topo", "--lr=1")])
def test_what_is_none_of_its_options(folder: Path, words: tuple[str, ...]) -> None:
    """With a file of that name there, it may be meant."""
    with pytest.raises(UsageError) as without:
        options_of_topo(line(*words))
    (folder / "topo").touch()
    with pytest.raises(UsageError) as beside:
        options_of_topo(line(*words))

    assert "./topo" not in without.value.hint
    assert beside.value.hint.endswith(
        f"to run the file topo instead:\n  clusterrun ./topo {words[1]}"
    )


@pytest.mark.parametrize(
    ("flag", "begins"), [("--help", "Usage: clusterrun topo"), ("--version", "clusterrun ")]
)
def test_its_answers(flag: str, begins: str) -> None:
    """Help of its own, the version of the whole."""
    found = options_of_topo(line("topo", flag))

    assert isinstance(found, Answer)
    assert found.text.startswith(begins)
