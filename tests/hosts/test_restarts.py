"""``--max-restarts`` on several hosts: all workers of all nodes restart together, counted once."""

import os
import re
import signal
import time

import pytest

from tests.contract.launched import Job, Launcher, await_end
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended, nothing_is_left

FAILS_ONCE = """
    import os, signal, sys
    attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    print(f"attempt {attempt} port", os.environ["MASTER_PORT"], flush=True)
    if attempt == "0" and rank == "1":
        raise ValueError("no luck")
    if attempt == "0":
        signal.pause()
"""

FAILS_AGAIN = """
    import os, signal, sys
    if os.environ["RANK"] == "1":
        print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
        sys.exit(f"no data on {os.uname().nodename}")
    signal.pause()
"""

SLOW_TO_STOP = """
    import os, pathlib, signal, sys, time
    attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    print("attempt", attempt, flush=True)
    if rank == "2":
        signal.signal(signal.SIGTERM, lambda *_: print("got SIGTERM", flush=True))
    if attempt == "0" and rank == "1":
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        sys.exit("no luck")
    while True:
        time.sleep(0.1)
"""

ALL_REDUCE_AND_FAIL_TWICE = """
    import os, sys
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], "sum", int(total.item()), flush=True)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "2" and dist.get_rank() == 1:
        raise ValueError("no luck in attempt " + os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.all_reduce(total)
    os._exit(0)
"""

SOON = "within 10 s of its start"

RESTARTING = "clusterrun: restarting all workers (restart 1 of {})\n"


def test_second_attempt_succeeds(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Each node prints why all workers restart. MASTER_PORT stays the same."""
    jobs = Nodes(clusterrun, hosts, FAILS_ONCE).start_all("--max-restarts", "2", workers=(1, 1, 2))

    ends = ended(jobs)

    assert codes(ends) == [0, 0, 0], ends
    for end, workers in zip(ends, (1, 1, 2), strict=True):
        # Some workers of the first attempt may be stopped before they print.
        assert end.out.count("attempt 1 port 29500\n") == workers
        assert set(re.findall(r"port (\d+)", end.out)) == {"29500"}
        assert "clusterrun: rank 1 on n1 failed: ValueError: no luck\n" in end.err
        assert end.err.endswith(RESTARTING.format(2))
    nothing_is_left(hosts, jobs)


def test_rdzv_endpoint_gives_each_attempt_a_new_port(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    nodes = Nodes(clusterrun, hosts, FAILS_ONCE)
    options = (
        "--nnodes",
        "2",
        "--rdzv-endpoint",
        f"{hosts[0].address}:29400",
        "--max-restarts",
        "1",
    )

    ends = ended([nodes.start(number, *options, "--node-rank", str(number)) for number in (0, 1)])

    first, second = (
        {port for end in ends for port in re.findall(rf"attempt {attempt} port (\d+)", end.out)}
        for attempt in (0, 1)
    )
    assert codes(ends) == [0, 0], ends
    assert (len(first), len(second), len(first & second)) == (1, 1, 0)


@pytest.mark.parametrize(
    ("options", "attempts", "why"),
    [
        (
            ["--no-restart-exit-codes", "1-3"],
            1,
            "exit code 1 is one of --no-restart-exit-codes 1-3",
        ),
        (
            [],
            2,
            f"rank 1 failed twice with the same last line {SOON} (--no-fail-fast restarts anyway)",
        ),
        (["--no-fail-fast"], 4, ""),
    ],
    ids=["a final exit code", "the same failure twice", "the same failure four times"],
)
def test_reason_of_no_restart_is_printed_on_all_nodes(
    options: list[str], attempts: int, why: str, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    nodes = Nodes(clusterrun, hosts, FAILS_AGAIN)
    jobs = nodes.start_all("--max-restarts", "3", *options)

    ends = ended(jobs)

    last = "clusterrun: exit code 1, from rank 1\n"
    assert codes(ends) == [1, 1]
    assert ends[1].out.count("attempt") == attempts
    for end in ends:
        assert end.err.count("restarting all workers") == attempts - 1
        assert end.err.endswith(f"  not restarted: {why}\n{last}" if why else last)


def stopping_job(hosts: tuple[Host, ...], clusterrun: Launcher, *options: str) -> list[Job]:
    """Return a job of three nodes whose rank 1 has failed and whose rank 2 ignores SIGTERM."""
    nodes = Nodes(clusterrun, hosts, SLOW_TO_STOP)
    jobs = nodes.start_all("--max-restarts", "3", *options, workers=(1, 1, 1))
    for job in jobs:
        job.wait_for("attempt 0")
    (clusterrun.folder / "go").touch()
    jobs[2].wait_for("got SIGTERM")
    return jobs


def test_signal_while_workers_stop_prevents_restart(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    jobs = stopping_job(hosts, clusterrun, "--shutdown-timeout", "1")

    jobs[0].signal(signal.SIGTERM)
    ends = ended(jobs)

    assert codes(ends) == [143] * 3, ends
    assert ["restarting" in end.err for end in ends] == [False] * 3
    nothing_is_left(hosts, jobs)


def test_node_lost_while_workers_stop_prevents_restart(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """The cause stays the same."""
    jobs = stopping_job(hosts, clusterrun)
    # Less than a second before the loss, the failure could be its consequence.
    jobs[0].wait_for("rank 1 on n1 failed: stopping 1 worker on this node")
    time.sleep(1.2)

    jobs[2].signal(signal.SIGKILL)
    ends = ended(jobs[:2])

    assert codes(ends) == [1, 1], ends
    for end in ends:
        assert end.err.endswith(
            "  not restarted: node 2 (n2) is gone\nclusterrun: exit code 1, from rank 1\n"
        )
    nothing_is_left(hosts, jobs[:2])


def test_fork_server_killed_while_workers_stop_ends_job(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Its node's worker has already ended."""
    jobs = stopping_job(hosts, clusterrun, "--shutdown-timeout", "2")
    jobs[0].wait_for("rank 1 on n1 failed: stopping 1 worker on this node")

    os.kill(jobs[0].fork_server, signal.SIGKILL)
    ends = ended(jobs)

    assert codes(ends) == [137] * 3, ends
    last = "clusterrun: exit code 137, from the fork server on n0: 128 + 9 for SIGKILL\n"
    assert [end.err.endswith(last) for end in ends] == [True] * 3
    nothing_is_left(hosts, jobs)


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_restarted_agent_joins_again(
    killed: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """If it is node 0, the others connect to it again."""
    nodes = Nodes(clusterrun, hosts, "print('done')")
    jobs = [nodes.join(rank, "--nnodes", "3") for rank in (0, 1)]
    jobs[0].wait_for("2 of 3 nodes have joined: n0, n1; waiting for node rank 2")

    jobs[killed].signal(signal.SIGKILL)
    await_end(jobs[killed].agent)
    if killed == 1:
        jobs[0].wait_for(r"n1 \(pid \d+\) has disconnected")
    others = [nodes.join(rank, "--nnodes", "3") for rank in (killed, 2)]

    assert codes(ended([jobs[1 - killed], *others])) == [0, 0, 0]


@pytest.mark.long
def test_torch_store_listens_again_at_same_port(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    nodes = Nodes(clusterrun, hosts, ALL_REDUCE_AND_FAIL_TWICE)

    ends = ended(nodes.start_all("--max-restarts", "2", workers=(1, 1)), 90)

    assert codes(ends) == [0, 0], ends
    assert re.findall(r"attempt \d sum \d", ends[0].out) == [f"attempt {n} sum 2" for n in range(3)]
