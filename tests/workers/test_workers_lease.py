"""The fork server kills workers, and starts none, once the workers' lease has expired."""

import os
import signal

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.policy import events, outcome
from clusterrun.workers.fork_server import kernel
from clusterrun.workers.fork_server.kernel import boot_clock

from tests.waiting import wait_until
from tests.workers.fork_server_bench import Bench, preparation_for
from tests.workers.test_fork_server_cleanup import DAEMON

ENDED_BY_LEASE = events.WorkerEnded(
    LocalRank(0), outcome.Killed(signal.SIGKILL), 7.0, by_lease=True
)


def test_expired_lease_kills_workers(bench: Bench) -> None:
    """The lease is reported as the reason of each end."""
    printed = [bench.spawn(rank, "sleep", "1000") for rank in range(2)]
    bench.events(2)

    bench.server.renew_lease(boot_clock() + 0.1)
    ends = bench.events(2)
    bench.server.clean_up(7.0)

    assert [reader.rest() for reader in printed] == ["", ""]
    assert all(isinstance(end, events.WorkerEnded) and end.by_lease for end in ends)
    assert bench.event() == events.CleanedUp((), 7.0)


@pytest.mark.parametrize("end", ["exec sleep 1000", "exit 0"])
def test_expired_lease_kills_daemons(bench: Bench, end: str) -> None:
    """Even if the worker that has started one has ended."""
    printed = bench.spawn(0, "sh", "-c", f"{DAEMON} echo $!; {end}")
    daemon = int(printed.line())

    bench.server.renew_lease(boot_clock() + 0.1)

    wait_until(lambda: kernel.state_and_parent(daemon)[0] in "ZX", "the end of the daemon")


@pytest.mark.parametrize("lease", [1000.0, None])
def test_renewed_lease_kills_nothing(bench: Bench, lease: float | None) -> None:
    bench.spawn(0, "sh", "-c", "sleep 1; exit 3")
    bench.expect(events.WorkerStarted)

    bench.server.renew_lease(boot_clock() + 0.2)
    bench.server.renew_lease(lease and boot_clock() + lease)

    ended = bench.expect(events.WorkerEnded)
    assert (ended.exit_status, ended.by_lease) == (outcome.Exited(3), False)


@pytest.mark.parametrize(
    ("command", "exit_status"),
    [("exit 3", outcome.Exited(3)), ("kill -KILL $$", outcome.Killed(signal.SIGKILL))],
)
def test_worker_that_ended_before_expiry_keeps_its_status(
    bench: Bench, command: str, exit_status: outcome.ExitStatus
) -> None:
    """The server was stopped when the worker ended, and when the lease expired."""
    printed = bench.spawn(0, "sh", "-c", f"sleep 0.2; echo over; {command}")
    worker = bench.expect(events.WorkerStarted).pid
    os.kill(bench.server.pid, signal.SIGSTOP)
    assert printed.rest() == "over\n"
    wait_until(lambda: kernel.state_and_parent(worker)[0] == "Z", "the end of the worker")
    bench.server.renew_lease(boot_clock())
    os.kill(bench.server.pid, signal.SIGCONT)

    assert bench.event() == events.WorkerEnded(LocalRank(0), exit_status, 7.0)


def test_no_worker_starts_after_expiry(bench: Bench) -> None:
    """Its streams are closed, and its end is reported at once; a renewal lets workers start again."""
    bench.server.renew_lease(boot_clock() - 1.0)
    refused = bench.spawn(0, "echo", "runs")

    assert bench.event() == ENDED_BY_LEASE
    assert refused.rest() == ""
    bench.server.renew_lease(boot_clock() + 1000.0)
    started = bench.spawn(0, "echo", "runs")
    assert bench.events(2)[1] == events.WorkerEnded(LocalRank(0), outcome.Exited(0), 7.0)
    assert started.rest() == "runs\n"


def test_lease_is_sent_after_preparation(bench: Bench) -> None:
    """The server reads no message before."""
    bench.server.prepare(preparation_for("train.py"))
    bench.server.renew_lease(boot_clock() - 1.0)
    bench.expect(events.ForkServerPrepared)

    bench.spawn(0, "echo", "runs")

    assert bench.event() == ENDED_BY_LEASE


def test_stopped_server_reads_renewal_first(bench: Bench) -> None:
    """It kills no worker, and starts one that was requested before the renewal."""
    running = bench.spawn(0, "sh", "-c", "echo here; sleep 1; echo there")
    assert running.line() == "here"
    bench.expect(events.WorkerStarted)

    os.kill(bench.server.pid, signal.SIGSTOP)
    bench.server.renew_lease(boot_clock())
    later = bench.spawn(1, "echo", "runs")
    bench.server.renew_lease(boot_clock() + 1000.0)
    os.kill(bench.server.pid, signal.SIGCONT)

    assert (running.rest(), later.rest()) == ("there\n", "runs\n")


def test_lease_expires_while_server_is_stopped(bench: Bench) -> None:
    """As in a suspended job: the other nodes may have continued without this one."""
    printed = bench.spawn(0, "sleep", "1000")
    bench.expect(events.WorkerStarted)

    os.kill(bench.server.pid, signal.SIGSTOP)
    ends = boot_clock() + 0.3
    bench.server.renew_lease(ends)
    wait_until(lambda: boot_clock() > ends, "the end of the lease")
    os.kill(bench.server.pid, signal.SIGCONT)

    assert bench.event() == ENDED_BY_LEASE
    assert printed.rest() == ""


def stops_the_server(bench: Bench) -> int:
    """Start a worker, and stop its server when the lease expires; return the worker's process id."""
    bench.spawn(0, "sleep", "1000")
    worker = bench.expect(events.WorkerStarted).pid
    os.kill(bench.server.pid, signal.SIGSTOP)
    wait_until(lambda: kernel.state_and_parent(bench.server.pid)[0] == "T", "the stop")
    bench.server.renew_lease(boot_clock())
    bench.server.lease_grace = 0.25
    return worker


def test_stopped_server_is_killed_with_its_workers(bench: Bench) -> None:
    """After a moment: the server may continue later than this process."""
    worker = stops_the_server(bench)

    assert [*bench.server.events(7.0), *bench.server.events(7.2)] == []
    [lost] = bench.server.events(7.25)

    how = "is stopped, and has not ended the workers whose lease has expired"
    assert lost == events.HelperLost("fork server", how, signal.SIGKILL, 7.25)
    wait_until(lambda: kernel.state_and_parent(worker)[0] in "ZX", "the end of the worker")


def test_server_that_continues_in_time_kills_workers(bench: Bench) -> None:
    stops_the_server(bench)

    assert [*bench.server.events(7.0)] == []
    os.kill(bench.server.pid, signal.SIGCONT)

    assert bench.expect(events.WorkerEnded).by_lease
    assert [*bench.server.events(7.25), *bench.server.events(7.5)] == []
