"""For how long no main thread has run: real processes, and a clock that tests move."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from clusterrun.loop import Loop
from clusterrun.policy import events
from clusterrun.workers.main_threads import MainThreads

from tests.waiting import wait_until

SECONDS = 80.0
"""After which threads count as still; they are looked at every 10 s."""

SLEEPS = """
    import signal
    print("ready", flush=True)
    signal.pause()
"""

OTHER_THREAD_RUNS = """
    import threading

    def run():
        print("ready", flush=True)
        while True:
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    threading.Event().wait()
"""

RUNS = """
    print("ready", flush=True)
    while True:
        pass
"""


class Watched:
    """Processes, the reader of their times, and the turns of the loop."""

    def __init__(self, stack: ExitStack) -> None:
        self.now = 1000.0
        self.seen: list[events.Event] = []
        self._stack = stack
        self.processes: list[subprocess.Popen[str]] = []
        self.loop = Loop[events.Event](lambda: self.now)
        self.threads = self.reads_from(Path("/proc"))

    def reads_from(self, proc: Path) -> MainThreads:
        return MainThreads(self.loop, lambda: [each.pid for each in self.processes], proc)

    def start(self, script: str) -> psutil.Process:
        """Start a process, and wait until its main thread does what it does all the time."""
        process = subprocess.Popen(
            [sys.executable, "-c", dedent(script)], stdout=subprocess.PIPE, text=True
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self._stack.enter_context(process.stdout or sys.stdin)
        assert process.stdout
        process.stdout.readline()
        self.processes.append(process)
        return psutil.Process(process.pid)

    def passes(self, seconds: float, step: float = 10.0, meanwhile: float = 0.0) -> list[float]:
        """Let time pass, of which each step takes ``meanwhile`` seconds; return what was reported."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            time.sleep(meanwhile)
            self.loop.turn(self.now)
        return self.reported()

    def reported(self) -> list[float]:
        """Return for how long threads have been still, of each report."""
        found = list[float]()

        def takes(event: events.Event) -> bool:
            assert isinstance(event, events.MainThreadsBlocked)
            found.append(event.seconds)
            return False

        self.loop.keep(takes)
        return found


@pytest.fixture
def watched() -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(stack)


def nanoseconds(pid: int) -> int:
    """Return for how long a main thread has run."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


def await_run(pid: int, least: int) -> None:
    """Wait until a main thread has run for that many nanoseconds more."""
    before = nanoseconds(pid)
    wait_until(lambda: nanoseconds(pid) >= before + least)


def sleeps(process: psutil.Process) -> Callable[[], bool]:
    return lambda: process.status() == psutil.STATUS_SLEEPING


@pytest.mark.parametrize("script", [SLEEPS, OTHER_THREAD_RUNS], ids=["none", "another thread"])
def test_no_main_thread_runs(watched: Watched, script: str) -> None:
    """Reported once, whatever other threads do; and that one runs again."""
    process = watched.start(script)
    if script == SLEEPS:
        wait_until(sleeps(process))
    watched.threads.watch(SECONDS)

    assert watched.passes(70, meanwhile=0.01) == []
    assert watched.passes(10) == [SECONDS]
    assert watched.passes(1000) == []
    watched.start(SLEEPS)
    assert watched.passes(10) == [0.0]


def test_a_main_thread_that_runs(watched: Watched) -> None:
    """In each interval of 10 s for 0.05 s: 0.5 %."""
    watched.start(SLEEPS)
    pid = watched.start(RUNS).pid
    watched.threads.watch(SECONDS)

    for _ in range(20):
        await_run(pid, 50_000_000)
        assert watched.passes(10) == []


def test_a_main_thread_that_uses_little_time(watched: Watched) -> None:
    """It waits with a time limit: below 0.1 % of an interval it does not run."""
    process = watched.start(RUNS)
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    watched.threads.watch(80_000.0)

    os.kill(process.pid, signal.SIGCONT)
    assert watched.passes(90_000.0, step=10_000.0, meanwhile=0.01) == [80_000.0]


def test_a_worker_ends(watched: Watched) -> None:
    """That counts as activity; workers that have ended do not, and none at all is still."""
    process = watched.start(SLEEPS)
    wait_until(sleeps(process))
    watched.threads.watch(SECONDS)
    watched.passes(70)

    watched.processes[0].kill()
    watched.processes[0].wait()
    assert watched.passes(80) == []
    assert watched.passes(10) == [SECONDS]


@pytest.mark.parametrize("seconds", [21.0, 3600.0])
def test_the_agent_was_stopped(watched: Watched, seconds: float) -> None:
    """Its workers may have been, too: the time begins anew."""
    wait_until(sleeps(watched.start(SLEEPS)))
    watched.threads.watch(SECONDS)
    watched.passes(70)

    assert watched.passes(seconds, step=seconds) == []
    assert watched.passes(70) == []
    assert watched.passes(10) == [SECONDS]


def test_the_job_is_paused(watched: Watched) -> None:
    """Nothing is watched meanwhile; who was told that threads are still is told that they run."""
    wait_until(sleeps(watched.start(SLEEPS)))
    watched.threads.watch(SECONDS)
    assert watched.passes(90) == [SECONDS]

    watched.threads.watch(0.0)
    assert watched.reported() == [0.0]
    assert watched.passes(1000, step=1000.0) == []
    watched.threads.watch(SECONDS)
    assert watched.passes(70) == []
    assert watched.passes(10) == [SECONDS]


def test_short_times_are_looked_at_each_second(watched: Watched) -> None:
    """Not more often, whatever the time limit."""
    wait_until(sleeps(watched.start(SLEEPS)))
    watched.threads.watch(2.0)

    assert watched.threads.due == watched.now + 1.0
    assert watched.passes(1.9, step=0.1) == []
    assert watched.passes(0.2, step=0.1) == [pytest.approx(2.0, abs=0.15)]


@pytest.mark.parametrize("text", [None, "0 0 0\n", "unknown\n"])
def test_a_kernel_that_does_not_count(watched: Watched, tmp_path: Path, text: str | None) -> None:
    """No thread is known to be still."""
    if text is not None:
        (tmp_path / "self").mkdir()
        (tmp_path / "self/schedstat").write_text(text)
    threads = watched.reads_from(tmp_path)
    threads.watch(SECONDS)

    assert watched.passes(1000) == []
