"""``clusterrun --live``: the table of ``watch`` below what a launch prints."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.contract.launched import COMMAND, await_status
from tests.contract.shell import Shell

pytestmark = pytest.mark.needs("bash")

PRINTS = """
import os, sys, time
print("ready", os.getpid())
while not os.path.exists("go on"):
    time.sleep(0.01)
sys.exit(3)
"""

HEADS = r"rank +host +state +CPU use"


@pytest.fixture
def shell(tmp_path: Path, runtime: dict[str, str]) -> Iterator[Shell]:
    """Return a shell at a terminal, whose agents listen where the test's do."""
    shell = Shell(tmp_path)
    for name, value in runtime.items():
        shell.type(f"export {name}={value}")

    yield shell

    shell.close()


def start(shell: Shell, *options: str) -> int:
    """Start a job of two ranks, and wait for its table; return the process id of a worker."""
    shell.run(PRINTS, "--live", "--nproc-per-node", "2", *options)
    worker = int(shell.expect(r"ready (\d+)").group(1))
    shell.expect("2 of 2 ranks shown")
    shell.expect(HEADS)
    return worker


def test_the_table_is_below_what_the_job_prints(shell: Shell) -> None:
    """It is gone when the job ends; the report and the exit code are the job's."""
    start(shell)

    (shell.folder / "go on").touch()

    shell.expect(r"\x1b\[\d+A\x1b\[J")
    shell.expect(r"rank \d on \S+ failed: exit code 3")
    assert shell.exit_code() == 3
    assert shell.left() == []


def test_ctrl_c_ends_the_job(shell: Shell) -> None:
    """In order, as without the table: both processes get the signal of the terminal."""
    start(shell)

    shell.press("Ctrl-C")

    shell.expect("interrupted: stopping 2 workers")
    assert shell.exit_code() == 130
    assert shell.left() == []


@pytest.mark.long
def test_ctrl_z_gives_the_terminal_back(shell: Shell) -> None:
    """The ranks are stopped, and go on with ``fg``."""
    worker = start(shell)

    shell.stop_job()
    await_status(worker, psutil.STATUS_STOPPED)
    shell.type("fg")
    shell.expect(HEADS)
    (shell.folder / "go on").touch()

    assert shell.exit_code() == 3


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_job_ends_with_the_command(shell: Shell, number: int) -> None:
    """A signal is passed on; if this process is killed, the kernel tells the agent."""
    start(shell)

    os.kill(shell.launcher, number)

    assert shell.exit_code() == 128 + number
    assert shell.left(30.0) == []


@pytest.mark.long
def test_a_worker_may_ask(shell: Shell) -> None:
    """A question without a line's end is shown at once."""
    shell.run("print('answer', input('question? '))", "--live", "--nproc-per-node", "1")
    shell.expect(r"question\? ")

    shell.type("forty-two")

    shell.expect("answer forty-two")
    assert shell.exit_code() == 0


def test_what_excludes_it(shell: Shell) -> None:
    """Neither leaves an agent here that could be looked at."""
    (shell.folder / "script.py").touch()

    shell.type(f"{COMMAND} --live --exec --nproc-per-node 1 script.py")

    shell.expect("--live and --exec cannot be used together")
    assert shell.exit_code() == 2
