"""Signals to the agent, in a child process: handlers would affect the tests' own process."""

import signal
import subprocess
import sys
from textwrap import dedent

from clusterrun.signals import FORWARDED_SIGNALS, HANDLED_SIGNALS

PRELUDE = """
import os, select, signal
from clusterrun.signals import FORWARDED_SIGNALS
from clusterrun.signals import HANDLED_SIGNALS
from clusterrun.signals import Signals

for number in HANDLED_SIGNALS:  # whatever the tests themselves were printed to ignore
    signal.signal(number, signal.SIG_DFL)

def received(inbox):
    events = []
    while select.select([inbox], [], [], 0)[0]:
        events += inbox.events(now=7.0)
    return events
"""


def run(code: str) -> str:
    """Return what a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + dedent(code)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_signal_is_an_event() -> None:
    """Including realtime signals; none of them ends the process."""
    printed = run("""
        inbox = Signals()
        for number in (*HANDLED_SIGNALS, *FORWARDED_SIGNALS):
            os.kill(os.getpid(), number)
            [event] = received(inbox)
            print(event.number, event.at)
    """)

    assert printed.splitlines() == [
        f"{int(number)} 7.0" for number in (*HANDLED_SIGNALS, *FORWARDED_SIGNALS)
    ]


def test_end_of_a_child_is_an_event() -> None:
    """It is recorded for reaping."""
    printed = run("""
        inbox = Signals()
        os.kill(os.getpid(), signal.SIGCHLD)
        print(received(inbox))
    """)

    assert printed == "[ChildEnded(at=7.0)]\n"


def test_reading_without_signals_does_not_block() -> None:
    assert run("print(list(Signals().events(1.0)))") == "[]\n"


def test_ends_of_children_are_received_though_sigchld_was_ignored() -> None:
    """Otherwise the kernel would reap them, and their exit codes would be lost."""
    printed = run("""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        inbox = Signals()
        child = os.fork() or os._exit(3)
        select.select([inbox], [], [], 10)
        print(received(inbox), os.waitpid(child, 0)[1] >> 8)
    """)

    assert printed == "[ChildEnded(at=7.0)] 3\n"


def test_flood_of_signals_does_not_block() -> None:
    """There are more than the pipe holds: some are lost, and nothing is printed."""
    printed = run(f"""
        inbox = Signals()
        for _ in range(70_000):
            signal.raise_signal({int(signal.SIGUSR1)})
        print({{event.number for event in received(inbox)}})
    """)

    assert printed == "{10}\n"


def test_signal_with_other_handler_is_not_an_event() -> None:
    printed = run("""
        signal.signal(signal.SIGURG, lambda *_: print("handled", flush=True))
        inbox = Signals()
        os.kill(os.getpid(), signal.SIGURG)
        print(received(inbox))
    """)

    assert printed == "handled\n[]\n"
