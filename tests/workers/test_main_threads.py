"""Main threads of real processes, on a clock that the test sets."""

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
"""After which threads count as blocked; they are read every 10 s."""

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


class Bench:
    """Processes, the reader of their times, and the loop."""

    def __init__(self, stack: ExitStack) -> None:
        self.now = 1000.0
        self.seen: list[events.Event] = []
        self._stack = stack
        self.processes: list[subprocess.Popen[str]] = []
        self.loop = Loop[events.Event](lambda: self.now)
        self.threads = self.reader(Path("/proc"))

    def reader(self, proc: Path) -> MainThreads:
        return MainThreads(self.loop, lambda: [each.pid for each in self.processes], proc)

    def start(self, script: str) -> psutil.Process:
        """Start a process, and wait until its main thread is in its final state."""
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

    def pass_time(self, seconds: float, step: float = 10.0, meanwhile: float = 0.0) -> list[float]:
        """Let time pass in steps, each of which takes ``meanwhile`` real seconds; return what was reported."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            time.sleep(meanwhile)
            self.loop.turn(self.now)
        return self.reported()

    def reported(self) -> list[float]:
        """Return the seconds of each report."""
        found = list[float]()

        def takes(event: events.Event) -> bool:
            assert isinstance(event, events.MainThreadsBlocked)
            found.append(event.seconds)
            return False

        self.loop.keep(takes)
        return found


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack)


def cpu_time(pid: int) -> int:
    """Return the CPU time of a main thread in nanoseconds."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])


def await_run(pid: int, least: int) -> None:
    """Wait until a main thread has run for ``least`` more nanoseconds."""
    before = cpu_time(pid)
    wait_until(lambda: cpu_time(pid) >= before + least)


def sleeps(process: psutil.Process) -> Callable[[], bool]:
    return lambda: process.status() == psutil.STATUS_SLEEPING


@pytest.mark.parametrize("script", [SLEEPS, OTHER_THREAD_RUNS], ids=["none", "another thread"])
def test_blocked_main_threads_are_reported_once(bench: Bench, script: str) -> None:
    """Whatever other threads do; later one runs again."""
    process = bench.start(script)
    if script == SLEEPS:
        wait_until(sleeps(process))
    bench.threads.watch(SECONDS)

    assert bench.pass_time(70, meanwhile=0.01) == []
    assert bench.pass_time(10) == [SECONDS]
    assert bench.pass_time(1000) == []
    bench.start(SLEEPS)
    assert bench.pass_time(10) == [0.0]


def test_main_thread_that_runs_half_a_percent_is_not_blocked(bench: Bench) -> None:
    """0.05 s in each interval of 10 s."""
    bench.start(SLEEPS)
    pid = bench.start(RUNS).pid
    bench.threads.watch(SECONDS)

    for _ in range(20):
        await_run(pid, 50_000_000)
        assert bench.pass_time(10) == []


def test_main_thread_that_polls_is_blocked(bench: Bench) -> None:
    """Below 0.1 % of an interval counts as blocked."""
    process = bench.start(RUNS)
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    bench.threads.watch(80_000.0)

    os.kill(process.pid, signal.SIGCONT)
    assert bench.pass_time(90_000.0, step=10_000.0, meanwhile=0.01) == [80_000.0]


def test_end_of_a_worker_is_activity(bench: Bench) -> None:
    """Ended workers do not count; without workers all threads are blocked."""
    process = bench.start(SLEEPS)
    wait_until(sleeps(process))
    bench.threads.watch(SECONDS)
    bench.pass_time(70)

    bench.processes[0].kill()
    bench.processes[0].wait()
    assert bench.pass_time(80) == []
    assert bench.pass_time(10) == [SECONDS]


@pytest.mark.parametrize("seconds", [21.0, 3600.0])
def test_time_while_the_agent_was_stopped_does_not_count(bench: Bench, seconds: float) -> None:
    """Its workers may have been stopped too."""
    wait_until(sleeps(bench.start(SLEEPS)))
    bench.threads.watch(SECONDS)
    bench.pass_time(70)

    assert bench.pass_time(seconds, step=seconds) == []
    assert bench.pass_time(70) == []
    assert bench.pass_time(10) == [SECONDS]


def test_paused_job_is_not_watched(bench: Bench) -> None:
    """Threads that were reported as blocked are reported as running."""
    wait_until(sleeps(bench.start(SLEEPS)))
    bench.threads.watch(SECONDS)
    assert bench.pass_time(90) == [SECONDS]

    bench.threads.watch(0.0)
    assert bench.reported() == [0.0]
    assert bench.pass_time(1000, step=1000.0) == []
    bench.threads.watch(SECONDS)
    assert bench.pass_time(70) == []
    assert bench.pass_time(10) == [SECONDS]


def test_times_are_read_at_most_once_a_second(bench: Bench) -> None:
    wait_until(sleeps(bench.start(SLEEPS)))
    bench.threads.watch(2.0)

    assert bench.threads.due == bench.now + 1.0
    assert bench.pass_time(1.9, step=0.1) == []
    assert bench.pass_time(0.2, step=0.1) == [pytest.approx(2.0, abs=0.15)]


@pytest.mark.parametrize("text", [None, "0 0 0\n", "unknown\n"])
def test_kernel_without_schedstat_reports_nothing(
    bench: Bench, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "self").mkdir()
        (tmp_path / "self/schedstat").write_text(text)
    threads = bench.reader(tmp_path)
    threads.watch(SECONDS)

    assert bench.pass_time(1000) == []
