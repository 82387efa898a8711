"""``clusterrun watch`` on a terminal: it follows the job, and leaves the terminal as it was."""

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from typing import Self

import psutil
import pytest

from tests.contract.launched import COMMAND, Launcher, await_status
from tests.looking.commands import asked, started
from tests.waiting import SECONDS_TO_ACT

PRINTS = """
import os, time
print("begun", os.getpid(), flush=True)
for step in range(100000):
    print("step", step, flush=True)
    time.sleep(0.05)
"""

OTHER_SCREEN, OWN_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
SHOWS_CURSOR = b"\x1b[?25h"


class Watching:
    """``clusterrun watch`` on a terminal of its own."""

    def __init__(self, runtime: dict[str, str]) -> None:
        """Start it on 100 columns and 20 lines."""
        self.ours, theirs = os.openpty()
        self.resize(20, 100)
        self.before = termios.tcgetattr(theirs)
        # With these a size would be fixed, as a user may want it.
        fixed = {"COLUMNS", "LINES"}
        environ = {name: value for name, value in os.environ.items() if name not in fixed}
        self.process = subprocess.Popen(
            [COMMAND, "watch", "mine"],
            env={**environ, **runtime, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self._theirs = theirs
        self.printed = bytearray()

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, text: bytes) -> Self:
        """Read until it has printed ``text``."""
        deadline = time.monotonic() + SECONDS_TO_ACT
        while text not in self.printed:
            left = deadline - time.monotonic()
            assert left > 0, (text, bytes(self.printed))
            if select.select([self.ours], [], [], left)[0]:
                self.printed += os.read(self.ours, 65536)
        return self

    def ended(self) -> int:
        """Wait for its end; return its exit code, once the terminal is as it was."""
        code = self.process.wait(SECONDS_TO_ACT)
        assert termios.tcgetattr(self._theirs) == self.before
        while select.select([self.ours], [], [], 0)[0]:
            self.printed += os.read(self.ours, 65536)
        assert self.printed.rindex(OWN_SCREEN) > self.printed.rindex(OTHER_SCREEN)
        assert self.printed.rindex(SHOWS_CURSOR) > self.printed.rindex(OTHER_SCREEN)
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self._theirs)


@pytest.fixture
def watching(clusterrun: Launcher, runtime: dict[str, str]) -> Iterator[Watching]:
    """Return a watch on a job of two ranks; the job ends with the test."""
    job = started(clusterrun, runtime, PRINTS)
    made = Watching(runtime)

    yield made

    made.close()
    asked(runtime, "stop", "--now", "mine")
    assert job.ended().code == 143


def test_it_follows_the_job_until_ctrl_c(watching: Watching) -> None:
    """Also on a terminal that becomes small."""
    watching.wait_for(b"2 of 2 ranks shown").wait_for(b"step ")
    watching.printed.clear()
    watching.resize(4, 40)
    watching.printed += OTHER_SCREEN
    watching.wait_for(b"2 running")

    watching.process.send_signal(signal.SIGINT)

    assert watching.ended() == 0


def test_a_frozen_rank_is_seen(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """And the end of the run ends it."""
    job = started(clusterrun, runtime, PRINTS)
    watching = Watching(runtime)
    try:
        watching.wait_for(b"2 of 2 ranks shown")
        frozen = job.numbers("begun", 2)[0]
        os.kill(frozen, signal.SIGSTOP)
        await_status(frozen, psutil.STATUS_STOPPED)
        watching.wait_for(b"stopped")
        asked(runtime, "stop", "--now", "mine")

        assert watching.ended() == 0
        assert b"run mine has ended" in watching.printed
    finally:
        watching.close()
    assert job.ended().code == 143


def test_without_a_terminal_there_is_status(runtime: dict[str, str]) -> None:
    """A pipe can't show what is drawn over."""
    done = asked(runtime, "watch")

    assert done.returncode == 2
    assert "type clusterrun status, or clusterrun status --json" in done.stderr
