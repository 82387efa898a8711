"""py-spy as a child of an agent runs it: what it prints of each rank, or why it prints nothing."""

import time
from pathlib import Path

import pytest
from clusterrun.policy.stacks import StackGroup
from clusterrun.workers.native_stacks import MAX_PER_NODE, TRUNCATED, native_stacks
from clusterrun.workers.py_spy import py_spy_program

pytestmark = pytest.mark.usefixtures("no_child_left")

PIDS = {4: 104, 5: 105}


class Installed:
    """A py-spy that is a script of the test."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "py-spy"

    def writes(self, script: str, shell: str = "/bin/sh") -> None:
        """Install it."""
        # Another file: the kernel writes to none that is just being executed.
        written = self.program.with_name("written")
        written.write_text(f"#!{shell}\n{script}\n")
        written.chmod(0o755)
        written.rename(self.program)

    def stacks(self, seconds: float = 30.0) -> tuple[StackGroup, ...]:
        """Return what it prints of two ranks."""
        return native_stacks(self.program, PIDS, seconds)


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def test_where_py_spy_is_found(installed: Installed, tmp_path: Path) -> None:
    """On the agent's PATH, or else beside its Python."""
    beside, empty = tmp_path / "python", {"PATH": "/nowhere"}
    assert py_spy_program(empty, beside) is None
    installed.writes("exit")

    assert py_spy_program(empty, beside) == installed.program
    assert py_spy_program({"PATH": str(tmp_path)}, Path("/python")) == installed.program


def test_what_it_prints_of_each_rank(installed: Installed) -> None:
    installed.writes('echo "$@"; echo warning >&2')

    assert installed.stacks() == (
        StackGroup((4,), "dump --native --locals --pid 104", found=True),
        StackGroup((5,), "dump --native --locals --pid 105", found=True),
    )


@pytest.mark.parametrize(
    ("script", "shell", "why"),
    [
        ("echo denied >&2; exit 1", "/bin/sh", "denied"),
        ("exit 1", "/bin/sh", "py-spy has printed nothing"),
        ("", "/no/such/shell", "py-spy can't be executed: No such file or directory"),
    ],
)
def test_why_a_stack_is_missing(installed: Installed, script: str, shell: str, why: str) -> None:
    installed.writes(script, shell)

    assert [(each.text, each.found) for each in installed.stacks()] == [(why, False)] * 2


def test_one_that_hangs_is_ended(installed: Installed) -> None:
    """All of them together have this time; what it has printed by then is shown."""
    installed.writes("echo Thread 1; echo no symbols >&2; exec sleep 600")
    began = time.monotonic()
    late = installed.stacks(seconds=1.0)

    assert time.monotonic() - began < 20.0
    assert [each.text for each in late] == ["Thread 1\npy-spy took longer than 1 s"] * 2


def test_a_long_answer_is_cut(installed: Installed) -> None:
    """Its beginning is kept; characters that a terminal obeys are not."""
    installed.writes("printf 'begins \\033['; head -c 1000000 /dev/zero | tr '\\0' x")
    stacks = installed.stacks()

    assert all(each.text.startswith("begins ?[xx") for each in stacks)
    assert all(each.text.endswith(TRUNCATED) for each in stacks)
    assert sum(len(each.text) for each in stacks) <= MAX_PER_NODE
