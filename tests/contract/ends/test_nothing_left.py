"""However a job ends, none of its processes is left, and no other process was signalled."""

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from textwrap import dedent

import psutil
import pytest

from tests.contract.launched import (
    COMMAND,
    MARK,
    SECONDS_TO_VANISH,
    Job,
    Launcher,
    await_end,
    plain_environment,
)
from tests.rounds import in_all_rounds, numbers
from tests.waiting import wait_until

TIMES = [1, pytest.param(20, marks=pytest.mark.long)]
"""Some races appear only in some rounds."""

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
    # Not even a child that it forgot to wait for keeps a worker from its end.
    os._exit(0)
"""
"""A worker with a child, a child in another session, and a daemon that has left both."""

VICTIMS: dict[str, Callable[[Job], int]] = {
    "agent": lambda job: job.agent,
    "fork server": lambda job: job.fork_server,
    "relay": lambda job: job.relay,
    "worker": lambda job: job.numbers("ready", 2)[0],
}

LAST_LINES = {
    "agent": "",
    "fork server": "clusterrun: exit code 137, from the fork server: 128 . 9 for SIGKILL\n",
    "relay": "clusterrun: exit code 137, from the relay: 128 . 9 for SIGKILL\n",
    "worker": r"clusterrun: exit code 137, from rank [01]: 128 . 9 for SIGKILL\n",
}


class Bystanders:
    """Processes near the launcher that are not part of its job.

    One in another session, a child that the launcher has before it starts, one in its own group.
    """

    BESIDE = f"""
        env -u {MARK} sleep 100 >/dev/null 2>&1 &
        echo bystander $!
        (env -u {MARK} sleep 100 >/dev/null 2>&1 & echo bystander $!)
        exec "$0" "$@"
    """
    around = ("sh", "-c", BESIDE)

    def __init__(self) -> None:
        self.far = subprocess.Popen(["sleep", "100"], env=plain_environment())
        self.near: list[int] = []

    def find(self, job: Job) -> None:
        """Find the two that were started around ``job``."""
        self.near += job.numbers("bystander", 2)

    def disturbed(self) -> list[int]:
        """Return those that no longer sleep: they ended or stopped."""
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
def bystanders() -> Iterator[Bystanders]:
    """Return processes that a job must not signal."""
    them = Bystanders()

    yield them

    them.end()


@pytest.mark.timeout(in_all_rounds(120))
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("victim", VICTIMS)
def test_sigkill(clusterrun: Launcher, victim: str, bystanders: Bystanders, times: int) -> None:
    """SIGKILL of any process of a job ends the whole job, and no other process."""
    scratch = clusterrun.folder / "tmp"
    scratch.mkdir()
    environ = {"TMPDIR": str(scratch)}
    for _ in numbers(times):
        job = clusterrun.script(
            FAMILY, workers=2, args=["stay"], around=bystanders.around, environ=environ
        )
        bystanders.find(job)
        job.numbers("ready", 2)

        os.kill(VICTIMS[victim](job), signal.SIGKILL)

        assert job.left() == []
        assert bystanders.disturbed() == []
        assert job.ended().code == (-signal.SIGKILL if victim == "agent" else 128 + signal.SIGKILL)
        assert re.search(f"{LAST_LINES[victim]}$", job.err)
        assert list(scratch.iterdir()) == []


def kill_at_once(*pids: int) -> None:
    """Send SIGKILL to all of them before one can react to another's end."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        # The end of a container's first process ends the others.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_agent_and_fork_server_at_once(clusterrun: Launcher) -> None:
    """The kernel ends the workers; no process is left that knows their children."""
    job = clusterrun.script(FAMILY, workers=2, args=["stay"])
    workers = job.numbers("ready", 2)

    kill_at_once(job.agent, job.fork_server)

    for pid in workers:
        await_end(pid, SECONDS_TO_VANISH)


def test_the_next_launch_removes_what_a_killed_one_has_left(clusterrun: Launcher) -> None:
    """Slurm kills a step like this. A job that still runs keeps its folder."""
    scratch = clusterrun.folder / "tmp"
    scratch.mkdir()
    # Where the agents' sockets are: those of killed agents are removed, too.
    runtime = clusterrun.folder / "run"
    runtime.mkdir()
    environ = {"TMPDIR": str(scratch), "XDG_RUNTIME_DIR": str(runtime)}
    script = 'import os, time; print("of", os.environ["TORCHELASTIC_ERROR_FILE"]); time.sleep(60)'
    killed = clusterrun.script(script, workers=1, environ=environ)
    (left,) = killed.wait_for(rf"of {scratch}/(\S+?)/")
    # As if all were killed at once: none has the time to clean up after another.
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


