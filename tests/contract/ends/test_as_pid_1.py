"""As the first process of a container, which is the parent of all orphans there."""

import os
import signal

import psutil
import pytest

from tests.contract.ends.test_nothing_left import FAMILY, kill_at_once
from tests.contract.launched import Job, Launcher, await_end, fork_server_of
from tests.contract.worker_scripts import WAITS

pytestmark = pytest.mark.needs("root", "unshare")

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")


def launcher_in(job: Job) -> psutil.Process:
    """Return the launcher's process in this PID namespace: the only child of ``unshare``."""
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
def test_exit_codes_pass(clusterrun: Launcher, script: str, code: int) -> None:
    job = clusterrun.script(script, around=CONTAINER, workers=2)

    assert job.ended().code == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(clusterrun: Launcher, number: signal.Signals) -> None:
    """The kernel drops signals for which PID 1 has no handler; the launcher has handlers."""
    job = clusterrun.script(WAITS, around=CONTAINER, workers=2)
    job.numbers("ready", 2)

    launcher_in(job).send_signal(number)

    assert job.ended().code == 128 + number


def test_orphans_are_reaped(clusterrun: Launcher) -> None:
    """A process that loses its parent in the container becomes the launcher's child."""
    os.mkfifo(clusterrun.folder / "go")
    around = (*CONTAINER, "sh", "-c", '(sh -c "read line <go; exit 3" &); exec "$0" "$@"')
    job = clusterrun.script(WAITS, around=around, workers=2)
    job.numbers("ready", 2)
    launcher = launcher_in(job)
    (orphan,) = [child for child in launcher.children() if child.name() == "sh"]

    (clusterrun.folder / "go").write_text("")
    await_end(orphan.pid)
    # The answer to a later signal shows that the launcher has seen this.
    launcher.send_signal(signal.SIGUSR1)
    job.wait_for("SIGUSR1 was not passed on")

    assert not orphan.is_running()
    launcher.terminate()
    assert job.ended().code == 143


def test_sigkill(clusterrun: Launcher) -> None:
    """The kernel ends the container with its first process."""
    job = clusterrun.script(WAITS, around=CONTAINER, workers=2)
    job.numbers("ready", 2)

    launcher_in(job).kill()

    assert job.left() == []


def test_sigkill_of_agent_and_fork_server_at_once(clusterrun: Launcher) -> None:
    """Outside of a container, children of the workers may be left."""
    job = clusterrun.script(FAMILY, around=CONTAINER, workers=2, args=["stay"])
    job.numbers("ready", 2)
    launcher = launcher_in(job).pid

    kill_at_once(launcher, fork_server_of(launcher))

    assert job.left() == []
