"""``--spares``: a spare replaces a lost node."""

import json
import signal
import time

import pytest

from tests.contract.launched import COMMAND, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.resilient_job import ResilientJob

HEARTBEAT_TIMEOUT = ("--heartbeat-timeout", "2")
"""Where a test waits for it."""


def test_spare_replaces_killed_agent(job: ResilientJob) -> None:
    """Ranks and world size stay, and the job ends with 0."""
    jobs = job.start("--events", "events-%n.json")

    jobs[1].signal(signal.SIGKILL)

    jobs[0].wait_for("worker 0 2 0 1 on n0")
    jobs[2].wait_for("worker 1 2 1 1 on n2")
    error, _ = job.finish(jobs[0], jobs[2])
    assert "clusterrun: node 1 (n1) is gone; n2 takes its place\n" in error
    assert "clusterrun: restarting all workers (1 node lost so far)\n" in error
    lines = (job.folder / "events-0.json").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    [replaced] = [event for event in events if event["event"] == "replaced"]
    assert (replaced["node_rank"], replaced["host"], replaced["by"]) == (1, "n1", "n2")
    assert jobs[1].left() == []


@pytest.mark.parametrize(
    "way", ["cut", *(pytest.param(way, marks=pytest.mark.long) for way in ("mute", "deaf"))]
)
def test_spare_replaces_node_that_is_cut_off(way: str, job: ResilientJob) -> None:
    """It kills its workers before the next attempt, and ends because node 0 is silent. "mute": only what it sends is lost; "deaf": only what is sent to it."""
    jobs = job.start(*HEARTBEAT_TIMEOUT)

    others = [each for each in job.hosts if each is not job.hosts[1]]
    if way == "cut":
        job.hosts[1].cut()
    elif way == "mute":
        job.hosts[1].mute(others)
    else:
        for each in others:
            each.mute([job.hosts[1]])

    jobs[2].wait_for("worker 1 2 1 1 on n2")
    [cut_off] = ended([jobs[1]])
    job.hosts[1].unmute(others)
    for each in others:
        each.unmute([job.hosts[1]])
    assert cut_off.code == 5, cut_off.err
    assert (
        "clusterrun: error: node 0 (n0) has been silent for 2.7 s; the job was stopped\n"
        in cut_off.err
    )
    error, _ = job.finish(jobs[0], jobs[2])
    assert "clusterrun: node 1 (n1) has been silent for 3 s; n2 takes its place\n" in error


def test_frozen_agent_rejoins_as_spare(job: ResilientJob) -> None:
    """Its fork server kills its workers before the next attempt."""
    jobs = job.start(*HEARTBEAT_TIMEOUT)
    before = len(jobs[1].processes())
    jobs[1].signal(signal.SIGSTOP)

    jobs[2].wait_for("worker 1 2 1 1 on n2")
    after = len(jobs[1].processes())
    jobs[1].signal(signal.SIGCONT)

    jobs[1].wait_for("this node is a spare")
    listed = json.loads(job.hosts[1].run(COMMAND, "ps", "--json").out)["agents"]
    assert after == before - 1
    assert [each["state"] for each in listed if each["pid"] == jobs[1].agent] == ["joining"]
    jobs[2].signal(signal.SIGKILL)
    jobs[1].wait_for("worker 1 2 1 2 on n1")
    _, error = job.finish(*jobs[:2])
    assert (
        "clusterrun: node 0 has declared this node lost, as it has been silent for 3 s; rejoining\n"
    ) in error


