"""The Python stacks of all ranks, printed by node 0: on request, and when all ranks are idle."""

import os
import re
import signal
from collections.abc import Sequence

import psutil
import pytest

from tests.contract.launched import Job, Launcher, await_status
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended

WAIT_IN_TWO_FUNCTIONS = """
    import os, select, sys

    def wait_here():
        select.select([], [], [])

    def wait_there():
        select.select([], [], [])

    print("ready", os.getpid(), flush=True)
    if os.environ["RANK"] == "1":
        wait_there()
    wait_here()
"""


def all_wait(jobs: Sequence[Job]) -> None:
    """Return when all ranks sleep."""
    for job in jobs:
        for pid in job.numbers("ready", 2):
            await_status(pid, psutil.STATUS_SLEEPING)


def end(jobs: Sequence[Job]) -> None:
    """Stop the job, and check that it was running."""
    jobs[0].signal(signal.SIGTERM)
    ends = ended(jobs)
    assert codes(ends) == [143] * len(jobs), ends


BOTH_STACKS = (
    r"  ranks 0, 2-3:\n      File .* in wait_here\n      File .* in <module>\n"
    r"  rank 1:\n      File .* in wait_there\n      File .* in <module>\n"
)


@pytest.mark.parametrize("node", [0, 1])
def test_sigquit_on_any_node_prints_stacks_on_node_zero(
    hosts: tuple[Host, ...], clusterrun: Launcher, node: int
) -> None:
    """They are grouped across nodes."""
    jobs = Nodes(clusterrun, hosts, WAIT_IN_TWO_FUNCTIONS).start_all(
        "--log-dir=logs", workers=(2, 2)
    )
    all_wait(jobs)

    jobs[node].signal(signal.SIGQUIT)
    jobs[0].wait_for(BOTH_STACKS)

    notice = "clusterrun: SIGQUIT: the Python stacks of all ranks follow on node 0"
    jobs[node].wait_for(notice)
    assert ("clusterrun: SIGQUIT on n1: the Python stacks" in jobs[0].err) == (node == 1)
    end(jobs)
    assert "wait_here" not in jobs[1].err
    (file,) = clusterrun.folder.glob("logs/latest/attempt-0/stacks.txt")
    assert re.search(BOTH_STACKS, file.read_text())


def test_idle_job_prints_stacks_once(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The job is not idle while one rank prints."""
    script = WAIT_IN_TWO_FUNCTIONS.replace(
        'print("ready"',
        """if os.environ["RANK"] == "3":
        import time
        for number in range(8):
            time.sleep(0.25)
            print("step", number, flush=True)
        print("last step", flush=True)
    print("ready\"""",
    )
    jobs = Nodes(clusterrun, hosts, script).start_all("--hang-timeout=1", workers=(2, 2))
    jobs[1].wait_for("last step")
    assert "no rank has printed" not in jobs[0].err

    jobs[0].wait_for("clusterrun: no rank has printed or exited for 1 s: the Python stacks of all")
    jobs[0].wait_for(BOTH_STACKS)

    end(jobs)
    assert jobs[0].err.count("no rank has printed") == 1
    assert "no rank has printed" not in jobs[1].err


def test_stacks_without_frozen_node(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    jobs = Nodes(clusterrun, hosts, WAIT_IN_TWO_FUNCTIONS).start_all(workers=(2, 2, 2))
    all_wait(jobs)
    os.kill(jobs[2].agent, signal.SIGSTOP)

    jobs[0].signal(signal.SIGQUIT)
    jobs[0].wait_for(r"  ranks 0, 2-3:\n")
    jobs[0].wait_for(r"  node 2 \(n2\) does not answer\n")

    os.kill(jobs[2].agent, signal.SIGCONT)
    end(jobs)


HANG_ONCE = """
    import os, pathlib, select

    def wait_here():
        select.select([], [], [])

    def wait_there():
        select.select([], [], [])

    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] != "3":
        wait_there() if os.environ["RANK"] == "1" else wait_here()
"""

HUNG = (
    "the job hung: no rank printed or exited for 1 s (--hang-timeout)\n"
    "  the others waited for ranks 1, 3\n"
    "  3 ranks are in wait_here at train.py:5; rank 1 is in wait_there at train.py:8\n"
)


def test_hang_ends_job_on_all_nodes(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Each node's report names the ranks that the others waited for."""
    jobs = Nodes(clusterrun, hosts, HANG_ONCE).start_all(
        "--hang-timeout=1", "--on-hang=stop", workers=(2, 2, 1)
    )

    ends = ended(jobs)

    assert codes(ends) == [7] * 3, ends
    for each in ends:
        assert f"clusterrun: error: {HUNG}clusterrun: exit code 7: the job hung" in each.err
    assert "  rank 3: exited with 0\n" in ends[0].err


def test_hang_restarts_all_nodes(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    jobs = Nodes(clusterrun, hosts, HANG_ONCE).start_all(
        "--hang-timeout=1", "--on-hang=restart", "--max-restarts=1", workers=(2, 2, 1)
    )

    ends = ended(jobs)

    assert codes(ends) == [0] * 3, ends
    restarts = "clusterrun: restarting all workers (restart 1 of 1)\n"
    assert all(f"clusterrun: {HUNG}{restarts}" in each.err for each in ends)
