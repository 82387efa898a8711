"""Services of a job of two nodes, both on this machine."""

import json
import re
import signal

import pytest
from free_ports import free_port

from tests.contract.launched import Job, Launcher
from tests.contract.services.job_files import WAITS, asking, started

SERVERS_ON_NODE_1 = """
    nnodes: 2
    node_ranks: 0
    script: train.py
    nproc_per_node: 2
    services:
      server: {command: [python, server.py, engine], nnodes: 1, nproc_per_node: 2, ready: /health}
"""

SERVERS_EVERYWHERE = """
    nnodes: 2
    script: train.py
    nproc_per_node: 1
    services:
      server: {command: [python, server.py], ready: /health}
      orchestrator: {script: orchestrates.py, node_ranks: [0], after: server, must_finish: true}
"""

SLEEPS = "import time; time.sleep(1000)"


def both(clusterrun: Launcher, job_file: str, script: str, orchestrates: str = "") -> list[Job]:
    """Start both nodes, as a scheduler does."""
    port = free_port()
    options = ("--master-addr=127.0.0.1", f"--master-port={port}", "--rdzv-timeout=60")
    files = {"orchestrates.py": orchestrates}
    return [
        started(clusterrun, job_file, script, *options, f"--node-rank={node}", files=files)
        for node in (0, 1)
    ]


def test_a_node_with_servers_only_ends_with_the_trainer(clusterrun: Launcher) -> None:
    """It holds no machine once the training has ended: both nodes end with 0."""
    script = asking("""
        for url in os.environ["CLUSTERRUN_SERVER_URLS"].split(","):
            print("server", ask("/environment", url))
    """)
    trainer, servers = both(clusterrun, SERVERS_ON_NODE_1, script)

    ended = [trainer.ended(), servers.ended()]

    assert [each.code for each in ended] == [0, 0]
    found = [
        json.loads(text) for text in re.findall(r"(?m)^\[rank 0 \S+\] server (.*)$", ended[0].out)
    ]
    assert [(each["ROLE_RANK"], each["GROUP_RANK"]) for each in found] == [("0", "0"), ("1", "0")]
    assert [
        len(re.findall(rf"(?m)^\[server {rank} \S+\] listens", ended[1].out)) for rank in (0, 1)
    ] == [
        1,
        1,
    ]
    assert (trainer.left(), servers.left()) == ([], [])


def test_ranks_are_counted_in_each_program(clusterrun: Launcher) -> None:
    """Over all nodes; each node's server has a number, and all know all addresses."""
    script = asking("""
        rank = os.environ["RANK"]
        urls = os.environ["CLUSTERRUN_SERVER_URLS"].split(",")
        seen = [json.loads(ask("/environment", url))["ROLE_RANK"] for url in urls]
        print("main", rank, os.environ["WORLD_SIZE"], os.environ["GROUP_RANK"], seen, flush=True)
    """)
    orchestrates = "import os; print('orchestrator', os.environ['ROLE_WORLD_SIZE'], flush=True)"
    jobs = both(clusterrun, SERVERS_EVERYWHERE, script, orchestrates)

    ended = [job.ended() for job in jobs]

    assert [each.code for each in ended] == [0, 0]
    for rank in (0, 1):
        assert re.search(
            rf"(?m)^\[rank {rank} \S+\] main {rank} 2 {rank} \['0', '1'\]$", ended[rank].out
        )
        assert re.search(rf"(?m)^\[server {rank} \S+\] listens", ended[rank].out)
    assert re.search(r"(?m)^\[orchestrator 0 \S+\] orchestrator 1$", ended[0].out)


@pytest.mark.parametrize(
    ("script", "orchestrates", "code", "named"),
    [
        (asking("ask('/exit/7'); time.sleep(1000)"), SLEEPS, 7, r"server rank 0 on \S+ failed"),
        (
            asking("""
                if os.environ["RANK"] == "1":
                    raise SystemExit(8)
                time.sleep(1000)
            """),
            SLEEPS,
            8,
            r"rank 1 on \S+ failed",
        ),
        (WAITS, "raise SystemExit(9)", 9, r"orchestrator rank 0 on \S+ failed"),
    ],
    ids=["server", "rank", "orchestrator"],
)
def test_a_failure_of_any_program_ends_both_nodes(
    clusterrun: Launcher, script: str, orchestrates: str, code: int, named: str
) -> None:
    """With the same exit code, and the same cause."""
    jobs = both(clusterrun, SERVERS_EVERYWHERE, script, orchestrates)

    ended = [job.ended() for job in jobs]

    assert [each.code for each in ended] == [code, code]
    for each in ended:
        assert len(re.findall(rf"(?m)^clusterrun: {named}: exit code {code}$", each.err)) == 1
    assert [job.left() for job in jobs] == [[], []]


def test_a_server_on_another_node_is_never_ready(clusterrun: Launcher) -> None:
    """No rank of any node has started."""
    job_file = SERVERS_ON_NODE_1.replace("ready: /health", "ready: {path: /no, timeout: 2}")
    jobs = both(clusterrun, job_file, WAITS)

    ended = [job.ended() for job in jobs]

    assert [each.code for each in ended] == [1, 1]
    texts = "".join(each.err for each in ended)
    assert re.search(r"clusterrun: server rank [01] on \S+ was not ready within 2 s: GET ", texts)
    assert "trains" not in ended[0].out
    assert [job.left() for job in jobs] == [[], []]


def test_an_agent_with_servers_is_killed(clusterrun: Launcher) -> None:
    """Its node is lost: the other one ends with 5, and no engine is left on either."""
    jobs = both(clusterrun, SERVERS_ON_NODE_1, WAITS)
    jobs[0].wait_for("trains", 2)

    jobs[1].signal(signal.SIGKILL)

    assert [job.ended().code for job in jobs] == [5, -signal.SIGKILL]
    assert [job.left() for job in jobs] == [[], []]


@pytest.mark.parametrize("node", [0, 1])
def test_a_signal_on_one_node(clusterrun: Launcher, node: int) -> None:
    """Both end with its exit code; it does not matter whether that node has servers only."""
    jobs = both(clusterrun, SERVERS_ON_NODE_1, WAITS)
    jobs[0].wait_for("trains", 2)

    jobs[node].signal(signal.SIGTERM)

    assert [job.ended().code for job in jobs] == [143, 143]
    assert [job.left() for job in jobs] == [[], []]


def test_a_restart_on_two_nodes(clusterrun: Launcher) -> None:
    """Addresses stay: a client outside the job still finds its server."""
    script = asking("""
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("urls", os.environ["CLUSTERRUN_SERVER_URLS"], flush=True)
        ask("/health")
        if attempt == "0":
            raise SystemExit("fails in " + attempt)
    """)
    job_file = SERVERS_ON_NODE_1.replace(
        "nproc_per_node: 2", "max_restarts: 1\n    nproc_per_node: 1", 1
    )
    jobs = both(clusterrun, job_file, script)

    ended = [job.ended() for job in jobs]

    assert [each.code for each in ended] == [0, 0]
    first, second = re.findall(r"urls (\S+)", ended[0].out)
    assert first == second
    assert len(re.findall("listens", ended[1].out)) == 4


def test_a_node_rank_is_needed(clusterrun: Launcher) -> None:
    """A node must know its services before it joins."""
    ended = started(clusterrun, SERVERS_ON_NODE_1, "", "--master-addr=127.0.0.1").ended()

    assert ended.code == 2
    assert "give --node-rank\n" in ended.err
