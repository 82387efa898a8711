"""Which command a line names: topo, --help and others, or a job."""

from pathlib import Path

import pytest

from tests.cli.door import (
    COMMANDS,
    HELP,
    JSON,
    RUN,
    TOPO,
    VERSION,
    Command,
    UsageError,
    find_command,
    run_command_line,
    switch_option,
)


def named(*words: str) -> Command:
    return find_command(words, "clusterrun")[0]


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
def test_the_word_alone_is_the_command(words: tuple[str, ...], is_command: bool) -> None:
    """Not a path, a module or a program of that name, nor an argument."""
    assert (named(*words) is TOPO) is is_command


def test_options_stand_on_either_side() -> None:
    """What stands behind the word wins."""
    command, line = find_command(
        ["--nproc-per-node=2", "--json", "topo", "--nproc-per-node", "4"], "clusterrun"
    )

    assert command is TOPO
    assert line.flags == {"nproc_per_node": "4", "json": True}
    assert line.words == ()


def test_torchrun_has_no_such_command(capfd: pytest.CaptureFixture[str]) -> None:
    """Called by that name, the word is a script's."""
    code = run_command_line(["topo"], {}, "torchrun")

    assert code == 2
    assert "topo does not exist" in capfd.readouterr().err


@pytest.mark.parametrize("words", [("topo", "train.py"), ("topo", "--lr=1")])
def test_what_is_none_of_its_options(folder: Path, words: tuple[str, ...]) -> None:
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
    ],
)
def test_what_prints_and_ends(line: str, begins: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for before SCRIPT or after a command, nothing else matters."""
    code = run_command_line(line.split(), {})

    assert code == 0
    assert capsys.readouterr().out.startswith(begins)


def test_the_first_flag_of_several_is_answered() -> None:
    """In the table's order, not the line's."""
    assert named("--version", "--help") is HELP
    assert named("--version", "--print-completion", "bash") is VERSION
    assert named("--json") is RUN


@pytest.mark.parametrize("command", COMMANDS, ids=[command.name for command in COMMANDS])
def test_every_command_has_its_module(command: Command) -> None:
    """Its function takes the command line, the environment and the program's name."""
    assert command.load().__code__.co_argcount == 3


def test_a_command_with_options_of_its_own() -> None:
    """It takes those after its word, and no other option of a job."""
    follow = switch_option("follow", help="An option for a test")
    commands = {"ps": Command("ps", "A command for a test", options=(follow, JSON))}

    command, line = find_command(["--json", "ps", "--follow"], "clusterrun", commands)
    with pytest.raises(UsageError) as before:
        find_command(["--nnodes", "2", "ps"], "clusterrun", commands)
    with pytest.raises(UsageError) as after:
        find_command(["ps", "--nnodes", "2"], "clusterrun", commands)

    assert command is commands["ps"]
    assert line.flags == {"json": True, "follow": True}
    assert before.value.message == "clusterrun ps has no option --nnodes"
    assert after.value.message == "there is no option --nnodes"
