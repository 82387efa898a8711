"""The signal handlers of new workers, signals to workers, and signals to the fork server."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator

import pytest
from clusterrun import processes
from clusterrun.bounds import LocalRank
from clusterrun.policy import events, outcome
from clusterrun.signals import SignalReceived
from clusterrun.workers.fork_server import messages, worker_signals
from clusterrun.workers.fork_server import server as program
from clusterrun.workers.fork_server.failure_notes import FailureNotes

from tests.workers.fork_server_bench import PATIENCE, Bench, Reader, fork_server

FIRST, SECOND, THIRD = LocalRank(0), LocalRank(1), LocalRank(2)


def set_of_signals(printed: Reader) -> dict[str, set[int]]:
    """Return the signals that ``cat /proc/self/status`` shows, by the kernel's names of the sets."""
    sets = dict(re.findall(r"(Sig\w{3}):\s*(\w+)\n", printed.rest()))
    return {
        name: {number for number in signal.valid_signals() if int(bits, 16) >> (number - 1) & 1}
        for name, bits in sets.items()
    }


def ignored_here() -> set[int]:
    """Return the signals that the tests' parent ignores, without those that Python ignores itself."""
    numbers = {int(number) for number in signal.valid_signals() if is_ignored(number)}
    return numbers - {signal.SIGPIPE, signal.SIGXFSZ}


def is_ignored(number: int) -> bool:
    """Tell whether the tests' process ignores a signal."""
    return signal.getsignal(number) is signal.SIG_IGN


def test_signals_of_a_worker_are_those_of_a_fresh_process(bench: Bench) -> None:
    """SIGPIPE is not ignored, although Python ignores it; no signal is blocked."""
    printed = bench.spawn(0, "cat", "/proc/self/status")

    assert set_of_signals(printed) == {
        "SigPnd": set(),
        "SigBlk": set(),
        "SigIgn": ignored_here(),
        "SigCgt": set(),
    }


def test_workers_inherit_signal_mask() -> None:
    """Although the fork server's own mask is empty."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        with fork_server() as bench:
            printed = bench.spawn(0, "cat", "/proc/self/status")

            assert set_of_signals(printed)["SigBlk"] == {signal.SIGUSR2}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_fork_server_has_its_own_process_group(bench: Bench) -> None:
    """The terminal's Ctrl-C and Ctrl-Z go to the agent."""
    bench.spawn(0, "true")
    bench.events(2)

    assert os.getpgid(bench.server.pid) == bench.server.pid


def test_signal_to_some_workers(bench: Bench) -> None:
    """The others get none."""
    for rank in range(3):
        bench.spawn(rank, "sleep", "100")
    bench.events(3)

    bench.signal([THIRD, FIRST], signal.SIGTERM, group=False)
    ends = bench.events(2)
    bench.signal([SECOND], signal.SIGKILL, group=True)

    assert {
        (end.local_rank, end.exit_status) for end in ends if isinstance(end, events.WorkerEnded)
    } == {
        (FIRST, outcome.Killed(signal.SIGTERM)),
        (THIRD, outcome.Killed(signal.SIGTERM)),
    }
    assert bench.event() == events.WorkerEnded(SECOND, outcome.Killed(signal.SIGKILL), 7.0)


def test_signal_to_ended_workers(bench: Bench) -> None:
    """Their pids may belong to other processes, so no signal is sent."""
    bench.spawn(0, "true")
    bench.events(2)

    bench.signal([FIRST, SECOND], signal.SIGKILL, group=True)
    bench.spawn(1, "sh", "-c", "exit 4")

    assert bench.events(2)[1] == events.WorkerEnded(SECOND, outcome.Exited(4), 7.0)


def test_sigquit_is_not_sent_to_workers_that_ignore_it(bench: Bench) -> None:
    """A worker that ignores it prints no stacks."""
    ignores = bench.spawn(0, "sh", "-c", "trap '' QUIT; echo ready; exec sleep 100")
    assert ignores.line() == "ready"
    bench.events(1)

    bench.forward(signal.SIGQUIT)

    assert bench.event() == events.SignalNotHandled(signal.SIGQUIT, (FIRST,), 7.0)


def reported(happened: Iterable[events.Event]) -> set[int]:
    """Return the signals among events that the fork server received and reported."""
    signals = [event for event in happened if isinstance(event, SignalReceived)]
    assert all(event.to_fork_server for event in signals)
    return {event.number for event in signals}


SENT_TO_ALL = "HUP INT QUIT TERM USR1 USR2 ALRM VTALRM PROF IO PWR XCPU TSTP TTIN TTOU"
"""The signals that a scheduler can be told to send before a limit, or with which it pauses a job."""


def test_the_fork_server_survives_signals_to_all_processes(bench: Bench) -> None:
    """Schedulers and containers signal every process; only the agent acts on it."""
    bench.spawn(0, "sh", "-c", "trap 'exit 5' TERM; echo ready; sleep 100 & wait")
    bench.events(1)

    for name in SENT_TO_ALL.split():
        os.kill(bench.server.pid, signal.Signals[f"SIG{name}"])
    happened = bench.events(len(worker_signals.REPORTED))
    bench.signal([FIRST], signal.SIGTERM, group=False)

    end = bench.event()
    assert reported(happened) == set(worker_signals.REPORTED) - ignored_here()
    assert isinstance(end, events.WorkerEnded)


def test_signals_while_the_fork_server_starts() -> None:
    """They are blocked until the server handles them."""
    with fork_server() as bench:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(bench.server.pid, number)
        bench.spawn(0, "true")

        while isinstance(event := bench.event(), SignalReceived | events.WorkerStarted):
            pass

    assert event == events.WorkerEnded(FIRST, outcome.Exited(0), 7.0)


class UnstartedServer(program.Server):
    """A server with a worker in the middle of its start, and what is reported of it."""

    def __init__(self, worker: int, *, executed: bool) -> None:
        # The pipe of a start; nothing is written, and it stays open.
        self._pipe = os.pipe()
        caught = program.ForkedWorker(0, worker, self._pipe[0], runs_python=True)
        if executed:
            caught.status = None
        self._workers = {worker: caught}
        self._failure_notes = FailureNotes()
        self.reported: list[object] = []

    def __del__(self) -> None:
        for descriptor in self._pipe:
            os.close(descriptor)

    def report(self, message: "messages.FromForkServer") -> None:
        self.reported.append(message)


Child = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def child() -> Iterator[Child]:
    """Return a function that starts a shell which has printed "ready"; it is ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(["sh", "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=10)


@pytest.mark.parametrize(("executed", "not_handled"), [(True, []), (False, [0])])
def test_signal_is_not_forwarded_before_the_program_runs(
    child: Child, not_handled: list[int], *, executed: bool
) -> None:
    """Until then the child ignores signals that would kill the program."""
    workers = UnstartedServer(
        child("trap '' USR1; echo ready; exec sleep 100").pid, executed=executed
    )

    workers.forward(signal.SIGUSR1)

    assert workers.reported == [messages.NotHandled(signal.SIGUSR1, not_handled)]


def test_group_signal_before_the_group_exists(child: Child) -> None:
    """The worker gets it; otherwise it would be lost, and the grace period wasted."""
    process = child("echo ready; exec sleep 100")
    request = messages.SendSignal([0], signal.SIGTERM, group=True, except_failing=False)

    UnstartedServer(process.pid, executed=False).send_signal(request)

    assert processes.reap_child(process.pid, PATIENCE) == signal.SIGTERM
