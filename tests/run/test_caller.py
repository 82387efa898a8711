"""A program that starts the command: its signals, its end, and the lines that it gets."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterrun.errors import UsageError
from clusterrun.loop import Loop
from clusterrun.policy import end_report
from clusterrun.policy.events import Event
from clusterrun.policy.outcome import Outcome, Succeeded
from clusterrun.run.caller import CallingProgram
from clusterrun.signals import SignalReceived

from tests.waiting import SECONDS_TO_ACT

MARK = "0f3c"


class Called:
    """A command's loop with its caller alone, and the caller's end of the lifeline."""

    def __init__(self) -> None:
        self.caller, theirs = socket.socketpair()
        self.caller.settimeout(SECONDS_TO_ACT)
        before = os.dup(0)
        os.dup2(theirs.fileno(), 0)
        theirs.close()
        try:
            self.program = CallingProgram.of(f"0:{MARK}")
        finally:
            self.stdin = os.fstat(0).st_rdev
            os.dup2(before, 0)
            os.close(before)
        self.loop = Loop[Event](time.monotonic)
        self.program.run_in(self.loop)

    def next(self) -> Event:
        self.loop.at("late", time.monotonic() + SECONDS_TO_ACT, lambda _: pytest.fail("no event"))
        return self.loop.next_event()


@pytest.fixture
def called() -> Iterator[Called]:
    made = Called()
    yield made
    made.caller.close()
    made.loop.close()


def test_no_worker_has_its_lifeline(called: Called) -> None:
    assert called.stdin == Path(os.devnull).stat().st_rdev


def test_each_byte_is_a_signal(called: Called) -> None:
    """Except one that would end this process."""
    called.caller.send(bytes([signal.SIGKILL, signal.SIGINT, signal.SIGUSR1, 200]))

    numbers = [
        event.number
        for event in (called.next(), called.next())
        if isinstance(event, SignalReceived)
    ]
    assert numbers == [signal.SIGINT, signal.SIGUSR1]


@pytest.mark.parametrize("ends", [socket.socket.close, lambda it: it.shutdown(socket.SHUT_WR)])
def test_its_end_is_a_sigterm_once(called: Called, ends: object) -> None:
    """The end of a file stays readable: a loop that went on watching would never wait again."""
    assert callable(ends)
    ends(called.caller)

    event = called.next()

    assert isinstance(event, SignalReceived)
    assert event.number == signal.SIGTERM
    began = time.monotonic()
    called.loop.turn(began + 0.2)
    assert time.monotonic() - began >= 0.19


def test_output_is_shown_when_it_asks(called: Called) -> None:
    asked: list[float] = []

    def show(then: object, now: float) -> list[Event]:
        assert callable(then)
        asked.append(now)
        then()
        return []

    called.program.show = show
    called.caller.send(bytes([end_report.SHOW_OUTPUT]))
    called.loop.turn(time.monotonic() + SECONDS_TO_ACT)

    assert len(asked) == 1
    assert called.caller.recv(100) == end_report.output_shown_line(MARK)


def test_a_report_that_is_not_read(called: Called) -> None:
    """Nothing is raised: the command ends by its own exit code."""
    called.caller.close()
    outcome = Outcome(Succeeded(), attempt=0, results=(), survivors=())

    called.program.ended(end_report.EndReport.of_job(0, outcome, ""))
    called.program.refused(UsageError("no", "yes"))


@pytest.mark.parametrize("value", ["", "0", "0:", "1:ab", "x:ab", "0:a b"])
def test_a_variable_that_no_caller_has_set(value: str) -> None:
    """It names the variable, and starts nothing; standard input stays."""
    done = subprocess.run(
        [sys.executable, "-m", "clusterrun", "--no-python", "cat"],
        env={**os.environ, "CLUSTERRUN_CALLER": value},
        input=b"read by nobody",
        capture_output=True,
        timeout=SECONDS_TO_ACT,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, b"")
    assert b"unset CLUSTERRUN_CALLER" in done.stderr
