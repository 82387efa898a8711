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
from clusterrun.workers.fork_server import kernel

from tests.imports import imports, output_of

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

orphans = Orphans()
# Stands for the fork server.
server = child()
"""
)

EPILOGUE = """
for process in [value for value in globals().values() if isinstance(value, subprocess.Popen)]:
    process.kill()
    process.wait()
"""


SCENES = {
    # The relay prints the report when all others have ended.
    "helpers are not killed": (
        """
        relay = child()
        server.kill(); server.wait()
        orphans.helpers = {server.pid, relay.pid}
        print(orphans.end(seconds=10.0), relay.poll())
        """,
        "() None",
    ),
    # Its orphans may arrive before its end is known.
    "an unreaped fork server counts as dead": (
        """
        server.kill()
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        left = orphan()
        orphans.exempt_current_children(server.pid)
        orphans.helpers = {server.pid}
        print(orphans.end(seconds=10.0), is_alive(left))
        """,
        "() False",
    ),
    # Other code waits for the helpers, and needs their status.
    "orphans are reaped, but not helpers": (
        """
        gone = dead_orphan()
        orphans.helpers = {server.pid}
        orphans.reap()
        print(os.path.exists(f"/proc/{gone}"), end=" ")
        server.kill()
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        orphans.helpers = {server.pid}
        orphans.reap()
        print(server.wait())
        orphans.helpers = set()
        orphans.reap()
        """,
        f"False {-signal.SIGKILL}",
    ),
    # It may have left more orphans, so the children are listed again.
    "a zombie does not stop the end": (
        """
        server.kill(); server.wait()
        gone = dead_orphan()
        print(orphans.end(seconds=10.0), os.path.exists(f"/proc/{gone}"))
        """,
        "() False",
    ),
    # The wait is limited.
    "an orphan that can't be killed is described": (
        """
        server.kill(); server.wait()
        left = orphan()
        really = os.kill
        os.kill = lambda pid, number: None
        described = orphans.end(seconds=0.05)
        print(str(described).replace(str(left), "N").partition(" in ")[0], end=" ")
        really(left, signal.SIGKILL)
        print(reap_child(left, 10.0) is not None)
        """,
        "('pid N (sleep, state S True",
    ),
}


@pytest.mark.parametrize("scene", SCENES)
def test_orphans(scene: str) -> None:
    """All that the process has started must be gone by its end."""
    code, printed = SCENES[scene]

    found = output_of(PRELUDE + dedent(code) + EPILOGUE, sys.executable, "-W", "ignore")

    assert found == f"{printed}\n"


@pytest.mark.needs("root", "unshare")
def test_pid_1_signals_no_orphan() -> None:
    """It gets the orphans of all processes of a container, and only reaps them."""
    code = PRELUDE + dedent("""
        server.kill(); server.wait()
        left = orphan()
        orphans.helpers = {server.pid}
        print(os.getpid(), orphans.end(seconds=10.0), is_alive(left))
    """)

    unshare = ("unshare", "--pid", "--fork", "--mount-proc")
    assert output_of(code, *unshare, sys.executable) == "1 () True\n"


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


@pytest.mark.needs("root", "unshare")
def test_proc_of_another_pid_namespace_has_no_children() -> None:
    """The processes of these numbers are not ours, so none may be signalled."""
    code = imports(kernel.children_of, kernel.group_of, kernel.refused_protections)
    code += imports(kernel.handles_or_ignores)
    # Outside, 1 and 2 have children or are leaders, and 1 handles SIGCHLD, or 2 ignores all signals.
    code += "print(children_of(1), group_of(1), refused_protections())\n"
    code += "print([handles_or_ignores(pid, 17) for pid in (1, 2)])"

    printed = output_of(code, "unshare", "--pid", "--fork", sys.executable)

    lacks = "/proc shows another PID namespace (unshare has --mount-proc)"
    assert printed == f"[] [1] {[lacks]}\n[False, False]\n"
