"""Services of a job of two nodes, both on this machine."""

import json
import re
import signal

import pytest

from tests.contract.launched import Job, Launcher, node_options
from tests.contract.services.job_files import WAITS, client, start_job

SERVERS_ON_NODE_1 = """
    node_ranks: 0
    script: train.py
    nproc_per_node: 2
    services:
      server: {command: [python, server.py, engine], nnodes: 1, nproc_per_node: 2, ready: /health}
"""

SERVERS_EVERYWHERE = """
    script: train.py
    nproc_per_node: 1
    services:
      server: {command: [python, server.py], ready: /health}
      orchestrator: {script: orchestrates.py, node_ranks: [0], after: server, must_finish: true}
"""

SLEEPS = "import time; time.sleep(1000)"


def start_nodes(
    clusterrun: Launcher, job_file: str, script: str, orchestrates: str = ""
) -> list[Job]:
    files = {"orchestrates.py": orchestrates}
    return [
        start_job(clusterrun, job_file, script, *options, files=files) for options in node_options()
    ]


def test_node_with_servers_only_ends_with_the_main_program(clusterrun: Launcher) -> None:
    script = client("""
        for url in os.environ["CLUSTERRUN_SERVER_URLS"].split(","):
            print("server", get("/environment", url))
    """)
    trainer, servers = start_nodes(clusterrun, SERVERS_ON_NODE_1, script)

    ended = [trainer.ended(), servers.ended()]

    assert [node.code for node in ended] == [0, 0]
    found = [
        json.loads(text) for text in re.findall(r"(?m)^\[rank 0 \S+\] server (.*)$", ended[0].out)
    ]
    assert [(node["ROLE_RANK"], node["GROUP_RANK"]) for node in found] == [("0", "0"), ("1", "0")]
    assert [
        len(re.findall(rf"(?m)^\[server {rank} \S+\] listens", ended[1].out)) for rank in (0, 1)
    ] == [
        1,
        1,
    ]
    assert (trainer.left(), servers.left()) == ([], [])


def test_ranks_are_counted_for_each_program(clusterrun: Launcher) -> None:
    """They are counted over all nodes. All workers know all addresses."""
    script = client("""
        rank = os.environ["RANK"]
        urls = os.environ["CLUSTERRUN_SERVER_URLS"].split(",")
        seen = [json.loads(get("/environment", url))["ROLE_RANK"] for url in urls]
        print("main", rank, os.environ["WORLD_SIZE"], os.environ["GROUP_RANK"], seen, flush=True)
    """)
    orchestrates = "import os; print('orchestrator', os.environ['ROLE_WORLD_SIZE'], flush=True)"
    jobs = start_nodes(clusterrun, SERVERS_EVERYWHERE, script, orchestrates)

    ended = [job.ended() for job in jobs]

    assert [node.code for node in ended] == [0, 0]
    for rank in (0, 1):
        assert re.search(
            rf"(?m)^\[rank {rank} \S+\] main {rank} 2 {rank} \['0', '1'\]$", ended[rank].out
        )
        assert re.search(rf"(?m)^\[server {rank} \S+\] listens", ended[rank].out)
    assert re.search(r"(?m)^\[orchestrator 0 \S+\] orchestrator 1$", ended[0].out)


@pytest.mark.parametrize(
    ("script", "orchestrates", "code", "named"),
    [
        (
            client("get('/exit/7'); time.sleep(1000)"),
            SLEEPS,
            7,
            r"server rank 0 on \S+ failed",
        ),
        (
            client("""
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
def test_failure_of_any_program_ends_both_nodes(
    clusterrun: Launcher, script: str, orchestrates: str, code: int, named: str
) -> None:
    """Both have the same exit code and the same cause."""
    jobs = start_nodes(clusterrun, SERVERS_EVERYWHERE, script, orchestrates)

    ended = [job.ended() for job in jobs]

    assert [node.code for node in ended] == [code, code]
    for node in ended:
        assert len(re.findall(rf"(?m)^clusterrun: {named}: exit code {code}$", node.err)) == 1
    assert [job.left() for job in jobs] == [[], []]


def test_no_rank_starts_if_a_server_on_another_node_is_not_ready(clusterrun: Launcher) -> None:
    job_file = SERVERS_ON_NODE_1.replace("ready: /health", "ready: {path: /no, timeout: 2}")
    jobs = start_nodes(clusterrun, job_file, WAITS)

    ended = [job.ended() for job in jobs]

    assert [node.code for node in ended] == [1, 1]
    texts = "".join(node.err for node in ended)
    assert re.search(r"clusterrun: server rank [01] on \S+ was not ready within 2 s: GET ", texts)
    assert "trains" not in ended[0].out
    assert [job.left() for job in jobs] == [[], []]


def test_sigkill_of_agent_with_servers_ends_both_nodes(clusterrun: Launcher) -> None:
    jobs = start_nodes(clusterrun, SERVERS_ON_NODE_1, WAITS)
    jobs[0].wait_for("trains", 2)

    jobs[1].signal(signal.SIGKILL)

    assert [job.ended().code for job in jobs] == [5, -signal.SIGKILL]
    assert [job.left() for job in jobs] == [[], []]


@pytest.mark.parametrize("node", [0, 1])
def test_signal_to_one_node_ends_both_nodes(clusterrun: Launcher, node: int) -> None:
    jobs = start_nodes(clusterrun, SERVERS_ON_NODE_1, WAITS)
    jobs[0].wait_for("trains", 2)

    jobs[node].signal(signal.SIGTERM)

    assert [job.ended().code for job in jobs] == [143, 143]
    assert [job.left() for job in jobs] == [[], []]


def test_restart_on_two_nodes_keeps_addresses(clusterrun: Launcher) -> None:
    script = client("""
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("urls", os.environ["CLUSTERRUN_SERVER_URLS"], flush=True)
        get("/health")
        if attempt == "0":
            raise SystemExit("fails in " + attempt)
    """)
    job_file = SERVERS_ON_NODE_1.replace(
        "nproc_per_node: 2", "max_restarts: 1\n    nproc_per_node: 1", 1
    )
    jobs = start_nodes(clusterrun, job_file, script)

    ended = [job.ended() for job in jobs]

    assert [node.code for node in ended] == [0, 0]
    first, second = re.findall(r"urls (\S+)", ended[0].out)
    assert first == second
    assert len(re.findall("listens", ended[1].out)) == 4
