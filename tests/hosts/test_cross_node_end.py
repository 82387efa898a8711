"""A job on two hosts ends on both at once, for the same reason, and leaves nothing."""

import json
import os
import re
import signal
import time

import pytest

from tests.contract.launched import Job, Launcher, await_end, await_text
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended, nothing_is_left

WAIT = """
    import signal, subprocess
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print("up", flush=True)
    signal.pause()
"""
"""Each worker has a child in another session."""

FAIL = """
    import os, signal, subprocess, sys
    subprocess.Popen(["sleep", "1000"])
    if os.environ["RANK"] == "2":
        print("no such file", file=sys.stderr)
        sys.exit(7)
    signal.pause()
"""

SUCCEED = """
    import os, time
    time.sleep(0.5 * int(os.environ["RANK"]))
"""


def two_running_nodes(hosts: tuple[Host, ...], clusterrun: Launcher) -> list[Job]:
    """Return both nodes of a job with 2 and 1 workers, all running."""
    jobs = Nodes(clusterrun, hosts, WAIT).start_all(workers=(2, 1))
    jobs[0].wait_for("up", times=2)
    jobs[1].wait_for("up")
    return jobs


def two_of_three_nodes(hosts: tuple[Host, ...], clusterrun: Launcher) -> list[Job]:
    """Return two nodes that have joined and wait for a third one."""
    nodes = Nodes(clusterrun, hosts, WAIT)
    jobs = [nodes.join(rank, "--nnodes", "3") for rank in (0, 1)]
    jobs[0].wait_for("2 of 3 nodes have joined: n0, n1; waiting for node rank 2")
    return jobs


