"""Command lines that cannot be split: exit code 2, what is wrong, what to type."""

import pytest

from tests.cli.door import (
    TOPICS,
    ExitCode,
    UsageError,
    run_command_line,
    split,
)
from tests.command_lines import flags_of

OF_SCRIPT = "an option of {0} goes after it:\n  clusterrun [OPTIONS] {0} {1}"

OF_ANY = "an option of the script goes after it:\n  clusterrun [OPTIONS] train.py {0}"


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("--nnode_s 1 x", "there is no option --nnode_s", "did you mean --nnodes?"),
        (
            "--npoc_per_node=2 x",
            "there is no option --npoc_per_node",
            "did you mean --nproc-per-node?",
        ),
        (
            "--versoin train.py",
            "there is no option --versoin",
            "did you mean --version?\n" + OF_SCRIPT.format("train.py", "--versoin"),
        ),
        ("--lr 0.1", "there is no option --lr", OF_ANY.format("--lr")),
        ("-z train", "there is no option -z", OF_ANY.format("-z")),
        ("--NNODES 2 train", "there is no option --NNODES", "did you mean --nnodes?"),
        ("--rdzv-id", "--rdzv-id needs a value", "type --rdzv-id ID"),
        ("-t", "-t needs a value", "type -t N|LOCALRANK:N,..."),
        (
            "--print-completion",
            "--print-completion needs a value",
            "type --print-completion SHELL",
        ),
        (
            "--rdzv_id --nnodes=1 train.py",
            "--rdzv-id needs a value, and --nnodes=1 is an option",
            "type --rdzv-id ID",
        ),
        ("--version=yes", "--version takes no value", "type --version alone"),
        (
            "--help nope",
            "there is no help on 'nope'",
            f"give one of {', '.join(TOPICS)}",
        ),
        (
            "--print-completion fsh",
            "--print-completion: 'fsh' is not a shell that clusterrun knows",
            "did you mean fish?",
        ),
    ],
)
def test_mistakes(line: str, message: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each mistake has its words and its way out."""
    code = run_command_line(line.split(), {})

    told = UsageError(message, hint).explain()
    assert (code, capsys.readouterr().err) == (ExitCode.USAGE, f"{told}\n")


@pytest.mark.parametrize("argv", [["--nproc-per-node", " "], ["-v", "--log-dir", " "]])
def test_a_blank_behind_a_backslash(argv: list[str]) -> None:
    """A shell takes it for the value, and ends the line there."""
    with pytest.raises(UsageError) as caught:
        split(argv)

    assert caught.value.message == f"{argv[-2]} needs a value, and has a blank"
    assert caught.value.hint.startswith("if it should continue the line, remove the blank after")


def test_a_blank_that_is_meant() -> None:
    """Before the script it is a value as any other."""
    line = split(["--log-line-prefix-template", " ", "train.py"])

    assert flags_of(line.options) == {"log_line_prefix_template": " "}
