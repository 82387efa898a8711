"""The agent's orphans, in a process that becomes a subreaper."""

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
    imports(processes.reap_child, Orphans)
    + """
import os, signal, subprocess, time

def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

def orphan():
    # A process in its own session whose parent has ended: this subreaper becomes its parent.
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


def test_helpers_are_not_killed() -> None:
    """The relay prints the report when all others have ended."""
    printed = run("""
        orphans = Orphans()
        relay = child()
        server.kill(); server.wait()
        orphans.helpers = {server.pid, relay.pid}
        print(orphans.end(seconds=10.0), relay.poll())
    """)

    assert printed == "() None\n"


def test_unreaped_fork_server_counts_as_dead() -> None:
    """Its orphans may arrive before its end is known."""
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


def test_orphans_are_reaped_but_not_helpers() -> None:
    """Other code waits for the helpers, and needs their status."""
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


def test_zombie_orphans_do_not_stop_end() -> None:
    """A zombie may have left more orphans, so the children are listed again."""
    printed = run("""
        orphans = Orphans()
        server.kill(); server.wait()
        gone = dead_orphan()
        print(orphans.end(seconds=10.0), os.path.exists(f"/proc/{gone}"))
    """)

    assert printed == "() False\n"


def test_unkillable_orphan_is_described() -> None:
    """The wait is limited."""
    printed = run("""
        orphans = Orphans()
        server.kill(); server.wait()
        left = orphan()
        really = os.kill
        os.kill = lambda pid, number: None
        print(orphans.end(seconds=0.05))
        really(left, signal.SIGKILL)
        print(reap_child(left, 10.0) is not None)
    """)

    first, second = printed.splitlines()
    assert first.startswith("('pid ")
    assert "(sleep, state S in " in first
    assert second == "True"


@pytest.mark.needs("root", "unshare")
def test_pid_1_signals_no_orphan() -> None:
    """It gets the orphans of all processes of a container, and only reaps them."""
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


def test_status_of_child_whose_sigchld_goes_to_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends between the check and the wait, while this thread blocks SIGCHLD."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    process = subprocess.Popen(["sleep", "1000"])
    waitpid, calls = os.waitpid, itertools.count()

    def kill_after_first_call(pid: int, options: int) -> tuple[int, int]:
        found = waitpid(pid, options)
        if next(calls) == 0:
            process.kill()
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return found

    monkeypatch.setattr(os, "waitpid", kill_after_first_call)
    before = time.monotonic()
    status = processes.reap_child(process.pid, 60.0)
    took = time.monotonic() - before
    monkeypatch.undo()
    over.set()
    thread.join()
    process.wait()

    assert status == signal.SIGKILL
    assert took < 20


def test_end_of_another_child_does_not_end_the_wait() -> None:
    other = subprocess.Popen(["true"])
    process = subprocess.Popen(["sleep", "1000"])

    assert processes.reap_child(process.pid, 0.1) is None
    assert other.wait(10) == 0
    process.kill()
    assert processes.reap_child(process.pid, 10.0) is not None
    process.wait()


def test_process_that_is_not_a_child_counts_as_gone() -> None:
    """Its pid may belong to another process by now."""
    assert processes.reap_child(os.getppid(), 10.0) is not None