def test_success_waits_for_all_workers(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """No node prints anything."""
    jobs = Nodes(clusterrun, hosts, SUCCEED).start_all(workers=(1, 2))

    ends = ended(jobs)

    assert [tuple(end) for end in ends] == [(0, "", "")] * 2
    nothing_is_left(hosts, jobs)


def test_failed_worker_ends_both_nodes(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Both name it and exit with its code; the other node shows its output."""
    jobs = Nodes(clusterrun, hosts, FAIL).start_all(workers=(2, 1))

    ends = ended(jobs, seconds=15)

    times = [re.search(r"  (local rank 0, pid \d+, at .* after its start)", e.err) for e in ends]
    [[shown], [repeated]] = [found.groups() if found else [""] for found in times]
    headline = f"clusterrun: rank 2 on n1 failed: exit code 7\n  {shown}\n"
    assert codes(ends) == [7, 7]
    assert shown == repeated != ""
    assert ends[0].err == (
        "clusterrun: rank 2 on n1 failed: stopping 2 workers on this node\n"
        f"{headline}\n"
        "    no such file\n"
        "\n"
        "  ranks 0-1: stopped by clusterrun\n"
        "clusterrun: exit code 7, from rank 2\n"
    )
    assert ends[1].err == f"no such file\n{headline}clusterrun: exit code 7, from rank 2\n"
    nothing_is_left(hosts, jobs)


def test_failed_worker_that_does_not_exit_is_killed(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Both nodes report it as the cause, with its traceback."""
    script = """
        import atexit, os, time
        if os.environ["RANK"] == "1":
            atexit.register(time.sleep, 600)
            raise ValueError("loss is nan")
        time.sleep(600)
    """
    jobs = Nodes(clusterrun, hosts, script).start_all("--shutdown-timeout=1")

    ends = ended(jobs)

    assert codes(ends) == [1, 1], ends
    for each in ends:
        assert "clusterrun: rank 1 on n1 failed: ValueError: loss is nan\n" in each.err
        assert "did not exit after its failure, and was killed; its stack:\n" in each.err
    nothing_is_left(hosts, jobs)


@pytest.mark.parametrize("lost", [0, 1])
def test_killed_agent_ends_the_other_node(
    hosts: tuple[Host, ...], clusterrun: Launcher, lost: int
) -> None:
    jobs = two_running_nodes(hosts, clusterrun)
    other = 1 - lost

    jobs[lost].signal(signal.SIGKILL)
    ends = ended(jobs, seconds=15)

    stopping = f"stopping {'1 worker' if lost == 0 else '2 workers'} on this node"
    assert ends[lost].code == -signal.SIGKILL
    assert ends[other].code == 5
    assert ends[other].err == (
        f"clusterrun: node {lost} (n{lost}) is gone: {stopping}\n"
        f"clusterrun: error: node {lost} (n{lost}) is gone; the job was stopped\n"
        f"clusterrun: exit code 5: node {lost} was lost\n"
    )
    nothing_is_left(hosts, jobs)


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_one_agent_ends_both_nodes(
    hosts: tuple[Host, ...], clusterrun: Launcher, node: int, number: signal.Signals
) -> None:
    """Both exit with the code of that signal and name the node that got it."""
    jobs = two_running_nodes(hosts, clusterrun)
    other = 1 - node

    jobs[node].signal(number)
    ends = ended(jobs, seconds=15)

    stopping = f"stopping {'1 worker' if other else '2 workers'} on this node"
    assert codes(ends) == [128 + number] * 2
    assert f"clusterrun: n{node} got {number.name}: {stopping}\n" in ends[other].err
    if number == signal.SIGTERM:
        last = "clusterrun: exit code 143: clusterrun received SIGTERM"
        assert [end.err.splitlines()[-1] for end in ends] == [last, last]
    nothing_is_left(hosts, jobs)


@pytest.mark.parametrize("node", [0, pytest.param(1, marks=pytest.mark.long)])
def test_signal_to_one_agent_while_nodes_join(
    hosts: tuple[Host, ...], clusterrun: Launcher, node: int
) -> None:
    """Node 0 refuses the nodes that have joined. If another node got the signal, node 0 still waits."""
    jobs = two_of_three_nodes(hosts, clusterrun)

    jobs[node].signal(signal.SIGTERM)

    await_end(jobs[node].agent)
    if node == 1:
        jobs[0].wait_for(r"n1 \(pid \d+\) has disconnected")
        jobs[0].signal(signal.SIGTERM)
    ends = ended(jobs)
    expected = [143, 4 if node == 0 else 143]
    assert codes(ends) == expected
    line = "clusterrun: received SIGTERM before any worker was started; exit code 143\n"
    assert [end.err.endswith(line) for end in ends] == [code == 143 for code in expected]
    if node == 0:
        text = "n0 (node 0) got SIGTERM while it waited for other nodes"
        assert ends[1].err == f"clusterrun: error: {text}\n"
    nothing_is_left(hosts, jobs)


@pytest.mark.parametrize("helper", ["fork server", "relay"])
def test_killed_helper_of_node_zero_ends_rendezvous(
    hosts: tuple[Host, ...], clusterrun: Launcher, helper: str
) -> None:
    jobs = two_of_three_nodes(hosts, clusterrun)

    os.kill(jobs[0].fork_server if helper == "fork server" else jobs[0].relay, signal.SIGKILL)
    ends = ended(jobs)

    assert codes(ends) == [137, 4], ends
    assert f"the {helper} was killed by SIGKILL" in ends[0].err
    assert f"the {helper} of n0 (node 0) was killed by SIGKILL while it waited" in ends[1].err


EXIT_EARLY = """
    import os, pathlib, sys, time
    if os.environ["RANK"] == "0":
        print("early", flush=True)
        sys.exit()
    print("up", flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    sys.exit(int(pathlib.Path("go").read_text()))
"""
"""The worker of node 0 exits long before the other one."""


def one_finished_node(hosts: tuple[Host, ...], clusterrun: Launcher) -> list[Job]:
    """Return both nodes of a job, of which node 0 has finished."""
    jobs = Nodes(clusterrun, hosts, EXIT_EARLY).start_all("--events", "events-%n")
    jobs[1].wait_for("up")
    # On a busy machine, the agent of node 0 handles the exit of its worker much later.
    await_text(clusterrun.folder / "events-0", '"exited"')
    return jobs


def test_failure_after_another_node_has_finished(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """A node that has finished waits for the others and reports their failure."""
    jobs = one_finished_node(hosts, clusterrun)
    # An earlier exit is only mentioned if it was well before.
    time.sleep(0.5)
    (clusterrun.folder / "go").write_text("3")

    ends = ended(jobs)

    assert codes(ends) == [3, 3]
    for end in ends:
        earlier = r"\(rank 0 had exited with code 0 \S+ s before\)"
        assert re.search(rf"clusterrun: rank 1 on n1 failed: exit code 3 {earlier}\n", end.err)
        assert end.err.endswith("clusterrun: exit code 3, from rank 1\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_finished_node_ends_all_nodes(
    hosts: tuple[Host, ...], clusterrun: Launcher, number: signal.Signals
) -> None:
    jobs = one_finished_node(hosts, clusterrun)

    jobs[0].signal(number)
    ends = ended(jobs)

    assert codes(ends) == [128 + number] * 2, ends
    assert ": the other nodes stop their workers (" in ends[0].err
    assert f"clusterrun: n0 got {number.name}: stopping 1 worker on this node\n" in ends[1].err
    nothing_is_left(hosts, jobs)


def test_finished_node_without_node_zero_exits_with_5(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """It can't learn how the job ends."""
    nodes = Nodes(clusterrun, hosts, EXIT_EARLY.replace('== "0"', '== "1"'))
    jobs = nodes.start_all()
    jobs[1].wait_for("early")
    jobs[0].wait_for("up")

    jobs[0].signal(signal.SIGKILL)
    [end] = ended(jobs[1:])

    assert end.code == 5
    assert end.err.endswith("clusterrun: exit code 5: node 0 was lost\n")


@pytest.mark.long
@pytest.mark.timeout(200)
def test_rank_that_exits_a_minute_before_others_is_named_once(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    jobs = one_finished_node(hosts, clusterrun)
    time.sleep(62)
    (clusterrun.folder / "go").write_text("0")

    ends = ended(jobs)

    assert codes(ends) == [0, 0]
    assert ends[0].err == "clusterrun: rank 0 exited with code 0 60 s ago; rank 1 still runs\n"


def test_events_of_lost_node(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Its own file ends early. The others name it and their exit code."""
    jobs = Nodes(clusterrun, hosts, WAIT).start_all("--events=events-%n", workers=(2, 1, 1))
    for job in jobs:
        job.wait_for("up")

    jobs[2].signal(signal.SIGKILL)
    ends = ended(jobs)

    assert codes(ends[:2]) == [5, 5]
    files = [
        [
            json.loads(line)
            for line in (clusterrun.folder / f"events-{rank}").read_text().splitlines()
        ]
        for rank in range(3)
    ]
    assert [file[0]["host"] for file in files] == ["n0", "n1", "n2"]
    assert [event["rank"] for event in files[1] if event["event"] == "started"] == [2]
    for file in files[:2]:
        (lost,) = [event for event in file if event["event"] == "lost"]
        assert (lost["node_rank"], lost["host"], lost["how"]) == (2, "n2", "is gone")
        assert (file[-1]["event"], file[-1]["code"], file[-1]["reason"]) == (
            "ended",
            5,
            "node lost",
        )
    # It may have been killed before it recorded that its worker runs.
    assert [event["event"] for event in files[2]] in (["joined"], ["joined", "started"])
