"""As the first process of a container: also the parent of all orphans there."""

import os
import signal

import psutil
import pytest

from tests.contract.launched import Job, Launcher, await_end

pytestmark = pytest.mark.needs("root", "unshare")

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")

WAITS = """
    import os, time
    print("ready", os.getpid(), flush=True)
    time.sleep(100)
"""


def launcher_in(job: Job) -> psutil.Process:
    """Return the launcher as seen from outside: the one child of ``unshare``."""
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
    """PID 1 ends as it does anywhere else."""
    job = clusterrun.script(script, around=CONTAINER, workers=2)

    assert job.ended().code == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(clusterrun: Launcher, number: signal.Signals) -> None:
    """The kernel keeps from PID 1 what it has no handler for; it has."""
    job = clusterrun.script(WAITS, around=CONTAINER, workers=2)
    job.numbers("ready", 2)

    launcher_in(job).send_signal(number)

    assert job.ended().code == 128 + number


def test_strangers_are_reaped(clusterrun: Launcher) -> None:
    """Whoever loses its parent in the container becomes our child."""
    os.mkfifo(clusterrun.folder / "go")
    around = (*CONTAINER, "sh", "-c", '(sh -c "read line <go; exit 3" &); exec "$0" "$@"')
    job = clusterrun.script(WAITS, around=around, workers=2)
    job.numbers("ready", 2)
    launcher = launcher_in(job)
    (stranger,) = [child for child in launcher.children() if child.name() == "sh"]

    (clusterrun.folder / "go").write_text("")
    await_end(stranger.pid)
    # An answer to what came later says that it has seen this.
    launcher.send_signal(signal.SIGUSR1)
    job.wait_for("SIGUSR1 was not passed on")

    assert not stranger.is_running()
    launcher.terminate()
    assert job.ended().code == 143


def test_sigkill(clusterrun: Launcher) -> None:
    """The kernel ends the container with its first process."""
    job = clusterrun.script(WAITS, around=CONTAINER, workers=2)
    job.numbers("ready", 2)

    launcher_in(job).kill()

    assert job.left() == []