def test_spare_replaces_node_that_fails_its_check(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Node 1's variable names no interface."""
    nodes = Nodes(clusterrun, hosts, 'import os\nprint(os.environ["RANK"], os.uname().nodename)')
    doctor = f"{clusterrun.program} doctor --this-machine"
    options = ("--nnodes", "2", "--spares", "1", "--check", doctor, "--start-method", "spawn")
    wrong = {"NCCL_SOCKET_IFNAME": "nosuch0"}
    jobs = [nodes.join(rank, *options, environ=wrong if rank == 1 else {}) for rank in range(3)]
    ends = ended(jobs)

    assert codes(ends) == [0, 3, 0], ends
    assert [end.out for end in ends] == ["0 n0\n", "", "1 n2\n"]
    assert f'it fails its check: "{doctor}" exited with code 1' in ends[0].err
    assert "NCCL_SOCKET_IFNAME" in ends[1].err


@pytest.mark.parametrize("lease_expires", [False, True], ids=["shortly", "for long"])
def test_paused_node_is_not_lost(lease_expires: bool, job: ResilientJob) -> None:
    """Its workers have their lease; if that expires, all workers restart, uncounted."""
    jobs = job.start("--heartbeat-timeout", "1" if lease_expires else "15")
    before = len(jobs[1].processes())
    jobs[1].signal(signal.SIGTSTP)
    jobs[0].wait_for("node 1 .n1. is paused")
    time.sleep(3.0)
    assert len(jobs[1].processes()) == before - lease_expires
    jobs[1].signal(signal.SIGCONT)
    jobs[0].wait_for("node 1 .n1. continues")

    if lease_expires:
        jobs[0].wait_for("worker 0 2 0 1 on n0")
        jobs[1].wait_for("worker 1 2 1 1 on n1")
    error, *_ = job.finish(*jobs)
    assert ("clusterrun: restarting all workers\n" in error) == lease_expires
    assert "lost so far" not in error


def test_restarted_agent_of_lost_node_is_a_spare(job: ResilientJob) -> None:
    jobs = job.start()
    jobs[1].signal(signal.SIGKILL)
    jobs[2].wait_for("worker 1 2 1 1 on n2")

    rejoined = job.join(1)
    rejoined.wait_for("this node is a spare")
    jobs[2].signal(signal.SIGKILL)

    rejoined.wait_for("worker 1 2 1 2 on n1")
    error, _ = job.finish(jobs[0], rejoined)
    assert "clusterrun: restarting all workers (2 nodes lost so far)\n" in error


def test_loss_of_node_after_loss_of_spare_ends_job(job: ResilientJob) -> None:
    jobs = job.start()
    jobs[2].signal(signal.SIGKILL)
    jobs[0].wait_for("which was waiting to join, has left\n")

    jobs[1].signal(signal.SIGKILL)

    [end] = ended([jobs[0]])
    assert end.code == 5
    assert "not restarted: no other node has taken the place of node 1 (n1)\n" in end.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_to_one_node_ends_spare(number: int, code: int, job: ResilientJob) -> None:
    jobs = job.start()

    jobs[1].signal(number)

    assert codes(ended(jobs)) == [code] * 3


def test_spare_exits_with_0_after_success(job: ResilientJob) -> None:
    """It prints no report."""
    errors = job.finish(*job.start())

    assert errors[2] == (
        "clusterrun: this node is a spare: it waits to take the place of a lost node\n"
    )


MAKE_STEPS_UNTIL_SUSPENDED = """
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


@pytest.mark.parametrize("node", [0, 1, 2])
def test_sigterm_to_any_agent_suspends_job(
    node: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """One agent has replaced a lost node, another one is a spare."""
    nodes = Nodes(clusterrun, hosts, MAKE_STEPS_UNTIL_SUSPENDED)
    first, lost, *others = [nodes.join(rank, "--nnodes", "2", "--spares", "2") for rank in range(4)]
    jobs = [first, *others]
    lost.wait_for("rank 1 steps in attempt 0")
    lost.signal(signal.SIGKILL)
    jobs[0].wait_for("rank 0 steps in attempt 1")
    jobs[1].wait_for("rank 1 steps in attempt 1")

    jobs[node].signal(signal.SIGTERM)

    ends = ended(jobs)
    assert codes(ends) == [75, 75, 75], ends
    saved = {line for end in ends for line in end.out.splitlines() if "saves step" in line}
    steps = {line.rpartition(" ")[2] for line in saved}
    assert (len(saved), len(steps)) == (2, 1)
