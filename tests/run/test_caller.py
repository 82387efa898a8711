"""A program that starts the command: its signals, its end, and the lines that are sent to it."""

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


def test_standard_input_of_workers_is_dev_null(called: Called) -> None:
    assert called.stdin == Path(os.devnull).stat().st_rdev


def test_byte_on_lifeline_is_a_signal(called: Called) -> None:
    """Except signals that would end this process."""
    called.caller.send(bytes([signal.SIGKILL, signal.SIGINT, signal.SIGUSR1, 200]))

    numbers = [
        event.number
        for event in (called.next(), called.next())
        if isinstance(event, SignalReceived)
    ]
    assert numbers == [signal.SIGINT, signal.SIGUSR1]


@pytest.mark.parametrize("ends", [socket.socket.close, lambda it: it.shutdown(socket.SHUT_WR)])
def test_end_of_lifeline_is_one_sigterm(called: Called, ends: object) -> None:
    """A descriptor at its end stays readable: the loop would never wait again."""
    assert callable(ends)
    ends(called.caller)

    event = called.next()

    assert isinstance(event, SignalReceived)
    assert event.number == signal.SIGTERM
    began = time.monotonic()
    called.loop.turn(began + 0.2)
    assert time.monotonic() - began >= 0.19


def test_byte_0_shows_the_output(called: Called) -> None:
    asked: list[float] = []

    def show(then: object, now: float) -> list[Event]:
        assert callable(then)
        asked.append(now)
        then()
        return []

    called.program.show = show
    called.caller.send(b"\0")
    called.loop.turn(time.monotonic() + SECONDS_TO_ACT)

    assert len(asked) == 1
    assert called.caller.recv(100) == end_report.output_shown_line(MARK)


def test_report_without_reader_raises_nothing(called: Called) -> None:
    """The command still ends with its exit code."""
    called.caller.close()
    outcome = Outcome(Succeeded(), attempt=0, results=(), survivors=())

    called.program.ended(end_report.EndReport.of_job(0, outcome, ""))
    called.program.refused(UsageError("no", "yes"))


@pytest.mark.parametrize("value", ["", "0", "0:", "1:ab", "x:ab", "0:a b"])
def test_invalid_variable_is_an_error(value: str) -> None:
    """Nothing is started, and standard input is unchanged."""
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
