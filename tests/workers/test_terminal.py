"""The terminal that one worker shares with the launcher."""

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
