"""No process is left: groups and daemons end, whichever process ends first."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.policy import events, outcome
from clusterrun.workers.fork_server import kernel

from tests.waiting import wait_until
from tests.workers.fork_server_bench import Bench, Reader

FIRST = LocalRank(0)

CHILD = "sleep 1000 &"
"""It stays in the worker's process group."""

DAEMON = "setsid sleep 1000 &"
"""It leaves the process group and the session."""

STUBBORN = f"""{sys.executable} -c '
import os, signal
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
print("here", flush=True)
signal.pause()
' &"""
"""It forks twice, as daemons do, and ignores all signals that it can."""


@pytest.fixture(autouse=True)
def bystander() -> Iterator[None]:
    """Fail if a process of the tests, in its own process group, is signalled."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield
    assert process.poll() is None, "a bystander was signalled"
    process.kill()
    process.wait(10)


def ended(bench: Bench, *commands: str, code: int = 0) -> Reader:
    """Return the output of a worker that has started these processes and has ended."""
    printed = bench.spawn(0, "sh", "-c", "\n".join([*commands, f"echo over; exit {code}"]))
    assert "over" in (printed.line(), printed.line() if STUBBORN in commands else "")
    assert bench.events(2)[1] == events.WorkerEnded(FIRST, outcome.Exited(code), 7.0)
    return printed


def test_failed_worker_kills_its_group(bench: Bench) -> None:
    """Data loaders of a failed rank would keep its GPU's memory."""
    printed = ended(bench, CHILD, CHILD, code=3)

    assert printed.rest() == ""


def test_cleanup_kills_daemons(bench: Bench) -> None:
    """The fork server adopts them."""
    printed = ended(bench, STUBBORN)

    bench.server.clean_up(7.0)

    assert bench.event() == events.CleanedUp((), 7.0)
    assert printed.rest() == ""


def test_cleanup_kills_workers(bench: Bench) -> None:
    """Their ends are reported before that of the cleanup."""
    printed = bench.spawn(0, "sh", "-c", f"{DAEMON} exec sleep 1000")
    bench.expect(events.WorkerStarted)

    bench.server.clean_up(7.0)
    end, swept = bench.events(2)

    assert (type(end).__name__, swept) == ("WorkerEnded", events.CleanedUp((), 7.0))
    assert printed.rest() == ""


def test_close_kills_leftovers_of_lost_server(bench: Bench) -> None:
    """The job may have ended without a request for a cleanup."""
    printed = bench.spawn(0, "sh", "-c", f"{DAEMON} exec sleep 1000")
    bench.expect(events.WorkerStarted)
    os.kill(bench.server.pid, signal.SIGKILL)
    bench.expect(events.HelperLost)

    bench.server.close()

    assert printed.rest() == ""


def test_close_does_not_wait_for_lost_server(bench: Bench) -> None:
    """Its pid may belong to another process."""
    os.kill(bench.server.pid, signal.SIGKILL)
    bench.expect(events.HelperLost)
    other = subprocess.Popen(["sleep", "1000"])
    bench.server.pid = other.pid
    bench.server.orphans.helpers.add(other.pid)

    bench.server.close()

    assert other.poll() is None
    other.kill()
    other.wait(10)


def test_worker_started_while_server_dies(bench: Bench) -> None:
    """A worker checks its parent, which may have died before PR_SET_PDEATHSIG was set."""
    printed = [bench.spawn(rank, "sleep", "1000") for rank in range(16)]

    bench.expect(events.WorkerStarted)
    os.kill(bench.server.pid, signal.SIGKILL)

    assert [reader.rest() for reader in printed] == [""] * 16
    while not isinstance(bench.event(), events.HelperLost):
        pass


def test_describe_missing_process() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait(10)

    assert kernel.state_and_parent(gone.pid) == ("X", 0)
    assert kernel.describe(gone.pid) == f"pid {gone.pid} (?, state X in ?)"


def test_zombies_are_not_children() -> None:
    """Whatever the process names contain."""
    name = "a) R 1 (b"
    living = subprocess.Popen([sys.executable, "-c", SLEEPER, name], stdout=subprocess.PIPE)
    zombie = subprocess.Popen(["true"])
    assert living.stdout is not None
    living.stdout.readline()
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)

    children = kernel.children_of(os.getpid())

    assert living.pid in children
    assert zombie.pid not in children
    zombie.wait(10)
    living.kill()
    living.communicate(timeout=10)


TRACER = """
import ctypes, sys
library = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
assert library.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) == 0, ctypes.get_errno()
print("traces", flush=True)
sys.stdin.read()
"""

TRACED = """
import ctypes, signal
PR_SET_PTRACER, ANY = 0x59616D61, ctypes.c_ulong(-1)
ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANY, 0, 0, 0)
print("ready", flush=True)
signal.pause()
"""


def test_zombie_of_a_debugger_is_described() -> None:
    """Its parent can't reap it."""
    traced = subprocess.Popen([sys.executable, "-c", TRACED], stdout=subprocess.PIPE)
    assert traced.stdout is not None
    traced.stdout.readline()
    with subprocess.Popen(
        [sys.executable, "-c", TRACER, str(traced.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == b"traces\n"

        traced.kill()
        wait_until(lambda: kernel.state_and_parent(traced.pid)[0] == "Z", "its end")
        children, named = kernel.children_of(os.getpid()), kernel.describe(traced.pid)

    assert traced.pid in children
    name = Path(sys.executable).name[:15]
    assert named == f"pid {traced.pid} ({name}, state Z, held by its tracer pid {tracer.pid})"
    traced.communicate(timeout=10)
    assert traced.pid not in kernel.children_of(os.getpid())


SLEEPER = """
import signal, sys
open("/proc/self/comm", "w").write(sys.argv[1])
print("ready", flush=True)
signal.pause()
"""
