"""Loss of node 0: a job that survives the loss of other nodes ends with 5 on each of them.

The others notice at once that an agent was killed, and stop their workers within the grace period. If
node 0 is silent, they kill their workers, because it may have declared them lost.
"""

import re
import signal
import time
from collections.abc import Sequence

import pytest

from tests.contract.launched import Job, Launcher, await_end
from tests.contract.worker_scripts import RANKS_RENDEZVOUS
from tests.hosts.host import Host
from tests.hosts.nodes import codes, ended
from tests.hosts.resilient_job import PRINT_WORKER, ResilientJob
from tests.rounds import mostly_long

HEARTBEAT_TIMEOUT = ("--heartbeat-timeout", "3")

IS_GONE = "node 0 (n0) is gone"
IS_SILENT = "node 0 (n0) has been silent for 4 s"
"""After T + 2 I."""

ROUNDS = 4


def end_without_node_zero(jobs: Sequence[Job], how: str) -> str:
    """Check that these end with 5, name node 0 and leave no process; return the first one's errors."""
    ends = ended(jobs)
    assert codes(ends) == [5] * len(jobs), ends
    for end in ends:
        assert f"clusterrun: error: {how}; the job was stopped\n" in end.err
        assert end.err.endswith("clusterrun: exit code 5: node 0 was lost\n")
    assert [each.left() for each in jobs] == [[]] * len(jobs)
    return ends[0].err


def test_node_zero_that_is_cut_off_ends_job(job: ResilientJob) -> None:
    """Node 0 has lost all other nodes, so no spare replaces node 1."""
    jobs = job.start(*HEARTBEAT_TIMEOUT)

    job.hosts[0].cut()

    error = end_without_node_zero(jobs[1:], IS_SILENT)
    # The agent's limit is a quarter of an interval before that of its fork server.
    assert re.search(
        "silent for 4 s: killing 1 worker|its lease has expired, and 1 worker killed", error
    )
    [cut_off] = ended(jobs[:1])
    assert cut_off.code == 5, cut_off.err
    assert "not restarted: no other node has taken the place of node 1 (n1)\n" in cut_off.err


@pytest.mark.parametrize("direction", ["sends", pytest.param("receives", marks=pytest.mark.long)])
def test_node_zero_that_is_cut_off_in_one_direction_ends_job(
    direction: str, job: ResilientJob
) -> None:
    """All that node 0 sends is lost, or all that is sent to it."""
    jobs = job.start(*HEARTBEAT_TIMEOUT)
    first, *others = job.hosts

    muted = {first: others} if direction == "sends" else {each: [first] for each in others}
    for sender, receivers in muted.items():
        sender.mute(receivers)
    try:
        end_without_node_zero(jobs[1:], IS_SILENT)
        [cut_off] = ended(jobs[:1])
    finally:
        for sender, receivers in muted.items():
            sender.unmute(receivers)
    assert cut_off.code == 5, cut_off.err


FAIL_OR_FINISH = f"""{RANKS_RENDEZVOUS}{PRINT_WORKER}
    rank = os.environ["RANK"]
    if rank == "0":
        signal.signal(signal.SIGTERM, lambda *_: (print("stopping", flush=True), time.sleep(0.3)))
    while True:
        if rank == "1" and attempt == "0" and pathlib.Path("fail").exists():
            sys.exit(7)
        if rank == "1" and pathlib.Path("exit").exists():
            sys.exit(0)
        time.sleep(0.01)
"""
"""Rank 1 fails or exits as soon as a file exists; rank 0 is slow to stop."""


@pytest.mark.parametrize("number", mostly_long(ROUNDS))
@pytest.mark.parametrize("phase", ["running", "restarting", "ending"])
def test_killed_node_zero_ends_job_in_each_phase(
    phase: str, number: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Up to half a second after the beginning of the phase. Its own workers end, too."""
    options = ("--nnodes", "2", "--spares", "1", "--max-restarts", "1")
    job = ResilientJob(hosts, clusterrun, *options, script=FAIL_OR_FINISH)
    jobs = job.start()
    if phase == "restarting":
        (job.folder / "fail").touch()
        jobs[0].wait_for("stopping")
    elif phase == "ending":
        (job.folder / "exit").touch()
        await_end(*jobs[1].numbers("pid"))
    time.sleep(0.5 * (number % ROUNDS) / ROUNDS)

    jobs[0].signal(signal.SIGKILL)

    end_without_node_zero(jobs[1:], IS_GONE)
    assert jobs[0].left() == []


@pytest.mark.parametrize("number", mostly_long(ROUNDS))
def test_node_zero_killed_before_rendezvous_times_out(number: int, job: ResilientJob) -> None:
    """The others wait for another node 0 until ``--rdzv-timeout``."""
    jobs = [job.join(rank, "--rdzv-timeout", "3") for rank in range(2)]
    time.sleep(0.5 * (number % ROUNDS) / ROUNDS)

    jobs[0].signal(signal.SIGKILL)

    [end] = ended(jobs[1:])
    assert end.code == 4, end
