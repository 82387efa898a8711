"""Which command a line names: topo, --help and others, or a job."""

from pathlib import Path

import pytest
from clusterrun.cli.commands import COMMANDS, Command, find_command, load_object
from clusterrun.errors import UsageError
from clusterrun.job.removed_options import REMOVED_COMMANDS

from tests.command_lines import flags_of
from tests.typed import typed


def named(*words: str) -> str:
    return find_command(words, "clusterrun")[0].word


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
def test_first_word_selects_the_command(words: tuple[str, ...], is_command: bool) -> None:
    """Not a path, a module or a program of that name, nor an argument."""
    assert (named(*words) == "topo") is is_command


def test_options_before_and_after_the_command() -> None:
    """What stands behind the word wins."""
    command, line = find_command(
        ["--nproc-per-node=2", "--json", "topo", "--nproc-per-node", "4"], "clusterrun"
    )

    assert command.word == "topo"
    assert flags_of(line.options) == {"nproc_per_node": "4", "json": True}
    assert line.words == ()


def test_torchrun_has_no_commands(folder: Path) -> None:
    """Called by that name, the word is a script's."""
    done = typed(["topo"], {}, folder, "torchrun")

    assert done.code == 2
    assert "topo does not exist" in done.err


@pytest.mark.parametrize("words", [("topo", "train.py"), ("topo", "--lr=1")])
def test_option_of_another_command_is_rejected(folder: Path, words: tuple[str, ...]) -> None:
    """With a file of that name there, it may be meant."""
    with pytest.raises(UsageError) as without:
        named(*words)
    (folder / "topo").touch()
    with pytest.raises(UsageError) as beside:
        named(*words)

    assert "./topo" not in without.value.hint
    assert beside.value.hint.endswith(
        f"to run the file topo instead:\n  clusterrun ./topo {words[1]}"
    )


@pytest.mark.parametrize(
    ("line", "begins"),
    [
        ("--help", "Usage: clusterrun [OPTIONS] SCRIPT [ARGS]...\n"),
        ("-h", "Usage: clusterrun [OPTIONS] SCRIPT [ARGS]...\n"),
        ("--nnodes 1 --help train.py", "Usage: clusterrun [OPTIONS] SCRIPT [ARGS]...\n"),
        ("--help --version", "Usage: clusterrun [OPTIONS] SCRIPT [ARGS]...\n"),
        ("--version train.py", "clusterrun 0."),
        ("topo --help", "Usage: clusterrun topo [OPTIONS]\n"),
        ("topo train.py -h", "Usage: clusterrun topo [OPTIONS]\n"),
        ("--help topo", "Usage: clusterrun topo [OPTIONS]\n"),
        ("topo --version", "clusterrun 0."),
        ("--version --help", "Usage: clusterrun [OPTIONS]"),
        ("--version --print-completion bash", "clusterrun 0."),
        ("--print-completion bash train.py", "_clusterrun_completion()"),
    ],
)
def test_printing_options_win(line: str, begins: str, folder: Path) -> None:
    """Asked for before SCRIPT or after a command, nothing else matters.

    The first of several is answered, in the order of help, not of the line.
    """
    done = typed(line.split(), {}, folder)

    assert done.code == 0
    assert done.out.startswith(begins)


@pytest.mark.parametrize("command", COMMANDS, ids=[command.word for command in COMMANDS])
def test_every_command_has_its_function(command: Command) -> None:
    """It takes the command line, the environment and the program's name; a job's also its caller."""
    function = load_object(command.function)
    assert function.__code__.co_argcount - len(function.__defaults__ or ()) == 3
    assert set(command.own_rows) <= set(command.rows)
    assert not set(command.own_rows) & set(command.takes)


def test_a_command_takes_its_own_options_and_some_of_a_job() -> None:
    """On either side of its word, and no other option of a job."""
    command, line = find_command(["--json", "stop", "--now"], "clusterrun")
    with pytest.raises(UsageError) as before:
        find_command(["--nnodes", "2", "ps"], "clusterrun")
    with pytest.raises(UsageError) as after:
        find_command(["ps", "--nnodes", "2"], "clusterrun")

    assert command.word == "stop"
    assert {name: texts[-1].value for name, texts in line.options.items()} == {
        "json": "true",
        "now": "true",
    }
    assert before.value.message == "clusterrun ps has no option --nnodes"
    assert after.value.message == "there is no option --nnodes"


@pytest.mark.parametrize("word", sorted(REMOVED_COMMANDS))
@pytest.mark.parametrize("line", ["WORD", "WORD RUN -x", "--json WORD", "WORD --help"])
def test_a_command_that_was_removed(word: str, line: str, folder: Path) -> None:
    """Its word is answered, unless it can be a script: a file, --run-path, or torchrun's SCRIPT."""
    words = line.replace("WORD", word).split()
    there_is_none = (
        f"clusterrun: error: there is no command {word} any more\n  {REMOVED_COMMANDS[word]}\n"
    )

    assert typed(words, {}, folder) == (2, "", there_is_none)
    assert f"{word} does not exist" in typed(words, {}, folder, "torchrun").err
    assert "any more" not in typed(["--run-path", *words], {}, folder).err
    (folder / word).mkdir()
    assert typed(words, {}, folder).err == there_is_none
    (folder / word).rmdir()
    (folder / word).write_text("#!/bin/sh\n")
    assert f"{word} is not a Python script" in typed(words, {}, folder).err
