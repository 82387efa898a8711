"""``clusterrun --live``: a launch, and below what it prints the table of ``clusterrun watch``.

The job runs in a child, which prints to a pipe; this process draws, passes signals on, and ends
with the child's exit code. The agent is as without it: it waits for neither table nor terminal.
"""

import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType

from clusterrun.cli.chosen_run import found_jobs
from clusterrun.cli.looking import WatchedJob
from clusterrun.cli.table_below import TableBelow
from clusterrun.control.messages import LookInside
from clusterrun.control.running_jobs import NoAnswer, ask
from clusterrun.domain.looks import JobLook, LookAtRanks
from clusterrun.errors import exit_code_of_signal
from clusterrun.processes import stop_as_by_default
from clusterrun.report.live_table import live_lines
from clusterrun.sources.output_options import shows_colours
from clusterrun.workers.fork_server.this_process import die_with_parent

SECONDS_BETWEEN_LOOKS = 1.0

SECONDS_TO_LOOK = 0.5
"""What the job prints waits as long for an agent that does not answer."""

ADVICE = "Ctrl-C ends the job"

PASSED_ON = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
"""The agent takes one that the terminal has sent to both of us for one."""

_READ_BYTES = 1 << 16


def launch_live(launch: Callable[[], int], environ: Mapping[str, str]) -> int:
    """Call ``launch`` in a child, and return its exit code, there and here."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    us = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGTSTP})
    child = os.fork()
    if child == 0:
        die_with_parent(us, signal.SIGTERM)
        _print_to(writing)
        os.close(reading)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return launch()
    os.close(writing)
    # Only a job that runs for long needs the collector.
    gc.enable()
    table = TableBelow(1, coloured=shows_colours(environ))
    _pass_signals_on(child, table)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _Following(child, reading, table, environ).follow()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    # No signal may be passed on once its process id is free.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return exit_code_of_signal(os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


def _print_to(writing: int) -> None:
    """Have this process print to the pipe what it would print to the terminal."""
    printed = [number for number in (1, 2) if os.isatty(number)]
    for number in printed:
        os.dup2(writing, number)
    os.close(writing)


def _pass_signals_on(child: int, table: TableBelow) -> None:
    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    def pause(_number: int, _frame: FrameType | None) -> None:
        table.clear()
        stop_as_by_default()

    for number in PASSED_ON:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, pass_on)
    signal.signal(signal.SIGTSTP, pause)


class _Following:
    """Shows what the child prints, and how its job is."""

    def __init__(
        self, child: int, reading: int, table: TableBelow, environ: Mapping[str, str]
    ) -> None:
        self._child = child
        self._reading = reading
        self._table = table
        self._environ = environ
        self._watched: WatchedJob | None = None

    def follow(self) -> None:
        """Return when all that the child had to print is shown."""
        poll = select.poll()
        poll.register(self._reading, select.POLLIN)
        look_at = time.monotonic()
        while True:
            left = look_at - time.monotonic()
            if left <= 0:
                self._look()
                look_at = time.monotonic() + SECONDS_BETWEEN_LOOKS
            elif poll.poll(left * 1000):
                data = os.read(self._reading, _READ_BYTES)
                if not data:
                    break
                self._table.print(data)
        self._table.end()

    def _look(self) -> None:
        if self._watched is None:
            self._watched = self._find()
        elif not self._watched.look_again(SECONDS_TO_LOOK):
            # The agent is about to end, or has closed its socket.
            self._watched = None
        if self._watched is None:
            self._table.show([])
            return
        width, height = self._table.size()
        self._table.show(live_lines(self._watched.status, width, max(4, height // 2), ADVICE))

    def _find(self) -> WatchedJob | None:
        """Return the job, once its workers have been started."""
        for job in found_jobs(self._environ, SECONDS_TO_LOOK).jobs:
            if job.described.pid == self._child:
                try:
                    seen = ask(job, LookInside(LookAtRanks()), JobLook, SECONDS_TO_LOOK)
                except NoAnswer:
                    return None
                return WatchedJob(job, seen)
        return None
