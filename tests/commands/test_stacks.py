"""``clusterrun stacks`` on a job of one node, through the installed command."""

import json
from pathlib import Path

import psutil
import pytest

from tests.commands.run_commands import (
    FAKE_PY_SPY,
    REFUSED_PY_SPY,
    assert_runs_until_stopped,
    run_command,
    start_job,
    with_py_spy,
)
from tests.contract.launched import Launcher, await_status

TWO_FUNCTIONS = """
import os, select

def waits_here():
    select.select([], [], [])

def waits_there():
    select.select([], [], [])

print("begun", os.getpid(), flush=True)
print("rank", os.environ["RANK"], "waits", flush=True)
waits_there() if os.environ["RANK"] == "1" else waits_here()
"""


def test_stacks_compare_ranks(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """For all ranks or one rank; nothing is printed on the job's terminal."""
    job = start_job(clusterrun, runtime, TWO_FUNCTIONS)
    for pid in job.numbers("begun", 2):
        await_status(pid, psutil.STATUS_SLEEPING)

    stacks = run_command(runtime, "stacks")
    one = json.loads(run_command(runtime, "stacks", "--rank=1", "--json").stdout)
    wrong = run_command(runtime, "stacks", "--rank=2")
    run_command(runtime, "stop", "--now", "mine")
    done = job.ended()

    lines = stacks.stdout.splitlines()
    assert " is in waits_here at " in lines[0]
    assert " is in waits_there at " in lines[0]
    assert lines[1] == "  rank 0:"
    assert [group["ranks"] for group in one["groups"]] == [[1]]
    assert "in waits_there" in one["groups"][0]["text"]
    assert wrong.returncode == 2
    assert "--rank: run mine has no rank 2\n  it has 2: give one from 0 to 1" in wrong.stderr
    assert "waits_here" not in done.err


def test_native_stacks_come_from_py_spy(
    clusterrun: Launcher, runtime: dict[str, str], tmp_path: Path
) -> None:
    """The agent runs py-spy, so the PATH of the command does not matter."""
    job = start_job(clusterrun, with_py_spy(runtime, tmp_path / "bin", FAKE_PY_SPY), TWO_FUNCTIONS)
    native = run_command(runtime, "stacks", "--native", "--rank=1")
    both = json.loads(run_command(runtime, "stacks", "--native", "--json").stdout)

    [heading, line] = native.stdout.splitlines()
    assert heading == "  rank 1:"
    assert line.startswith("    arguments: dump --native --locals --pid ")
    pids = job.numbers("begun", 2)
    assert int(line.split()[-1]) in pids
    assert [group["ranks"] for group in both["groups"]] == [[0], [1]]
    assert sorted(int(group["text"].split()[-1]) for group in both["groups"]) == sorted(pids)
    assert_runs_until_stopped(job, runtime)


def test_native_stacks_show_error_of_py_spy(
    clusterrun: Launcher, runtime: dict[str, str], tmp_path: Path
) -> None:
    """The error also names what py-spy needs."""
    job = start_job(
        clusterrun, with_py_spy(runtime, tmp_path / "bin", REFUSED_PY_SPY), TWO_FUNCTIONS
    )
    refused = run_command(runtime, "stacks", "--native", "--rank=0")

    assert refused.returncode == 3
    assert "no rank can be shown" in refused.stderr
    assert "Error: Permission denied" in refused.stderr
    assert "ptrace_scope" in refused.stderr
    assert_runs_until_stopped(job, runtime)


@pytest.mark.long
@pytest.mark.needs("py-spy")
def test_native_stacks_with_real_py_spy(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """py-spy shows the script's functions if the kernel allows it."""
    job = start_job(clusterrun, runtime, TWO_FUNCTIONS)
    native = run_command(runtime, "stacks", "--native")

    assert native.returncode in {0, 3}, native.stderr
    assert native.returncode == 3 or "waits_there" in native.stdout
    assert_runs_until_stopped(job, runtime)
