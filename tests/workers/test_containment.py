"""The agent's own layer of containment, in a process of its own that becomes a subreaper."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from textwrap import dedent

import pytest
from clusterrun import processes
from clusterrun.workers.children import Orphans

from tests.imports import imports

PRELUDE = (
    imports(processes.status_of, Orphans)
    + """
import os, signal, subprocess, time

def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

def orphan():
    # A process of its own session, whose parent has ended: the nearest subreaper's, that is ours.
    parent = subprocess.run(
        ["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"],
        stdout=subprocess.PIPE, check=True, timeout=10,
    )
    pid = int(parent.stdout)
    while True:
        with open(f"/proc/{pid}/stat") as stat:
            if "(sleep) S " in stat.read():
                return pid
        time.sleep(0.01)

def dead_orphan():
    pid = orphan()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

def child():
    return subprocess.Popen(["sleep", "1000"])

# Stands for the fork server.
server = child()
"""
)

EPILOGUE = """
for process in [value for value in globals().values() if isinstance(value, subprocess.Popen)]:
    process.kill()
    process.wait()
"""


def run(code: str) -> str:
    """Return what a process prints; all that it started must be gone by then."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + dedent(code) + EPILOGUE],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_our_own_processes_are_spared() -> None:
    """The relay prints the report when all others have ended."""
    printed = run("""
        orphans = Orphans()
        relay = child()
        server.kill(); server.wait()
        orphans.helpers = {server.pid, relay.pid}
        print(orphans.end(seconds=10.0), relay.poll())
    """)

    assert printed == "() None\n"


def test_a_fork_server_that_has_not_been_reaped_is_dead() -> None:
    """Its orphans may arrive before we learn of its end."""
    printed = run("""
        orphans = Orphans()
        server.kill()
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        left = orphan()
        orphans.exempt_current_children(server.pid)
        orphans.helpers = {server.pid}
        print(orphans.end(seconds=10.0), is_alive(left))
    """)

    assert printed == "() False\n"


def test_the_dead_are_reaped_but_for_our_own() -> None:
    """Other code waits for our own children, and needs their status."""
    printed = run("""
        orphans = Orphans()
        gone = dead_orphan()
        orphans.helpers = {server.pid}
        orphans.reap()
        print(os.path.exists(f"/proc/{gone}"))
        server.kill()
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        orphans.helpers = {server.pid}
        orphans.reap()
        print(server.wait())
        orphans.helpers = set()
        orphans.reap()
    """)

    assert printed == f"False\n{-signal.SIGKILL}\n"


def test_ended_nodes_do_not_stop_the_others() -> None:
    """A child that died meanwhile has left us its children: we must look again."""
    printed = run("""
        orphans = Orphans()
        server.kill(); server.wait()
        gone = dead_orphan()
        print(orphans.end(seconds=10.0), os.path.exists(f"/proc/{gone}"))
    """)

    assert printed == "() False\n"


def test_what_cannot_be_killed_is_named() -> None:
    """The wait is limited."""
    printed = run("""
        orphans = Orphans()
        server.kill(); server.wait()
        left = orphan()
        really = os.kill
        os.kill = lambda pid, number: None
        print(orphans.end(seconds=0.05))
        really(left, signal.SIGKILL)
        print(status_of(left, 10.0) is not None)
    """)

    first, second = printed.splitlines()
    assert first.startswith("('pid ")
    assert "(sleep, state S in " in first
    assert second == "True"


@pytest.mark.needs("root", "unshare")
def test_as_init_of_a_container_no_process_is_signalled() -> None:
    """As PID 1 it gets the orphans of all processes, and only reaps them."""
    code = PRELUDE + dedent("""
        orphans = Orphans()
        server.kill(); server.wait()
        left = orphan()
        orphans.helpers = {server.pid}
        print(os.getpid(), orphans.end(seconds=10.0), is_alive(left))
    """)

    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("1 () True\n", "")


def test_another_thread_gets_the_signal_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child ends between a look and the wait, while this thread blocks SIGCHLD."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    process = subprocess.Popen(["sleep", "1000"])
    look, looks = os.waitpid, itertools.count()

    def ends_after_the_first_look(pid: int, options: int) -> tuple[int, int]:
        found = look(pid, options)
        if next(looks) == 0:
            process.kill()
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return found

    monkeypatch.setattr(os, "waitpid", ends_after_the_first_look)
    before = time.monotonic()
    status = processes.status_of(process.pid, 60.0)
    took = time.monotonic() - before
    monkeypatch.undo()
    over.set()
    thread.join()
    process.wait()

    assert status == signal.SIGKILL
    assert took < 20


def test_waiting_for_one_of_several() -> None:
    """The end of another child does not end the wait."""
    other = subprocess.Popen(["true"])
    process = subprocess.Popen(["sleep", "1000"])

    assert processes.status_of(process.pid, 0.1) is None
    assert other.wait(10) == 0
    process.kill()
    assert processes.status_of(process.pid, 10.0) is not None
    process.wait()


def test_waiting_for_a_process_that_is_not_a_child() -> None:
    """It counts as gone: its number may belong to a stranger."""
    assert processes.status_of(os.getppid(), 10.0) is not None
