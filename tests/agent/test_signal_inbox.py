"""Signals to the agent, in a process of its own: handlers would meet the tests' own process."""

import signal
import subprocess
import sys
from textwrap import dedent

import pytest
from clusterrun.agent.signal_inbox import FORWARDED, OUR_OWN

PRELUDE = """
import os, select, signal
from clusterrun.agent.signal_inbox import FORWARDED, OUR_OWN, SignalInbox

for number in OUR_OWN:  # whatever the tests themselves were told to ignore
    signal.signal(number, signal.SIG_DFL)

def heard(inbox):
    events = []
    while select.select([inbox], [], [], 0)[0]:
        events += inbox.events(now=7.0)
    return events
"""


def run(code: str) -> str:
    """Return what a process of its own prints."""
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
    """Realtime signals included; none of them ends us."""
    told = run("""
        inbox = SignalInbox()
        for number in (*OUR_OWN, *FORWARDED):
            os.kill(os.getpid(), number)
            [event] = heard(inbox)
            print(event.number, event.at)
    """)

    assert told.splitlines() == [f"{int(number)} 7.0" for number in (*OUR_OWN, *FORWARDED)]


def test_the_end_of_a_child_is_no_event() -> None:
    """It is noted for whoever reaps."""
    told = run("""
        inbox = SignalInbox()
        os.kill(os.getpid(), signal.SIGCHLD)
        print(heard(inbox), inbox.child_ended)
    """)

    assert told == "[] True\n"


def test_nothing_to_hear() -> None:
    """Whoever looks without need is not kept waiting."""
    assert run("print(list(SignalInbox().events(1.0)))") == "[]\n"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGUSR1])
def test_what_was_ignored_at_the_start_stays_so(number: signal.Signals) -> None:
    """As nohup and a shell's "&" have it."""
    told = run(f"""
        signal.signal({int(number)}, signal.SIG_IGN)
        inbox = SignalInbox()
        os.kill(os.getpid(), {int(number)})
        print(heard(inbox), signal.getsignal({int(number)}) == signal.SIG_IGN)
    """)

    assert told == "[] True\n"


def test_sigquit_is_heard_though_ignored_at_the_start() -> None:
    """A shell script's ``&`` ignores it, and nobody could ask for the stacks."""
    told = run("""
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        inbox = SignalInbox()
        os.kill(os.getpid(), signal.SIGQUIT)
        print([event.number for event in heard(inbox)])
    """)

    assert told == f"[{int(signal.SIGQUIT)}]\n"


def test_ends_of_children_are_heard_though_ignored_at_the_start() -> None:
    """Else the kernel would reap them itself, and nobody could say how they ended."""
    told = run("""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        inbox = SignalInbox()
        child = os.fork() or os._exit(3)
        select.select([inbox], [], [], 10)
        print(heard(inbox), inbox.child_ended, os.waitpid(child, 0)[1] >> 8)
    """)

    assert told == "[] True 3\n"


def test_a_flood_of_signals_is_survived() -> None:
    """More than the pipe holds: some are lost, nothing blocks, nothing is printed."""
    told = run(f"""
        inbox = SignalInbox()
        for _ in range(70_000):
            signal.raise_signal({int(signal.SIGUSR1)})
        print({{event.number for event in heard(inbox)}})
    """)

    assert told == "{10}\n"
