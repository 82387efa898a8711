"""Completion in real shells."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import COMMAND, plain_environment
from tests.contract.shell import BASH, Shell

PATH = f"{Path(COMMAND).parent}:{os.environ['PATH']}"

SHELLS = {"bash": BASH, "zsh": ("zsh", "--no-rcs", "-i"), "fish": ("fish", "--no-config", "-i")}

PREPARATIONS = {
    "bash": 'eval "$(clusterrun --print-completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(clusterrun --print-completion zsh)"',
    "fish": "clusterrun --print-completion fish | source",
}


@pytest.fixture(
    params=[
        "bash",
        pytest.param("zsh", marks=pytest.mark.needs("zsh")),
        pytest.param("fish", marks=pytest.mark.needs("fish")),
    ]
)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """Return a shell with completion of clusterrun, in a folder with one file."""
    (tmp_path / "training.py").write_text("print('trained')\n")
    shell = Shell(tmp_path, SHELLS[request.param], PATH=PATH, HOME=str(tmp_path))
    shell.type(f"{PREPARATIONS[request.param]}; echo pre''pared")
    shell.expect("prepared")
    yield shell
    shell.close()


def test_completion_of_a_command_line(shell: Shell) -> None:
    """Tab completes a flag, the value of a choice, a flag without a value, and a file.

    Then the line is run.
    """
    shell.type_keys("clusterrun --start-me\tspa\t--dry-r\ttrain\t")
    # The word is complete once it is on the line; a line may be redrawn meanwhile.
    shell.expect(r"training\.py")
    shell.type("")

    shell.expect(r"start_method\s+spawn\s+--start-method")


COMPLETIONS = {
    "bash": (
        'eval "$(clusterrun --print-completion bash)"; '
        "COMP_WORDS=(clusterrun {line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        r'_clusterrun_completion clusterrun 2>&1; printf "%s\n" "${{COMPREPLY[@]}}"'
    ),
    "fish": 'clusterrun --print-completion fish | source; complete -C"clusterrun {line}"',
}


@pytest.mark.parametrize("shell", ["bash", pytest.param("fish", marks=pytest.mark.needs("fish"))])
def test_completion_offers_commands_and_files(shell: str, tmp_path: Path) -> None:
    """The command topo and files; also a choice with a hyphen."""
    for name in ("tool.py", "topics.py", "data.txt"):
        (tmp_path / name).touch()
    asked = "; ".join(COMPLETIONS[shell].format(line=line) for line in ("to", "--numa-binding co"))

    done = subprocess.run(
        [shell, "-c", asked],
        cwd=tmp_path,
        env={**plain_environment(), "PATH": PATH, "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    offered = [line for line in done.stdout.splitlines() if "compopt" not in line]
    assert sorted(filter(None, offered)) == ["core-complex", "tool.py", "topics.py", "topo"]
