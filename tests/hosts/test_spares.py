"""Jobs that outlive their nodes: a spare takes the place of a lost one."""

import json
import signal
import time

import pytest

from tests.contract.launched import Job, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.spared_job import SparedJob

SILENT = 2
"""Seconds: --heartbeat-timeout where a test waits for it."""


@pytest.fixture
def job(hosts: tuple[Host, ...], clusterrun: Launcher) -> SparedJob:
    return SparedJob(hosts, clusterrun)


def test_spare_replaces_killed_agent(job: SparedJob) -> None:
    """Ranks and world size stay, and the job ends with 0."""
    jobs = job.start("--events", "events-%n.json")

    jobs[1].signal(signal.SIGKILL)

    jobs[0].wait_for("place 0 2 0 1 n0")
    jobs[2].wait_for("place 1 2 1 1 n2")
    job.let_all_end()
    ends = ended([jobs[0], jobs[2]])
    assert codes(ends) == [0, 0], ends
    assert "clusterrun: node 1 (n1) is gone; n2 takes its place\n" in ends[0].err
    assert "clusterrun: restarting all workers (1 node lost so far)\n" in ends[0].err
    lines = (job.folder / "events-0.json").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    [replaced] = [event for event in events if event["event"] == "replaced"]
    assert (replaced["node_rank"], replaced["host"], replaced["by"]) == (1, "n1", "n2")
    assert jobs[1].left() == []


@pytest.mark.parametrize(
    "way", ["cut", *(pytest.param(way, marks=pytest.mark.long) for way in ("mute", "deaf"))]
)
def test_spare_replaces_node_that_is_cut_off(way: str, job: SparedJob) -> None:
    """It kills its workers before the next attempt, and ends because node 0 is silent. "mute": only what it sends is lost; "deaf": only what is sent to it."""
    jobs = job.start("--heartbeat-timeout", str(SILENT))

    others = [each for each in job.hosts if each is not job.hosts[1]]
    if way == "cut":
        job.hosts[1].cut()
    elif way == "mute":
        job.hosts[1].mute(others)
    else:
        for each in others:
            each.mute([job.hosts[1]])

    jobs[2].wait_for("place 1 2 1 1 n2")
    [cut_off] = ended([jobs[1]])
    job.hosts[1].unmute(others)
    for each in others:
        each.unmute([job.hosts[1]])
    assert cut_off.code == 5, cut_off.err
    assert (
        "clusterrun: error: node 0 (n0) has been silent for 2.7 s; the job was stopped\n"
        in cut_off.err
    )
    job.let_all_end()
    ends = ended([jobs[0], jobs[2]])
    assert codes(ends) == [0, 0], ends
    assert "clusterrun: node 1 (n1) has been silent for 3 s; n2 takes its place\n" in ends[0].err


def test_frozen_agent_rejoins_as_spare(job: SparedJob) -> None:
    """Its fork server kills its workers before the next attempt."""
    jobs = job.start("--heartbeat-timeout", str(SILENT))
    before = len(jobs[1].processes())
    jobs[1].signal(signal.SIGSTOP)

    jobs[2].wait_for("place 1 2 1 1 n2")
    left = len(jobs[1].processes())
    jobs[1].signal(signal.SIGCONT)

    jobs[1].wait_for("this node is a spare")
    assert left == before - 1
    jobs[2].signal(signal.SIGKILL)
    jobs[1].wait_for("place 1 2 1 2 n1")
    job.let_all_end()
    ends = ended(jobs[:2])
    assert codes(ends) == [0, 0], ends
    assert (
        "clusterrun: node 0 has declared this node lost, as it has been silent for 3 s; rejoining\n"
    ) in ends[1].err


