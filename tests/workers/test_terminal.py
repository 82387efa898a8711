"""The terminal that a single worker shares with the launcher, and standard input."""

from textwrap import dedent

import pytest
from clusterrun.workers import terminal

from tests.imports import imports
from tests.workers.on_a_terminal import answer_of

PRELUDE = (
    imports(terminal.Terminal)
    + """
terminal = Terminal.in_foreground(0)
launcher_group = os.getpgrp()
"""
)


def test_launcher_in_the_background_has_no_terminal() -> None:
    """The shell, or another job, is in the foreground."""
    answered = answer_of("""
        if os.fork() == 0:
            os.setpgid(0, 0)
            from clusterrun.workers import terminal
            answer(terminal.Terminal.in_foreground(0) is None)
            os._exit(0)
        os.wait()
    """)

    assert answered == [True]


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            """
            worker = subprocess.Popen(["cat"], process_group=0)
            terminal.give_to(worker.pid)
            worker.kill()
            worker.wait()
            terminal.take_back_from(0)
            """,
            id="taken back from a dead group",
        ),
        pytest.param(
            """
            worker = subprocess.Popen(["true"], process_group=0)
            worker.wait()
            terminal.give_to(worker.pid)
            terminal.give_to(0)
            """,
            id="given to a dead group",
        ),
        pytest.param(
            """
            foreground = os.dup(0)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            terminal.give_to(launcher_group)
            terminal.take_back_from(launcher_group)
            os.dup2(foreground, 0)
            """,
            id="a terminal that has hung up raises no error",
        ),
    ],
)
def test_launcher_is_in_the_foreground_afterwards(code: str) -> None:
    answered = answer_of(PRELUDE + dedent(code) + "answer(os.tcgetpgrp(0) == launcher_group)")

    assert answered == [True]


@pytest.mark.parametrize(
    ("has_terminal", "workers", "expected"),
    [(False, 2, [0]), (False, 1, [0]), (True, 2, [0, 1, 8]), (True, 1, [0, 1, 8])],
)
def test_ranks_that_read_standard_input(
    *, has_terminal: bool, workers: int, expected: list[int]
) -> None:
    """All read a terminal; only rank 0 reads other input."""
    standard_input = terminal.StandardInput(terminal.Terminal(0) if has_terminal else None, workers)

    assert [rank for rank in (0, 1, 8) if standard_input.is_read_by(rank)] == expected