@pytest.mark.parametrize("victim", ["agent", "fork server"])
def test_a_launch_within_a_launch(clusterrun: Launcher, victim: str) -> None:
    """The end of the outer job ends the inner jobs, and all that they started."""
    inner = clusterrun.folder / "inner.py"
    inner.write_text(dedent(FAMILY))
    words = ("--no-python", COMMAND, "--nproc-per-node", "2", str(inner), "stay")
    job = clusterrun.command(*words, workers=2)
    job.numbers("ready", 4)

    os.kill(VICTIMS[victim](job), signal.SIGKILL)

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
@pytest.mark.parametrize("victim", ["agent", "fork server", "worker"])
def test_daemons_that_fork_all_the_time(clusterrun: Launcher, victim: str, times: int) -> None:
    """Each lives for a moment, and has forked the next one by then, in a session of its own.

    No process list shows them; each holds a pipe. The launcher would miss one at a rare moment.
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
        job.numbers("ready", 2)

        os.kill(VICTIMS[victim](job), signal.SIGKILL)

        assert is_closed_by_all(held)
        job.ended()


def test_workers_that_end_well_leave_daemons(clusterrun: Launcher) -> None:
    """They hold the workers' output open, and don't delay the end where they are not to be waited for."""
    job = clusterrun.script(FAMILY, "--shutdown-timeout=0", workers=2)

    ended = job.ended()

    assert (ended.code, ended.err) == (0, "")
    assert job.left(0) == []


@pytest.mark.parametrize("victim", ["agent", "fork server", "worker"])
def test_orphans_of_other_processes(
    clusterrun: Launcher, victim: str, bystanders: Bystanders
) -> None:
    """An orphan of an older child becomes the launcher's child, too, but is not signalled."""
    os.mkfifo(clusterrun.folder / "go")
    parent = f"""
        env -u {MARK} sleep 100 >/dev/null 2>&1 &
        echo parent $$
        echo bystander $!
        read line <go
    """
    around = ("sh", "-c", f'sh -c \'{parent}\' & exec "$0" "$@"')
    job = clusterrun.script(FAMILY, workers=2, args=["stay"], around=around)
    job.numbers("ready", 2)
    bystanders.near += job.numbers("bystander")

    (clusterrun.folder / "go").write_text("")
    await_end(*job.numbers("parent"))
    # The answer to a later signal shows that the agent has seen this.
    job.signal(signal.SIGUSR1)
    job.wait_for("SIGUSR1 was not passed on")
    os.kill(VICTIMS[victim](job), signal.SIGTERM if victim == "agent" else signal.SIGKILL)

    assert job.left() == []
    assert bystanders.disturbed() == []
    job.ended()


@pytest.mark.long
@pytest.mark.timeout(in_all_rounds(120))
def test_sigkill_of_the_agent_while_starting(clusterrun: Launcher) -> None:
    """All processes that exist by then end, at any time."""
    for number in numbers(50):
        job = clusterrun.script(FAMILY, workers=4, args=["stay"])

        time.sleep(number % 50 / 100)
        job.signal(signal.SIGKILL)

        assert job.left() == []
        job.ended()


@pytest.mark.long
@pytest.mark.timeout(in_all_rounds(120))
def test_sigkill_of_the_fork_server_while_starting(clusterrun: Launcher) -> None:
    """As above; the first worker runs, and others are being started."""
    for number in numbers(50):
        job = clusterrun.script(FAMILY, workers=4, args=["stay"])
        job.numbers("ready")

        time.sleep(number % 50 / 1000)
        os.kill(job.fork_server, signal.SIGKILL)

        assert job.left() == []
        assert job.ended().code == 128 + signal.SIGKILL


def test_workers_inherit_three_descriptors(clusterrun: Launcher) -> None:
    """None of the launcher's descriptors, and none that its parent left open."""
    around = ("sh", "-c", 'exec 7</dev/null; exec "$0" "$@"')

    ended = clusterrun.command("--no-python", "ls", "/proc/self/fd", around=around).ended()

    # The fourth is the folder that ls reads.
    assert ended.out.split() == ["0", "1", "2", "3"]
