"""The launcher as the first process of a container, which is the parent of all orphans there."""

import os
import signal

import psutil
import pytest

from tests.contract.ends.test_nothing_left import FAMILY, kill_at_once
from tests.contract.launched import Job, Launcher, await_end, fork_server_of
from tests.contract.worker_scripts import WAITS

pytestmark = pytest.mark.needs("root", "unshare")

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")


def launcher_of(job: Job) -> psutil.Process:
    """Return the launcher, which is the only child of ``unshare``."""
    (child,) = psutil.Process(job.process.pid).children()
    return child


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import os; print(os.getppid())", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 11)", 139),
    ],
)
def test_exit_code_is_that_of_the_job(clusterrun: Launcher, script: str, code: int) -> None:
    job = clusterrun.script(script, around=CONTAINER, workers=2)

    assert job.ended().code == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_job(clusterrun: Launcher, number: signal.Signals) -> None:
    """The kernel drops signals to PID 1 that have no handler."""
    job = clusterrun.script(WAITS, around=CONTAINER, workers=2)
    job.numbers("ready", 2)

    launcher_of(job).send_signal(number)

    assert job.ended().code == 128 + number


def test_orphans_are_reaped(clusterrun: Launcher) -> None:
    os.mkfifo(clusterrun.folder / "go")
    around = (*CONTAINER, "sh", "-c", '(sh -c "read line <go; exit 3" &); exec "$0" "$@"')
    job = clusterrun.script(WAITS, around=around, workers=2)
    job.numbers("ready", 2)
    launcher = launcher_of(job)
    (orphan,) = [child for child in launcher.children() if child.name() == "sh"]

    (clusterrun.folder / "go").write_text("")
    await_end(orphan.pid)
    # The answer to a later signal shows that the launcher has seen this.
    launcher.send_signal(signal.SIGUSR1)
    job.wait_for("SIGUSR1 was not passed on")

    assert not orphan.is_running()
    launcher.terminate()
    assert job.ended().code == 143


@pytest.mark.parametrize("fork_server_too", [False, True])
def test_sigkill_ends_the_container(clusterrun: Launcher, *, fork_server_too: bool) -> None:
    """Outside a container, children of workers remain if the fork server is killed at the same time."""
    job = clusterrun.script(FAMILY, around=CONTAINER, workers=2, args=["stay"])
    job.numbers("ready", 2)
    launcher = launcher_of(job).pid

    kill_at_once(launcher, *([fork_server_of(launcher)] if fork_server_too else []))

    assert job.left() == []
