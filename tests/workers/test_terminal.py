"""The terminal that one worker shares with the launcher."""

import os
from textwrap import dedent

from tests.imports import imports
from tests.workers.door import Terminal
from tests.workers.on_a_terminal import answer_of

PRELUDE = (
    imports(Terminal)
    + """
terminal = Terminal.in_foreground(0)
us = os.getpgrp()

def child():
    process = subprocess.Popen(["sleep", "1000"], process_group=0)
    return process

def end(process):
    process.kill()
    process.wait()

def bench_with_worker():
    from tests.workers.fork_server_bench import Bench, plan_of, worker_of
    from tests.workers.door import ServerCommand, ServerProcess
    bench = Bench(ServerProcess(ServerCommand(sys.executable, os.environ)))
    bench.server.start_worker(
        plan_of(["sleep", "1000"]), worker_of(0), (0, 1, 2), startup_folder=None, foreground_group=us
    )
    return bench
"""
)


def answers(code: str) -> list[object]:
    """Return what ``code`` answers about the terminal that it shares."""
    return answer_of(PRELUDE + dedent(code))


def test_a_launcher_in_the_foreground_has_it() -> None:
    answered = answers("answer(terminal.descriptor, terminal.our_group == us)")

    assert answered == [0, True]


def test_what_is_no_terminal() -> None:
    reader, writer = os.pipe()

    assert Terminal.in_foreground(reader) is None
    os.close(reader)
    os.close(writer)
    assert Terminal.in_foreground(10_000) is None


def test_a_launcher_in_the_background_has_none_to_share() -> None:
    """The shell, or another job, is in the foreground."""
    answered = answer_of("""
        if os.fork() == 0:
            os.setpgid(0, 0)
            from tests.workers.door import Terminal
            answer(Terminal.in_foreground(0) is None)
            os._exit(0)
        os.wait()
    """)

    assert answered == [True]


def test_it_is_given_and_taken_back() -> None:
    """The terminal does not stop the launcher for that."""
    answered = answers("""
        worker = child()
        terminal.give_to(worker.pid)
        given = os.tcgetpgrp(0) == worker.pid
        terminal.take_back_from(worker.pid)
        answer(given, os.tcgetpgrp(0) == us, signal.pthread_sigmask(signal.SIG_BLOCK, []) == set())
        end(worker)
    """)

    assert answered == [True, True, True]


def test_it_is_taken_back_from_the_dead() -> None:
    """The group that had it has ended."""
    answered = answers("""
        worker = child()
        terminal.give_to(worker.pid)
        end(worker)
        terminal.take_back_from(0)
        answer(os.tcgetpgrp(0) == us)
    """)

    assert answered == [True]


def test_a_shell_that_has_it_by_now_keeps_it() -> None:
    """The user typed bg."""
    answered = answers("""
        worker, shell = child(), child()
        terminal.give_to(shell.pid)
        terminal.take_back_from(worker.pid)
        terminal.give_to(worker.pid)
        answer(os.tcgetpgrp(0) == shell.pid)
        end(worker)
        end(shell)
    """)

    assert answered == [True]


def test_a_group_that_is_gone() -> None:
    """Giving it the terminal changes nothing."""
    answered = answers("""
        worker = child()
        end(worker)
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


def test_a_worker_in_the_foreground() -> None:
    """It leads its own group in our session, which is the terminal's foreground before it runs."""
    answered = answers("""
        bench = bench_with_worker()
        pid = bench.event().pid
        answer(os.getpgid(pid) == pid, os.getsid(pid) == os.getpid(), os.tcgetpgrp(0) == pid)
        bench.close()
    """)

    assert answered == [True, True, True]


def test_ctrl_z_is_told() -> None:
    """It stops the worker, whose process group is not orphaned, and the agent gets an event."""
    answered = answers("""
        bench = bench_with_worker()
        pid = bench.event().pid
        os.killpg(pid, signal.SIGTSTP)
        stop = bench.event()
        answer(type(stop).__name__, stop.number == signal.SIGTSTP)
        bench.close()
    """)

    assert answered == ["WorkerStopped", True]
