"""Completion by the shells themselves, at a terminal."""

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import COMMAND, MARK, SECONDS_TO_ACT, kill_marked, plain_environment

SHELLS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "--no-rcs", "-i"),
    "fish": ("fish", "--no-config", "-i"),
}

PREPARATIONS = {
    "bash": 'eval "$(clusterrun --print-completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(clusterrun --print-completion zsh)"',
    "fish": "clusterrun --print-completion fish | source",
}


class Typist:
    """A shell on a pseudo terminal, and what is typed there; its owner calls ``close``."""

    def __init__(self, shell: str, folder: Path) -> None:
        """Start it in ``folder``."""
        self.mark = f"completion-{os.getpid()}-{time.monotonic_ns()}"
        self.read = ""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            environment = plain_environment()
            path = f"{Path(COMMAND).parent}:{environment['PATH']}"
            more = {"PATH": path, "HOME": str(folder), "TERM": "dumb", MARK: self.mark}
            os.execvpe(SHELLS[shell][0], SHELLS[shell], environment | more)

    def type(self, keys: str) -> None:
        """Type keys, as they are."""
        os.write(self.descriptor, keys.encode())

    def expect(self, pattern: str) -> None:
        """Wait until ``pattern`` shows in what has not been looked at."""
        deadline = time.monotonic() + SECONDS_TO_ACT
        while not (found := re.search(pattern, self.read)):
            ready, _, _ = select.select([self.descriptor], [], [], deadline - time.monotonic())
            assert ready, f"no {pattern!r} in time:\n{self.read}"
            self.read += os.read(self.descriptor, 1 << 16).decode(errors="replace")
        self.read = self.read[found.end() :]

    def close(self) -> None:
        """End the shell."""
        kill_marked(self.mark)
        os.waitpid(self.pid, 0)
        os.close(self.descriptor)


@pytest.fixture(
    params=[
        "bash",
        pytest.param("zsh", marks=pytest.mark.needs("zsh")),
        pytest.param("fish", marks=pytest.mark.needs("fish")),
    ]
)
def typist(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Typist]:
    """Return a shell that knows how to complete our options, in a folder with one file."""
    (tmp_path / "training.py").write_text("print('trained')\n")
    typist = Typist(request.param, tmp_path)
    typist.type(f"{PREPARATIONS[request.param]}; echo pre''pared\r")
    typist.expect("prepared")
    yield typist
    typist.close()


def test_a_whole_line_is_completed(typist: Typist) -> None:
    """A flag, a word of a choice, a flag without a value and a file, by four presses of Tab.

    The line then does what it says.
    """
    typist.type("clusterrun --start-me\tspa\t--dry-r\ttrain\t")
    # Once it stands there, it is complete; a line may be redrawn meanwhile.
    typist.expect(r"training\.py")
    typist.type("\r")

    typist.expect(r"start_method\s+spawn\s+--start-method")


ASKS = {
    "bash": (
        'eval "$(clusterrun --print-completion bash)"; '
        "COMP_WORDS=(clusterrun {line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        r'_clusterrun_completion clusterrun 2>&1; printf "%s\n" "${{COMPREPLY[@]}}"'
    ),
    "fish": 'clusterrun --print-completion fish | source; complete -C"clusterrun {line}"',
}


@pytest.mark.parametrize("shell", ["bash", pytest.param("fish", marks=pytest.mark.needs("fish"))])
def test_words_and_files_at_one_place(shell: str, tmp_path: Path) -> None:
    """A command of ours stands beside the files, and a choice may have a - in it."""
    for name in ("tool.py", "topics.py", "data.txt"):
        (tmp_path / name).touch()
    path = f"{Path(COMMAND).parent}:{os.environ['PATH']}"
    asked = "; ".join(ASKS[shell].format(line=line) for line in ("to", "--numa-binding co"))

    done = subprocess.run(
        [shell, "-c", asked],
        cwd=tmp_path,
        env={**plain_environment(), "PATH": path, "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    offered = [line for line in done.stdout.splitlines() if "compopt" not in line]
    assert sorted(filter(None, offered)) == ["core-complex", "tool.py", "topics.py", "topo"]
