"""No process of a job outlives it, and no other process is signalled."""

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from textwrap import dedent

import psutil
import pytest

from tests.contract.launched import (
    COMMAND,
    MARK,
    PROCESSES,
    SECONDS_TO_VANISH,
    Job,
    Launcher,
    await_end,
    plain_environment,
)
from tests.rounds import in_all_rounds, numbers
from tests.waiting import wait_until

TIMES = [1, pytest.param(20, marks=pytest.mark.long)]
"""Some races appear only in some runs."""

FAMILY = """
    import os, subprocess, sys, time

    def start_daemon():
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(100)
            os._exit(0)
        os.wait()

    subprocess.Popen(["sleep", "100"])
    subprocess.Popen(["sleep", "100"], start_new_session=True)
    start_daemon()
    print("ready", os.getpid(), flush=True)
    if "stay" in sys.argv:
        time.sleep(100)
    # A worker may exit without waiting for its child.
    os._exit(0)
"""
"""A worker with a child, a child in another session, and a daemon that has left both."""


class OtherProcesses:
    """Processes that are not part of a job.

    One is in another session, one is a child of the launcher's process, one is in its process group.
    """

    SCRIPT = f"""
        env -u {MARK} sleep 100 >/dev/null 2>&1 &
        echo other $!
        (env -u {MARK} sleep 100 >/dev/null 2>&1 & echo other $!)
        exec "$0" "$@"
    """
    around = ("sh", "-c", SCRIPT)

    def __init__(self) -> None:
        self.far = subprocess.Popen(["sleep", "100"], env=plain_environment())
        self.near: list[int] = []

    def find(self, job: Job) -> None:
        """Find the two that were started with ``job``."""
        self.near += job.numbers("other", 2)

    def disturbed(self) -> list[int]:
        """Return the processes that have ended or stopped."""
        return [pid for pid in (self.far.pid, *self.near) if not _sleeps(pid)]

    def end(self) -> None:
        self.far.kill()
        self.far.wait()
        for pid in self.near:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _sleeps(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_SLEEPING
    return False


@pytest.fixture
def others() -> Iterator[OtherProcesses]:
    """Return processes that a job must not signal."""
    processes = OtherProcesses()

    yield processes

    processes.end()


@pytest.mark.timeout(in_all_rounds(120))
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("process", PROCESSES)
def test_sigkill_of_any_process_ends_the_job(
    clusterrun: Launcher, process: str, others: OtherProcesses, times: int
) -> None:
    scratch = clusterrun.folder / "tmp"
    scratch.mkdir()
    environ = {"TMPDIR": str(scratch)}
    for _ in numbers(times):
        job = clusterrun.script(
            FAMILY, workers=2, args=["stay"], around=others.around, environ=environ
        )
        others.find(job)
        worker = job.numbers("ready", 2)[0]

        os.kill(PROCESSES[process](job.agent, worker), signal.SIGKILL)

        assert job.left() == []
        assert others.disturbed() == []
        code = job.ended().code
        if process == "agent":
            assert code == -signal.SIGKILL
        else:
            source = "rank [01]" if process == "worker" else f"the {process}"
            last_line = rf"clusterrun: exit code 137, from {source}: 128 \+ 9 for SIGKILL\n$"
            assert code == 128 + signal.SIGKILL
            assert re.search(last_line, job.err)
        assert list(scratch.iterdir()) == []


def kill_at_once(*pids: int) -> None:
    """Send SIGKILL to all of them before one can react to another's end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        # The end of a container's first process ends the others.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_sigkill_of_agent_and_fork_server_ends_workers(clusterrun: Launcher) -> None:
    """The kernel ends the workers; no process is left that knows their children."""
    job = clusterrun.script(FAMILY, workers=2, args=["stay"])
    workers = job.numbers("ready", 2)

    kill_at_once(job.agent, job.fork_server)

    for pid in workers:
        await_end(pid, SECONDS_TO_VANISH)


def test_next_launch_removes_folder_and_socket_of_killed_job(clusterrun: Launcher) -> None:
    """Slurm kills a step like this. A job that still runs keeps its folder."""
    scratch = clusterrun.folder / "tmp"
    scratch.mkdir()
    # The folder of the agents' sockets.
    runtime = clusterrun.folder / "run"
    runtime.mkdir()
    environ = {"TMPDIR": str(scratch), "XDG_RUNTIME_DIR": str(runtime)}
    script = 'import os, time; print("of", os.environ["TORCHELASTIC_ERROR_FILE"]); time.sleep(60)'
    killed = clusterrun.script(script, workers=1, environ=environ)
    (left,) = killed.wait_for(rf"of {scratch}/(\S+?)/")
    # All processes seem to be killed at once: none can clean up after another.
    killed.signal(signal.SIGSTOP)
    for process in killed.processes():
        if process.pid != killed.agent:
            process.kill()
    killed.kill_all()
    before = [folder.name for folder in scratch.iterdir()]

    living = clusterrun.script(script, workers=1, environ=environ)
    (kept,) = living.wait_for(rf"of {scratch}/(\S+?)/")
    wait_until(lambda: not (scratch / left).exists(), "the folder of the killed job is gone")
    clusterrun.script("", workers=1, environ=environ).ended()

    assert before == [left]
    assert [folder.name for folder in scratch.iterdir()] == [kept]
    sockets = {path.name.split("-")[2] for path in (runtime / "clusterrun").iterdir()}
    assert str(killed.agent) not in sockets
    assert str(living.agent) in sockets


@pytest.mark.parametrize("process", ["agent", "fork server"])
def test_sigkill_ends_nested_job(clusterrun: Launcher, process: str) -> None:
    inner = clusterrun.folder / "inner.py"
    inner.write_text(dedent(FAMILY))
    words = ("--no-python", COMMAND, "--nproc-per-node", "2", str(inner), "stay")
    job = clusterrun.command(*words, workers=2)
    job.numbers("ready", 4)

    os.kill(PROCESSES[process](job.agent, 0), signal.SIGKILL)

    assert job.left() == []
    job.ended()


def is_closed_by_all(pipe: int) -> bool:
    """Return whether no process holds ``pipe`` open for writing any more, in time, and close it."""
    ends = select.poll()
    ends.register(pipe, select.POLLHUP)
    closed = bool(ends.poll(SECONDS_TO_VANISH * 1000))
    os.close(pipe)
    return closed


@pytest.mark.timeout(in_all_rounds(120))
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("process", ["agent", "fork server", "worker"])
def test_sigkill_ends_daemons_that_keep_forking(
    clusterrun: Launcher, process: str, times: int
) -> None:
    """Each forks the next one in a new session and exits, so a list of processes may lack it.

    Each holds a pipe.
    """
    pipe = clusterrun.folder / "held"
    os.mkfifo(pipe)
    for _ in numbers(times):
        held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        job = clusterrun.script(
            """
            import os, time
            os.open("held", os.O_WRONLY)
            # Should this test fail, they are gone a little later.
            end = time.monotonic() + 5
            for _ in range(3):
                if os.fork() == 0:
                    while time.monotonic() < end:
                        os.setsid()
                        time.sleep(0.001)
                        if os.fork():
                            os._exit(0)
                    os._exit(0)
            print("ready", os.getpid(), flush=True)
            time.sleep(100)
            """,
            workers=2,
        )
        worker = job.numbers("ready", 2)[0]

        os.kill(PROCESSES[process](job.agent, worker), signal.SIGKILL)

        assert is_closed_by_all(held)
        job.ended()


def test_daemons_of_successful_workers_are_killed(clusterrun: Launcher) -> None:
    """With --shutdown-timeout=0 they don't delay the end, although they hold the workers' output open."""
    job = clusterrun.script(FAMILY, "--shutdown-timeout=0", workers=2)

    ended = job.ended()

    assert (ended.code, ended.err) == (0, "")
    assert job.left(0) == []


@pytest.mark.parametrize("process", ["agent", "fork server", "worker"])
def test_adopted_orphans_of_other_processes_are_not_signalled(
    clusterrun: Launcher, process: str, others: OtherProcesses
) -> None:
    """The launcher becomes the parent of orphans of processes that its process had started before."""
    os.mkfifo(clusterrun.folder / "go")
    parent = f"""
        env -u {MARK} sleep 100 >/dev/null 2>&1 &
        echo parent $$
        echo other $!
        read line <go
    """
    around = ("sh", "-c", f'sh -c \'{parent}\' & exec "$0" "$@"')
    job = clusterrun.script(FAMILY, workers=2, args=["stay"], around=around)
    worker = job.numbers("ready", 2)[0]
    others.near += job.numbers("other")

    (clusterrun.folder / "go").write_text("")
    await_end(*job.numbers("parent"))
    # The answer to a later signal shows that the agent has seen this.
    job.signal(signal.SIGUSR1)
    job.wait_for("SIGUSR1 was not passed on")
    number = signal.SIGTERM if process == "agent" else signal.SIGKILL
    os.kill(PROCESSES[process](job.agent, worker), number)

    assert job.left() == []
    assert others.disturbed() == []
    job.ended()


@pytest.mark.long
@pytest.mark.timeout(in_all_rounds(120))
@pytest.mark.parametrize("process", ["agent", "fork server"])
def test_sigkill_while_starting_ends_all_processes(clusterrun: Launcher, process: str) -> None:
    """The fork server is killed when the first worker runs and others are being started."""
    for number in numbers(50):
        job = clusterrun.script(FAMILY, workers=4, args=["stay"])
        if process == "fork server":
            job.numbers("ready")

        time.sleep(number % 50 / (100 if process == "agent" else 1000))
        os.kill(PROCESSES[process](job.agent, 0), signal.SIGKILL)

        assert job.left() == []
        code = job.ended().code
        assert process == "agent" or code == 128 + signal.SIGKILL


def test_workers_do_not_inherit_descriptors_of_the_launchers_parent(clusterrun: Launcher) -> None:
    around = ("sh", "-c", 'exec 7</dev/null; exec "$0" "$@"')

    ended = clusterrun.command("--no-python", "ls", "/proc/self/fd", around=around).ended()

    # The fourth is the folder that ls reads.
    assert ended.out.split() == ["0", "1", "2", "3"]