def test_spare_replaces_node_that_fails_its_check(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Node 1's variable names no interface."""
    nodes = Nodes(clusterrun, hosts, 'import os\nprint(os.environ["RANK"], os.uname().nodename)')
    doctor = f"{clusterrun.program} doctor --this-machine"
    options = ("--nnodes", "2", "--spares", "1", "--check", doctor, "--start-method", "spawn")
    place = ("--master-addr", hosts[0].address)
    wrong = {"NCCL_SOCKET_IFNAME": "nosuch0"}
    jobs = [
        nodes.start(
            rank, *options, *place, f"--node-rank={rank}", environ=wrong if rank == 1 else {}
        )
        for rank in range(3)
    ]
    ends = ended(jobs)

    assert codes(ends) == [0, 3, 0], ends
    assert [end.out for end in ends] == ["0 n0\n", "", "1 n2\n"]
    assert f'it fails its check: "{doctor}" exited with code 1' in ends[0].err
    assert "NCCL_SOCKET_IFNAME" in ends[1].err


@pytest.mark.parametrize("ends_lease", [False, True], ids=["shortly", "for long"])
def test_paused_node_is_not_lost(ends_lease: bool, job: SparedJob) -> None:
    """Its workers have their lease; if that expires, all workers restart, uncounted."""
    jobs = job.start("--heartbeat-timeout", "1" if ends_lease else "15")
    before = len(jobs[1].processes())
    jobs[1].signal(signal.SIGTSTP)
    jobs[0].wait_for("node 1 .n1. is paused")
    time.sleep(3.0)
    assert len(jobs[1].processes()) == before - ends_lease
    jobs[1].signal(signal.SIGCONT)
    jobs[0].wait_for("node 1 .n1. continues")

    if ends_lease:
        jobs[0].wait_for("place 0 2 0 1 n0")
        jobs[1].wait_for("place 1 2 1 1 n1")
    job.let_all_end()
    ends = ended(jobs)
    assert codes(ends) == [0, 0, 0], ends
    assert ("clusterrun: restarting all workers\n" in ends[0].err) == ends_lease
    assert "lost so far" not in ends[0].err


def test_restarted_agent_of_lost_node_is_a_spare(job: SparedJob) -> None:
    jobs = job.start()
    jobs[1].signal(signal.SIGKILL)
    jobs[2].wait_for("place 1 2 1 1 n2")

    back = job.join(1)
    back.wait_for("this node is a spare")
    jobs[2].signal(signal.SIGKILL)

    back.wait_for("place 1 2 1 2 n1")
    job.let_all_end()
    ends = ended([jobs[0], back])
    assert codes(ends) == [0, 0], ends
    assert "clusterrun: restarting all workers (2 nodes lost so far)\n" in ends[0].err


def test_loss_of_node_after_loss_of_spare_ends_job(job: SparedJob) -> None:
    jobs = job.start()
    jobs[2].signal(signal.SIGKILL)
    jobs[0].wait_for("which was waiting to join, has left\n")

    jobs[1].signal(signal.SIGKILL)

    [end] = ended([jobs[0]])
    assert end.code == 5
    assert "not restarted: no other node has taken the place of node 1 (n1)\n" in end.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_to_one_node_ends_spare(number: int, code: int, job: SparedJob) -> None:
    jobs = job.start()

    jobs[1].signal(number)

    assert codes(ended(jobs)) == [code] * 3


def test_spare_exits_with_0_after_success(job: SparedJob) -> None:
    """It prints no report."""
    jobs = job.start()

    job.let_all_end()

    ends = ended(jobs)
    assert codes(ends) == [0, 0, 0], ends
    assert ends[2].err == (
        "clusterrun: this node is a spare: it waits to take the place of a lost node\n"
    )


STEPS_UNTIL_SUSPENDED = """
    import os, pathlib, sys, time
    from clusterrun import suspend
    rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    for step in range(100_000):
        time.sleep(0.01)
        if suspend.requested(step):
            print("rank", rank, "saves step", step, flush=True)
            suspend.ready()
        if step == 20:
            print("rank", rank, "steps in attempt", attempt, flush=True)
"""


class TestSuspensions:
    """A job with a spare is suspended as any other."""

    @pytest.fixture
    def jobs(self, hosts: tuple[Host, ...], clusterrun: Launcher) -> list[Job]:
        """Return a job of two nodes and a spare, which has gone on without a third node."""
        nodes = Nodes(clusterrun, hosts, STEPS_UNTIL_SUSPENDED)
        options = ("--nnodes", "2", "--spares", "2", "--master-addr", hosts[0].address)
        jobs = [nodes.start(rank, *options, "--node-rank", str(rank)) for rank in range(4)]
        jobs[1].wait_for("rank 1 steps in attempt 0")
        jobs[1].signal(signal.SIGKILL)
        jobs[0].wait_for("rank 0 steps in attempt 1")
        jobs[2].wait_for("rank 1 steps in attempt 1")
        return [jobs[0], jobs[2], jobs[3]]

    @pytest.mark.parametrize("source", [0, 1, 2])
    def test_sigterm_to_any_agent_suspends_job(self, source: int, jobs: list[Job]) -> None:
        """One has replaced a lost node, another one is a spare."""
        jobs[source].signal(signal.SIGTERM)

        ends = ended(jobs)
        assert codes(ends) == [75, 75, 75], ends
        saved = {line for end in ends for line in end.out.splitlines() if "saves step" in line}
        steps = {line.rpartition(" ")[2] for line in saved}
        assert (len(saved), len(steps)) == (2, 1)
