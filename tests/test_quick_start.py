"""The steps of the quick start that need two terminals print what the page shows."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.commands.run_commands import run_command
from tests.contract.launched import COMMAND, Launcher
from tests.contract.shell import Shell
from tests.transcripts import SCRIPTS, blocks, without_accidents

PAGE = Path(__file__).parents[1] / "docs/quick_start.md"

SECONDS = 120.0
"""Two ranks and their data loaders import torch on a busy machine."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def clusterrun(clusterrun: Launcher) -> Launcher:
    """Return a launcher in a folder that has the scripts of the repository."""
    (clusterrun.folder / "scripts").symlink_to(SCRIPTS)
    return clusterrun


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """Return the variable that gives the job and the commands a folder of their own."""
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def block(start: str) -> str:
    """Return the only block of the page with this start."""
    (found,) = (text for text in blocks(PAGE) if text.startswith(start))
    return found


def plain(text: str) -> str:
    """Return text without what differs in each run, numbers included."""
    words = re.sub(r" on \S+ was", " on HOST was", without_accidents(text))
    return re.sub(r"\d[\d.:-]*", "N", words)


def pid_of_rank_1(status: str) -> int:
    (pid,) = re.findall(r"(?m)^1 +\d+ +\S+ +\S+ +(\d+)", status)
    return int(pid)


def test_a_killed_rank_is_reported(clusterrun: Launcher, own: dict[str, str]) -> None:
    """Twice: all restart, then the job ends."""
    _, *words = block("clusterrun --nproc-per-node 2 --max-restarts 1").split()
    job = clusterrun.command(*words, environ=own)
    for attempt in (1, 2):
        job.wait_for(r"epoch 2/400", times=attempt, seconds=SECONDS)
        status = run_command(own, "status").stdout
        os.kill(pid_of_rank_1(status), signal.SIGKILL)
    done = job.ended(SECONDS)

    headings = block("% clusterrun status").splitlines()[2].split()
    assert status.splitlines()[1].split() == headings
    first, second = (
        text for text in blocks(PAGE) if text.startswith("clusterrun: rank 1 on vm was killed")
    )
    assert done.code == 137
    assert plain(done.err).endswith(plain(f"{first}\n{second}"))


def test_the_first_of_two_nodes_waits_for_the_other(clusterrun: Launcher) -> None:
    """Both are agents of this machine."""
    command, _, waiting = block("% clusterrun --nnodes 2 --master-addr localhost").partition("\n")
    words = command.split()[2:]
    first = clusterrun.command(*words)
    first.wait_for("have joined", seconds=SECONDS)
    second = clusterrun.command(*words)
    ended = [first.ended(SECONDS), second.ended(SECONDS)]

    assert [done.code for done in ended] == [0, 0]
    # A busy machine may have more to say, such as that an import is slow.
    assert plain(waiting) in re.sub(r"joined: \S+;", "joined: vm;", plain(ended[0].err))
    assert plain(ended[0].out) == plain(block("epoch 1/2"))
    assert ended[1].out == ""


def test_a_suspended_job_goes_on(clusterrun: Launcher, own: dict[str, str]) -> None:
    """The same command goes on after the step at which all have saved."""
    _, *words = block("clusterrun --nproc-per-node 2 scripts/train_resume.py").split()
    job = clusterrun.command(*words, environ=own)
    job.wait_for("step 20 ", seconds=SECONDS)
    shell = Shell(clusterrun.folder, XDG_RUNTIME_DIR=own["XDG_RUNTIME_DIR"])
    shell.type(f"{COMMAND} suspend")
    question = shell.expect(r"suspend run .*\? \[y/N\] ").group()
    shell.type("y")
    answer = shell.expect(r"run \S+ was asked to suspend.*\r\n").group()
    shell.close()
    done = job.ended(SECONDS)
    again = clusterrun.command(*words, environ=own)
    (next_step,) = again.wait_for(r"step (\d+)", seconds=SECONDS)[:1]

    shown = block("[rank 0] step 100")
    _, _, printed = block("% clusterrun suspend").partition("\n")
    (saved,) = re.findall(r"suspended at step (\d+)", done.err)
    assert done.code == 75
    assert plain(f"{question}y\n{answer.rstrip()}") == plain(printed)
    assert plain(done.err).endswith(plain(shown[shown.index("clusterrun:") :]))
    assert 0 < int(next_step) - int(saved) <= 20
