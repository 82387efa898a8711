"""The terminal that one worker shares with the launcher."""

from textwrap import dedent

from clusterrun.workers import terminal

from tests.imports import imports
from tests.workers.on_a_terminal import answer_of

PRELUDE = (
    imports(terminal.Terminal)
    + """
terminal = Terminal.in_foreground(0)
us = os.getpgrp()
"""
)


def answers(code: str) -> list[object]:
    """Return what ``code`` answers about the terminal that it shares."""
    return answer_of(PRELUDE + dedent(code))


def test_a_launcher_in_the_background_has_none_to_share() -> None:
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


def test_it_is_taken_back_from_the_dead() -> None:
    """The group that had it has ended."""
    answered = answers("""
        worker = subprocess.Popen(["cat"], process_group=0)
        terminal.give_to(worker.pid)
        worker.kill()
        worker.wait()
        terminal.take_back_from(0)
        answer(os.tcgetpgrp(0) == us)
    """)

    assert answered == [True]


def test_a_group_that_is_gone() -> None:
    """Giving it the terminal changes nothing."""
    answered = answers("""
        worker = subprocess.Popen(["true"], process_group=0)
        worker.wait()
        terminal.give_to(worker.pid)
        terminal.give_to(0)
        answer(os.tcgetpgrp(0) == us)
    """)

    assert answered == [True]


def test_a_terminal_that_has_hung_up() -> None:
    """It raises no error."""
    answered = answers("""
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        terminal.give_to(us)
        terminal.take_back_from(us)
        answer("goes on")
    """)

    assert answered == ["goes on"]
