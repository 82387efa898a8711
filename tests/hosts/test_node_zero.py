"""Node 0 is lost: a job that outlives its other nodes ends with 5 on each of them.

The others see at once that an agent has been killed, and stop as after any verdict. They can't know
what becomes of one that is silent: they kill their workers.
"""

import re
import signal
import time
from collections.abc import Sequence

import pytest

from tests.contract.launched import Ended, Job, Launcher, await_end
from tests.contract.worker_scripts import RANKS_RENDEZVOUS
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.spared_job import SparedJob
from tests.rounds import numbers

SILENT = 3
"""Seconds: --heartbeat-timeout where a test waits for it."""

IS_GONE = "node 0 (n0) is gone"
IS_SILENT = "node 0 (n0) has been silent for 4 s"
"""After T + 2 I."""


@pytest.fixture
def job(hosts: tuple[Host, ...], clusterrun: Launcher) -> SparedJob:
    return SparedJob(hosts, clusterrun)


def name_node_zero(jobs: Sequence[Job], how: str) -> list[Ended]:
    """Check that these end with 5, name node 0 and leave no process; return their ends."""
    ends = ended(jobs)
    assert codes(ends) == [5] * len(jobs), ends
    for end in ends:
        assert f"clusterrun: error: {how}; the job was stopped\n" in end.err
        assert end.err.endswith("clusterrun: exit code 5: node 0 was lost\n")
    assert [each.left() for each in jobs] == [[]] * len(jobs)
    return ends


def test_node_zero_is_cut_off(job: SparedJob) -> None:
    """It sees none of the others any more, and no spare takes the place of node 1."""
    jobs = job.start("--heartbeat-timeout", str(SILENT))

    job.hosts[0].cut()

    [working, _] = name_node_zero(jobs[1:], IS_SILENT)
    # The agent's limit is a quarter of an interval before that of its fork server.
    assert re.search(
        "silent for 4 s: killing 1 worker|its lease has expired, and 1 worker killed", working.err
    )
    [cut_off] = ended(jobs[:1])
    assert cut_off.code == 5, cut_off.err
    assert "not restarted: no other node has taken the place of node 1 (n1)\n" in cut_off.err


@pytest.mark.parametrize("way", ["mute", pytest.param("deaf", marks=pytest.mark.long)])
def test_node_zero_is_cut_off_in_one_direction(way: str, job: SparedJob) -> None:
    """Nothing that it sends arrives, or nothing of what is sent to it: the same as both."""
    jobs = job.start("--heartbeat-timeout", str(SILENT))
    first, *others = job.hosts

    senders = {first: others} if way == "mute" else {each: [first] for each in others}
    for each, receivers in senders.items():
        each.mute(receivers)
    try:
        name_node_zero(jobs[1:], IS_SILENT)
        [cut_off] = ended(jobs[:1])
    finally:
        for each, receivers in senders.items():
            each.unmute(receivers)
    assert cut_off.code == 5, cut_off.err


def test_node_zero_is_frozen_and_continues(job: SparedJob) -> None:
    """The others have ended; it says for how long it was stopped, and ends."""
    jobs = job.start("--heartbeat-timeout", str(SILENT))
    jobs[0].signal(signal.SIGSTOP)

    name_node_zero(jobs[1:], IS_SILENT)
    jobs[0].signal(signal.SIGCONT)

    [frozen] = ended(jobs[:1])
    assert frozen.code == 5, frozen.err
    assert "clusterrun: error: node 0 (n0) was stopped for " in frozen.err


PHASED = f"""
    import os, pathlib, signal, sys, time
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
{RANKS_RENDEZVOUS}
    print("begins", os.environ["RANK"], attempt, os.uname().nodename, flush=True)
    print("pid", os.getpid(), flush=True)
    if os.environ["RANK"] == "0":
        signal.signal(signal.SIGTERM, lambda *_: (print("asked", flush=True), time.sleep(0.3)))
    while not pathlib.Path("enough").exists():
        if os.environ["RANK"] == "1":
            if pathlib.Path("fail").exists() and attempt == "0":
                sys.exit(7)
            if pathlib.Path("end").exists():
                sys.exit(0)
        time.sleep(0.01)
"""
"""Rank 1 fails or ends when it is told to; rank 0 takes its time to stop."""


class PhasedJob(SparedJob):
    """The same job; its ranks do what files tell them."""

    def __init__(self, hosts: tuple[Host, ...], launcher: Launcher) -> None:
        super().__init__(hosts, launcher)
        self._nodes = Nodes(launcher, hosts, PHASED)

    def go_to(self, phase: str) -> list[Job]:
        """Start all, and return as soon as the job is in this phase on node 0."""
        jobs = [self.join(rank, "--max-restarts", "1") for rank in range(3)]
        jobs[0].wait_for("begins 0 0 n0")
        jobs[1].wait_for("begins 1 0 n1")
        [pid] = jobs[1].numbers("pid")
        jobs[2].wait_for("this node is a spare")
        if phase == "restarting":
            (self.folder / "fail").touch()
            jobs[0].wait_for("asked")
        if phase == "ending":
            (self.folder / "end").touch()
            await_end(pid)
        return jobs


@pytest.fixture
def phased(hosts: tuple[Host, ...], clusterrun: Launcher) -> PhasedJob:
    return PhasedJob(hosts, clusterrun)


def dies_in(phase: str, job: PhasedJob, after: float = 0.0) -> None:
    """Kill node 0's agent ``after`` the beginning of a phase: the others end, and nothing is left."""
    jobs = job.go_to(phase)
    time.sleep(after)

    jobs[0].signal(signal.SIGKILL)

    name_node_zero(jobs[1:], IS_GONE)
    assert jobs[0].left() == []


def joining_fails(job: SparedJob, after: float = 0.0) -> None:
    """Kill node 0's agent while it waits for the spare: the others wait for another node 0."""
    jobs = [job.join(rank, "--rdzv-timeout", "3") for rank in range(2)]
    time.sleep(after)

    jobs[0].signal(signal.SIGKILL)

    [end] = ended(jobs[1:])
    assert end.code == 4, end


PHASES = ("running", "restarting", "ending")
ROUNDS = 20


@pytest.mark.parametrize("phase", PHASES)
def test_node_zero_dies(phase: str, phased: PhasedJob) -> None:
    """The others end, whatever the job is doing, and its own workers are ended, too."""
    dies_in(phase, phased)


def test_node_zero_dies_while_nodes_join(job: SparedJob) -> None:
    """There is no job yet: the others wait for another node 0 until --rdzv-timeout."""
    joining_fails(job)


@pytest.mark.long
@pytest.mark.parametrize("number", numbers(ROUNDS))
@pytest.mark.parametrize("phase", PHASES)
def test_node_zero_dies_at_some_time(phase: str, number: int, phased: PhasedJob) -> None:
    """Up to half a second after the beginning of a phase; then it may be the next one already."""
    dies_in(phase, phased, 0.5 * (number % ROUNDS) / ROUNDS)


@pytest.mark.long
@pytest.mark.parametrize("number", numbers(ROUNDS))
def test_node_zero_dies_at_some_time_of_joining(number: int, job: SparedJob) -> None:
    """It is the same."""
    joining_fails(job, 0.5 * (number % ROUNDS) / ROUNDS)
