"""The Python stacks of all ranks, shown on node 0: on request, and when all ranks are idle."""

import os
import re
import signal
from collections.abc import Sequence

import psutil
import pytest

from tests.contract.launched import Job, Launcher, await_status
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended

APART = """
    import os, select, sys

    def waits_here():
        select.select([], [], [])

    def waits_there():
        select.select([], [], [])

    print("ready", os.getpid(), flush=True)
    if os.environ["RANK"] == "1":
        waits_there()
    waits_here()
"""


def all_wait(jobs: Sequence[Job]) -> None:
    """Wait until all ranks wait."""
    for job in jobs:
        for pid in job.numbers("ready", 2):
            await_status(pid, psutil.STATUS_SLEEPING)


def end(jobs: Sequence[Job]) -> None:
    """End the job, and check that it was running."""
    jobs[0].signal(signal.SIGTERM)
    ends = ended(jobs)
    assert codes(ends) == [143] * len(jobs), ends


BOTH_PLACES = (
    r"  ranks 0, 2-3:\n      File .* in waits_here\n      File .* in <module>\n"
    r"  rank 1:\n      File .* in waits_there\n      File .* in <module>\n"
)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_request_on_any_node(hosts: tuple[Host, ...], clusterrun: Launcher, asked: int) -> None:
    """Node 0 shows the stacks of all, grouped across nodes, and names the host of the request."""
    jobs = Nodes(clusterrun, hosts, APART).start_all("--log-dir=logs", workers=(2, 2))
    all_wait(jobs)

    jobs[asked].signal(signal.SIGQUIT)
    jobs[0].wait_for(BOTH_PLACES)

    said = "clusterrun: SIGQUIT: the Python stacks of all ranks follow on node 0"
    jobs[asked].wait_for(said)
    assert ("clusterrun: SIGQUIT on n1: the Python stacks" in jobs[0].err) == (asked == 1)
    end(jobs)
    assert "waits_here" not in jobs[1].err
    (kept,) = clusterrun.folder.glob("logs/latest/attempt-0/stacks.txt")
    assert re.search(BOTH_PLACES, kept.read_text())


def test_all_ranks_are_idle(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The job is not idle while one rank prints; when it is, the stacks are shown once."""
    prints = APART.replace(
        'print("ready"',
        """if os.environ["RANK"] == "3":
        import time
        for number in range(8):
            time.sleep(0.25)
            print("step", number, flush=True)
        print("last step", flush=True)
    print("ready\"""",
    )
    jobs = Nodes(clusterrun, hosts, prints).start_all("--hang-timeout=1", workers=(2, 2))
    jobs[1].wait_for("last step")
    assert "no rank has printed" not in jobs[0].err

    jobs[0].wait_for("clusterrun: no rank has printed or exited for 1 s: the Python stacks of all")
    jobs[0].wait_for(BOTH_PLACES)

    end(jobs)
    assert jobs[0].err.count("no rank has printed") == 1
    assert "no rank has printed" not in jobs[1].err


def test_a_node_that_does_not_answer_is_named(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """The stacks of the others are shown."""
    jobs = Nodes(clusterrun, hosts, APART).start_all(workers=(2, 2, 2))
    all_wait(jobs)
    os.kill(jobs[2].agent, signal.SIGSTOP)

    jobs[0].signal(signal.SIGQUIT)
    jobs[0].wait_for(r"  ranks 0, 2-3:\n")
    jobs[0].wait_for(r"  node 2 \(n2\) does not answer\n")

    os.kill(jobs[2].agent, signal.SIGCONT)
    end(jobs)


HANGS_ONCE = """
    import os, pathlib, select

    def waits_here():
        select.select([], [], [])

    def waits_there():
        select.select([], [], [])

    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] != "3":
        waits_there() if os.environ["RANK"] == "1" else waits_here()
"""

HUNG = (
    "the job hung: no rank printed or exited for 1 s (--hang-timeout)\n"
    "  the others waited for ranks 1, 3\n"
    "  3 ranks are in waits_here at train.py:5; rank 1 is in waits_there at train.py:8\n"
)


def test_a_hang_ends_the_job_on_all_nodes(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The report of each names who was waited for: of its own ranks, and of others."""
    jobs = Nodes(clusterrun, hosts, HANGS_ONCE).start_all(
        "--hang-timeout=1", "--on-hang=stop", workers=(2, 2, 1)
    )

    ends = ended(jobs)

    assert codes(ends) == [7] * 3, ends
    for end_of_node in ends:
        assert f"clusterrun: error: {HUNG}clusterrun: exit code 7: the job hung" in end_of_node.err
    assert "  rank 3: exited with 0\n" in ends[0].err


def test_a_hang_restarts_all_nodes(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """As the failure of a worker does."""
    jobs = Nodes(clusterrun, hosts, HANGS_ONCE).start_all(
        "--hang-timeout=1", "--on-hang=restart", "--max-restarts=1", workers=(2, 2, 1)
    )

    ends = ended(jobs)

    assert codes(ends) == [0] * 3, ends
    restarts = "clusterrun: restarting all workers (restart 1 of 1)\n"
    assert all(f"clusterrun: {HUNG}{restarts}" in each.err for each in ends)
