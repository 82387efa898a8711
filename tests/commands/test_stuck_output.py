"""Commands answer if the job's output is blocked: by a stopped terminal or a full disk."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.commands.run_commands import run_command
from tests.contract.launched import Job, Launcher, await_status
from tests.waiting import wait_until

PRINTS_WITHOUT_END = """
import itertools, os, time
open("begun" + os.environ["RANK"], "w").close()
for number in itertools.count():
    print("line", number, "of rank", os.environ["RANK"], "x" * 4000, flush=True)
    time.sleep(0.001)
"""

SLACK = 20.0
"""Seconds for a command on a very busy machine; it needs less than two on an idle one."""


@pytest.fixture
def stopped_reader(tmp_path: Path) -> Iterator[str]:
    """Return the path of a pipe whose reader is stopped."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["sh", "-c", f'exec cat "{pipe}"'], stdout=subprocess.DEVNULL)
    # Open before it is stopped, or the job could not open its end.
    writer = os.open(pipe, os.O_WRONLY)
    reader.send_signal(signal.SIGSTOP)
    await_status(reader.pid, psutil.STATUS_STOPPED)

    yield str(pipe)

    os.close(writer)
    reader.kill()
    reader.wait()


def start(clusterrun: Launcher, runtime: dict[str, str], around: str, *options: str) -> Job:
    """Start a run "mine" below a shell command."""
    words = ("sh", "-ec", around, "sh")
    job = clusterrun.script(
        PRINTS_WITHOUT_END, "--run-id=mine", *options, workers=2, environ=runtime, around=words
    )
    for rank in range(2):
        begun = clusterrun.folder / f"begun{rank}"
        wait_until(begun.exists, f"rank {rank} has begun")
    return job


def speeds(runtime: dict[str, str]) -> Sequence[float]:
    """Return the lines per second of each rank."""
    [node] = json.loads(run_command(runtime, "status", "--json").stdout)["nodes"]
    return [rank["lines_per_second"] for rank in node["ranks"]]


def assert_all_commands_answer(runtime: dict[str, str]) -> None:
    """Check that each command answers in time for all ranks; the last command ends the job."""
    for words in (["ps"], ["status"], ["stacks"], ["stop", "--now", "mine"]):
        began = time.monotonic()
        done = run_command(runtime, *words, "--json")
        took = time.monotonic() - began
        assert done.returncode == 0, (words, done.stderr)
        assert took < SLACK, words
        answer = json.loads(done.stdout)
        if words == ["ps"]:
            assert [agent["run_id"] for agent in answer["agents"]] == ["mine"]
        elif words == ["status"]:
            assert [rank["state"]["state"] for rank in answer["nodes"][0]["ranks"]] == [
                "running"
            ] * 2
            assert all(rank["state"]["last_line"] for rank in answer["nodes"][0]["ranks"])
        elif words == ["stacks"]:
            assert sorted(rank for each in answer["groups"] for rank in each["ranks"]) == [0, 1]


@pytest.mark.parametrize(
    "stuck", ["full_terminal", pytest.param("stopped_reader", marks=pytest.mark.long)]
)
def test_commands_answer_if_terminal_is_stopped(
    clusterrun: Launcher, runtime: dict[str, str], stuck: str, request: pytest.FixtureRequest
) -> None:
    """The ranks block in print(), but the agent does not."""
    path = request.getfixturevalue(stuck)
    job = start(clusterrun, runtime, f'exec "$@" >{path} 2>&1')
    # No event tells that the last buffer is full.
    wait_until(lambda: speeds(runtime) == [0.0, 0.0], "no rank can print")

    assert_all_commands_answer(runtime)

    assert job.ended().code == 143


@pytest.mark.long
@pytest.mark.needs("root", "unshare")
def test_commands_answer_if_log_disk_is_full(
    clusterrun: Launcher, runtime: dict[str, str], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'unshare --mount sh -ec \'mount -t tmpfs -o size=64k none {disk}; exec "$@"\' sh "$@"'
    job = start(clusterrun, runtime, f"exec {mount}", f"--log-dir={disk}")
    job.wait_for("No space left on device")

    assert_all_commands_answer(runtime)

    assert job.ended().code == 143
