"""py-spy as a child process: what it prints of each rank, or why it prints nothing."""

import time
from pathlib import Path

import pytest
from clusterrun.policy.stacks import StackGroup
from clusterrun.workers.native_stacks import MAX_PER_NODE, TRUNCATED, native_stacks
from clusterrun.workers.py_spy import py_spy_program

pytestmark = pytest.mark.usefixtures("no_child_left")

PIDS = {4: 104, 5: 105}


class FakePySpy:
    """A py-spy that is a script of the test."""

    def __init__(self, folder: Path) -> None:
        self.program = folder / "py-spy"

    def install(self, script: str, shell: str = "/bin/sh") -> None:
        # A new file, because one that is being executed can not be written.
        written = self.program.with_name("written")
        written.write_text(f"#!{shell}\n{script}\n")
        written.chmod(0o755)
        written.rename(self.program)

    def run(self, seconds: float = 30.0) -> tuple[StackGroup, ...]:
        """Return what it prints of two ranks."""
        return native_stacks(self.program, PIDS, seconds)


@pytest.fixture
def py_spy(tmp_path: Path) -> FakePySpy:
    return FakePySpy(tmp_path)


def test_path_of_py_spy(py_spy: FakePySpy, tmp_path: Path) -> None:
    """On the agent's PATH, or else beside its Python."""
    beside, empty = tmp_path / "python", {"PATH": "/nowhere"}
    assert py_spy_program(empty, beside) is None
    py_spy.install("exit")

    assert py_spy_program(empty, beside) == py_spy.program
    assert py_spy_program({"PATH": str(tmp_path)}, Path("/python")) == py_spy.program


def test_output_of_each_rank(py_spy: FakePySpy) -> None:
    py_spy.install('echo "$@"; echo warning >&2')

    assert py_spy.run() == (
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
def test_reason_for_a_missing_stack(py_spy: FakePySpy, script: str, shell: str, why: str) -> None:
    py_spy.install(script, shell)

    assert [(each.text, each.found) for each in py_spy.run()] == [(why, False)] * 2


def test_hanging_py_spy_is_killed(py_spy: FakePySpy) -> None:
    """The time limit is for all ranks together; what was printed by then is shown."""
    py_spy.install("echo Thread 1; echo no symbols >&2; exec sleep 600")
    began = time.monotonic()
    late = py_spy.run(seconds=1.0)

    assert time.monotonic() - began < 20.0
    assert [each.text for each in late] == ["Thread 1\npy-spy took longer than 1 s"] * 2


def test_long_output_is_cut(py_spy: FakePySpy) -> None:
    """Its beginning is kept; control characters are not."""
    py_spy.install("printf 'begins \\033['; head -c 1000000 /dev/zero | tr '\\0' x")
    stacks = py_spy.run()

    assert all(each.text.startswith("begins ?[xx") for each in stacks)
    assert all(each.text.endswith(TRUNCATED) for each in stacks)
    assert sum(len(each.text) for each in stacks) <= MAX_PER_NODE


def test_rank_after_a_late_one_has_its_stack(py_spy: FakePySpy) -> None:
    py_spy.install('[ "$5" = 104 ] && exec sleep 600; echo Thread 1')

    assert [each.text for each in py_spy.run(seconds=1.0)] == [
        "py-spy took longer than 1 s",
        "Thread 1",
    ]
