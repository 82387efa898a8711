"""py-spy as an agent runs it: nothing is waited for, and nothing outlives the job."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.msgpack import encode

from tests.run.door import (
    FROM_MEMBERS,
    LEFT_OUT,
    LONGEST_FRAME,
    MISSING,
    MOST_KEPT,
    MOST_OF_A_NODE,
    SECONDS_FOR_ONE,
    GlobalRank,
    LookAtNativeStacks,
    NativeStack,
    NodeNativeStacks,
    Part,
    PySpy,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_child_left")

LOOK = LookAtNativeStacks(7)
PIDS = {GlobalRank(4): 104, GlobalRank(5): 105}


class Installed:
    """A py-spy that is a script of the test."""

    def __init__(self, folder: Path) -> None:
        self._program = folder / "py-spy"
        self.py_spy = PySpy({"PATH": "/usr/bin:/bin"}, folder / "python", lambda find: find())

    def writes(self, script: str, shell: str = "/bin/sh") -> None:
        """Install it."""
        # Another file: the kernel writes to none that is just being executed.
        written = self._program.with_name("written")
        written.write_text(f"#!{shell}\n{script}\n")
        written.chmod(0o755)
        written.rename(self._program)

    def stacks(self, number: int = 7, now: float = 0.0) -> tuple[NativeStack, ...]:
        """Look until all are there."""
        look = LookAtNativeStacks(number)
        wait_until(lambda: self.py_spy.look(look, PIDS, now)[1], "all stacks")
        return self.py_spy.look(look, PIDS, now)[0]


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[Installed]:
    """Return what runs a py-spy that lies beside the interpreter."""
    made = Installed(tmp_path)
    yield made
    made.py_spy.close()


def test_a_node_without_py_spy(installed: Installed) -> None:
    """Says so at once, and what to install; a node without ranks needs none."""
    assert installed.py_spy.look(LOOK, PIDS, 0.0) == ((), True, MISSING)
    assert installed.py_spy.look(LOOK, {}, 0.0) == ((), True, "")


def test_what_it_prints_of_each_rank(installed: Installed, tmp_path: Path) -> None:
    """Once for each request; the user who looks is not kept waiting."""
    until = f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"
    installed.writes(f'{until}; echo "$@"; echo warning >&2')
    first = installed.py_spy.look(LOOK, PIDS, 0.0)
    (tmp_path / "go").touch()

    assert first[1:] == (False, "")
    assert installed.stacks() == (
        NativeStack(4, "dump --native --locals --pid 104", found=True),
        NativeStack(5, "dump --native --locals --pid 105", found=True),
    )


@pytest.mark.parametrize(
    ("script", "shell", "why"),
    [
        ("echo denied >&2; exit 1", "/bin/sh", "denied"),
        ("exit 1", "/bin/sh", "py-spy has printed nothing"),
        ("", "/no/such/shell", "py-spy can't be executed: No such file or directory"),
    ],
)
def test_why_there_is_no_stack(installed: Installed, script: str, shell: str, why: str) -> None:
    installed.writes(script, shell)

    assert [(each.text, each.found) for each in installed.stacks()] == [(why, False)] * 2


def test_one_that_hangs_is_ended(installed: Installed) -> None:
    """With what it has started; another request waits until then, and has its own answer."""
    installed.writes("sleep 600")
    other = LookAtNativeStacks(8)
    looks = [installed.py_spy.look(each, PIDS, 0.0)[1] for each in (LOOK, other)]
    late = installed.py_spy.look(LOOK, PIDS, SECONDS_FOR_ONE)[0]
    installed.writes("echo works")

    assert looks == [False, False]
    assert [each.text for each in late] == ["py-spy took longer than 30 s"] * 2
    assert [each.text for each in installed.stacks(8, SECONDS_FOR_ONE)] == ["works"] * 2
    assert installed.stacks(7, SECONDS_FOR_ONE) == late


def test_what_a_late_one_has_printed_is_shown(installed: Installed, tmp_path: Path) -> None:
    """It holds no descriptor of the agent's any more."""
    printed = tmp_path / "printed"
    installed.writes(f"echo Thread 1; echo no symbols >&2; echo >>{printed}; exec sleep 600")
    held = len(list(Path("/proc/self/fd").iterdir()))
    installed.py_spy.look(LOOK, PIDS, 0.0)
    wait_until(lambda: printed.exists() and printed.read_text() == "\n\n", "what both print")
    late = installed.py_spy.look(LOOK, PIDS, SECONDS_FOR_ONE)[0]

    assert [each.text for each in late] == ["Thread 1\npy-spy took longer than 30 s"] * 2
    assert len(list(Path("/proc/self/fd").iterdir())) == held


def test_the_end_of_the_job_ends_it(installed: Installed) -> None:
    """At once, before it has been read."""
    installed.writes("sleep 600")
    installed.py_spy.look(LOOK, PIDS, 0.0)
    began = time.monotonic()

    installed.py_spy.close()

    assert time.monotonic() - began < 10.0


def test_old_answers_are_dropped(installed: Installed) -> None:
    """The user who asks for one again gets a new one."""
    installed.writes("echo first")
    installed.stacks()
    installed.writes("echo second")
    for number in range(10, 10 + MOST_KEPT):
        installed.stacks(number)

    assert [each.text for each in installed.stacks()] == ["second"] * 2


def test_the_longest_answer_fits_into_a_message(installed: Installed) -> None:
    """Its beginning is kept; characters that a terminal obeys are not."""
    installed.writes("printf 'begins \\033['; head -c 1000000 /dev/zero | tr '\\0' x")
    stacks = installed.stacks()
    many = MOST_OF_A_NODE // 16
    widest = tuple(NativeStack(rank, "\U0001f600" * many, found=True) for rank in range(16))
    message = Part(1, NodeNativeStacks(0, "n0", widest, is_done=True))
    body = encode(message)

    assert all(each.text.startswith("begins ?[xx") for each in stacks)
    assert all(each.text.endswith(LEFT_OUT) for each in stacks)
    assert len(body) < LONGEST_FRAME
    assert FROM_MEMBERS.decode(body) == message
    shown = Part(1, NodeNativeStacks(0, "n0", stacks, is_done=True))
    assert FROM_MEMBERS.decode(encode(shown)) == shown
