"""A helper process that runs but does not respond is detected, killed and named."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from clusterrun.policy import events
from clusterrun.workers import fork_server_process
from clusterrun.workers.fork_server import kernel
from clusterrun.workers.helper_client import HelperWatch
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import LauncherOutput

from tests.waiting import wait_until
from tests.workers.fork_server_bench import Bench, fork_server, preparation_for

STOPPED = "has not answered for 5 s: it is stopped"
TRACED = "has not answered for 5 s: a debugger has stopped it"
ASLEEP = "has not answered for 5 s"


def check(
    states: str, *, ticks: str = "", pinged: bool, gap_after: int = 99
) -> tuple[str | None, int]:
    """Check once a second; return the result and number of the last check.

    Args:
        states: the process's state at each check.
        ticks: its CPU time at each check.
        pinged: it was sent a ``Ping``, and has not answered.
        gap_after: the check after which this process was stopped for an hour.

    """
    now, seen = 100.0, iter(zip(states, ticks or "0" * len(states), strict=True))

    def read(_pid: int) -> list[str]:
        state, used = next(seen)
        return [state, *["0"] * 10, used, "0"]

    watch = HelperWatch(read)
    watch.begin(now)
    watch.is_pinged = pinged
    for number in range(1, len(states) + 1):
        now = watch.due + (3600.0 if number == gap_after + 1 else 0.0)
        if how := watch.check(1, now):
            return how, number
    return None, len(states)


@pytest.mark.parametrize(
    ("states", "pinged", "found"),
    [
        ("TTTTTTT", True, (STOPPED, 6)),
        ("ttttttt", True, (TRACED, 6)),
        ("SSSSSSS", True, (ASLEEP, 6)),
        # Continued for a moment.
        ("TTTTTRTTTTTTT", True, (STOPPED, 12)),
        # Waiting for a CPU, or for a disk.
        ("RRRRRRRRR", True, (None, 9)),
        ("DDDDDDDDD", True, (None, 9)),
        ("SSSSSDSSSSS", True, (None, 11)),
        # Its end is detected by other means.
        ("ZZZZZZZZZ", True, (None, 9)),
        # It is not pinged while it imports; a relay never is.
        ("SSSSSSSSS", False, (None, 9)),
        ("TTTTTTT", False, (STOPPED, 6)),
    ],
)
def test_process_state_decides(states: str, pinged: bool, found: tuple[str | None, int]) -> None:
    assert check(states, pinged=pinged) == found


@pytest.mark.parametrize(
    ("states", "ticks", "found"),
    [
        # A debugger steps through it.
        ("ttttttttt", "012345678", (None, 9)),
        # It gets little CPU time.
        ("SSSSSSSSS", "000011112", (None, 9)),
        ("SSSSSSSSSS", "0011111111", (ASLEEP, 8)),
    ],
)
def test_process_that_uses_the_cpu_is_not_lost(
    states: str, ticks: str, found: tuple[str | None, int]
) -> None:
    assert check(states, ticks=ticks, pinged=True) == found


def test_time_while_this_process_was_stopped_does_not_count() -> None:
    """The helper was stopped with it, and is about to continue."""
    assert check("TTTTTSS", pinged=False, gap_after=4) == (None, 7)
    assert check("TTTTTTTTTT", pinged=False, gap_after=4) == (STOPPED, 10)


def events_of_seconds(bench: Bench, seconds: int) -> list[events.Event]:
    """Return the events of a fork server that is checked once a second."""
    return [event for now in range(seconds) for event in bench.server.events(8.0 + now)]


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: kernel.state_and_parent(pid)[0] == "T", "the stop")


@pytest.fixture(params=[False, True], ids=["alone", "guarded"])
def any_bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with fork_server(is_guarded=request.param) as bench:
        yield bench


def test_stopped_fork_server_is_killed_with_its_workers(any_bench: Bench) -> None:
    """Also below a guard, which itself runs."""
    printed = any_bench.spawn(0, "sh", "-c", "echo $PPID; sleep 1000 & exec sleep 1000")
    server = int(printed.line())
    any_bench.expect(events.WorkerStarted)
    stop(server)

    lost = events_of_seconds(any_bench, 7)

    assert lost == [events.HelperLost("fork server", STOPPED, signal.SIGKILL, 13.0)]
    assert any_bench.server.lost
    assert any_bench.server.clean_up(7.0) == [events.CleanedUp((), 7.0)]
    assert printed.rest() == ""
    assert kernel.state_and_parent(server)[0] == "X"


def test_answering_fork_server_is_not_lost(any_bench: Bench) -> None:
    any_bench.spawn(0, "true")
    any_bench.events(2)

    for now in range(20):
        assert list(any_bench.server.events(8.0 + now)) == []
        time.sleep(0.01)
    any_bench.spawn(0, "true")

    any_bench.events(2)
    assert not any_bench.server.lost


def test_fork_server_stopped_before_it_is_ready_is_lost() -> None:
    """It can not be pinged yet."""
    with fork_server(environ={"PYTHONDONTWRITEBYTECODE": "1"}) as bench:
        stop(bench.server.pid)
        bench.server.prepare(preparation_for("train.py"))

        lost = events_of_seconds(bench, 7)

    assert lost[-1] == events.HelperLost("fork server", STOPPED, signal.SIGKILL, 13.0)


def test_importing_fork_server_is_not_pinged(tmp_path: Path) -> None:
    """It may sleep as long as it likes: ``--import-timeout`` is for that."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    with fork_server(str(python)) as bench:
        bench.server.prepare(preparation_for("train.py"))

        assert events_of_seconds(bench, 30) == []
        stop(bench.server.pid)
        assert len(events_of_seconds(bench, 60)) == 1


def test_stopped_relay_is_killed(bench: Bench) -> None:
    """A relay that waits for a terminal sleeps, and is not lost."""
    relay = RelayClient.start(LauncherOutput(1, 2))
    relay.run_in(bench.loop)
    wait_until(lambda: kernel.state_and_parent(relay.pid)[0] == "S", "its sleep")
    before = [event for now in range(9) for event in relay.events(8.0 + now)]

    stop(relay.pid)
    after = [event for now in range(9) for event in relay.events(17.0 + now)]
    relay.close(0.0)

    assert before == []
    assert after == [events.HelperLost("relay", STOPPED, signal.SIGKILL, 22.0)]
    assert relay.exit_description == STOPPED


def test_workers_of_a_server_that_hangs_in_the_kernel_are_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server can not be killed, so the kernel does not kill its workers."""
    printed = bench.spawn(0, "sleep", "1000")
    bench.expect(events.WorkerStarted)
    stop(bench.server.pid)
    # As in state D, no signal kills it.
    immune = {bench.server.pid}
    send = kernel.send_signal
    monkeypatch.setattr(
        fork_server_process,
        "send_signal",
        lambda pid, number: None if pid in immune else send(pid, number),
    )
    monkeypatch.setattr(fork_server_process, "SECONDS_TO_CLEAN_UP", 0.5)

    events_of_seconds(bench, 7)

    assert printed.rest() == ""
    assert kernel.state_and_parent(bench.server.pid)[0] == "T"
    with suppress(ProcessLookupError):
        os.kill(bench.server.pid, signal.SIGKILL)
