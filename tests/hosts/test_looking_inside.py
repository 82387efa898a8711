"""``clusterrun ps``, ``status``, ``stacks`` and ``stop`` on three hosts, from any node."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusterrun.network.channel import Channel
from clusterrun.network.control_client import RunningJob, find_jobs
from clusterrun.network.handshake import member_handshake
from clusterrun.policy.queries import Answers, Query, Topic

from tests.contract.launched import COMMAND, Ended, Job, Launcher, await_status
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.imports import imports
from tests.waiting import wait_until

PRINT_STEPS = """
    import os, time
    print("ready", os.getpid(), flush=True)
    for step in range(100000):
        # In one write: a query may arrive between two.
        print(f"step {step} of rank {os.environ['RANK']}", flush=True)
        time.sleep(0.05)
"""

SECONDS_TO_ANSWER = 10.0
"""On a very busy machine; otherwise it takes less than two."""


class JobOnThreeHosts:
    """A job with two ranks on each of three hosts; each host has its own folder for sockets."""

    def __init__(
        self,
        hosts: Sequence[Host],
        launcher: Launcher,
        folder: Path,
        *options: str,
        printing_to: str = "",
    ) -> None:
        """Start it, and wait until all ranks print and the agents answer.

        With ``printing_to``, a path, output goes there, and only the agents are waited for.
        """
        before = ("sh", "-ec", f'exec "$@" >{printing_to} 2>&1', "sh") if printing_to else ()
        self.hosts = hosts[:3]
        self.folders = [folder / host.name for host in self.hosts]
        nodes = Nodes(launcher, self.hosts, PRINT_STEPS)
        self.jobs: list[Job] = []
        for rank, runtime in enumerate(self.folders):
            runtime.mkdir(mode=0o700)
            words = ("--nnodes=3", "--run-id=mine", *options)
            environ = self._environ(rank)
            self.jobs.append(nodes.join(rank, *words, workers=2, environ=environ, before=before))
        self.pids = [] if printing_to else [job.numbers("ready", 2) for job in self.jobs]
        for runtime in self.folders:
            wait_until(partial(answering_agents, runtime))

    def command(self, number: int, *words: str) -> Ended:
        """Run a command on a host."""
        return self.hosts[number].run(COMMAND, *words, environ=self._environ(number))

    def status(self, number: int) -> tuple[dict[str, Any], float]:
        """Return the status as seen from a host, and how many seconds it took."""
        began = time.monotonic()
        done = self.command(number, "status", "--json")
        assert done.code == 0, done
        status: dict[str, Any] = json.loads(done.out)
        return status, time.monotonic() - began

    def _environ(self, number: int) -> dict[str, str]:
        return {"XDG_RUNTIME_DIR": str(self.folders[number])}


@pytest.fixture
def job(hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path) -> Iterator[JobOnThreeHosts]:
    """Return a running job on three hosts; it must still run at the end of the test."""
    made = JobOnThreeHosts(hosts, clusterrun, tmp_path)

    yield made

    stopped = made.command(1, "stop", "--now", "mine")
    assert stopped.code == 0, stopped
    ends = ended(made.jobs)
    assert codes(ends) == [143] * 3, ends


def answering_agents(runtime: Path) -> tuple[RunningJob, ...]:
    return find_jobs([runtime / "clusterrun"]).jobs


def states_of(status: dict[str, Any]) -> dict[int, str]:
    """Return the state of each rank."""
    return {
        rank["state"]["rank"]: rank["state"]["state"]
        for node in status["nodes"]
        for rank in node["ranks"]
    }


def missing_in(status: dict[str, Any]) -> list[int]:
    return [node["node_rank"] for node in status["missing"]]


def test_status_from_any_node_has_all_ranks(job: JobOnThreeHosts) -> None:
    """One rank is frozen."""
    frozen = job.pids[2][0]
    os.kill(frozen, signal.SIGSTOP)
    await_status(frozen, psutil.STATUS_STOPPED)

    seen = [job.status(number) for number in range(3)]
    listed = job.command(2, "ps")
    os.kill(frozen, signal.SIGCONT)

    for status, took in seen:
        states = states_of(status)
        assert sorted(states) == list(range(6))
        assert sorted(states.values()) == ["running"] * 5 + ["stopped"]
        assert [node["host"] for node in status["nodes"]] == ["n0", "n1", "n2"]
        assert missing_in(status) == []
        assert took < SECONDS_TO_ANSWER
        assert all(
            f"of rank {rank['state']['rank']}" in rank["state"]["last_line"]
            for node in status["nodes"]
            for rank in node["ranks"]
        )
    assert "mine" in listed.out


@pytest.mark.parametrize(("frozen", "node"), [(2, 0), (2, 1), (0, 1)])
def test_status_names_frozen_agent(job: JobOnThreeHosts, frozen: int, node: int) -> None:
    """The other nodes are shown; without the coordinator, only the node of the command."""
    agent = job.jobs[frozen].agent
    os.kill(agent, signal.SIGSTOP)
    await_status(agent, psutil.STATUS_STOPPED)

    status, took = job.status(node)
    os.kill(agent, signal.SIGCONT)

    answered = [node["node_rank"] for node in status["nodes"]]
    assert missing_in(status) == [frozen]
    assert answered == ([0, 1] if frozen else [node])
    assert took < SECONDS_TO_ANSWER
    if not frozen:
        assert "nodes that are not shown could not be queried" in status["missing"][0]["why"]


def test_status_names_paused_node(job: JobOnThreeHosts) -> None:
    """The coordinator knows of Ctrl-Z, and does not wait for an answer."""
    os.kill(job.jobs[1].agent, signal.SIGTSTP)
    await_status(job.jobs[1].agent, psutil.STATUS_STOPPED)
    job.jobs[0].wait_for("clusterrun: .*paused")

    status, _ = job.status(0)
    os.kill(job.jobs[1].agent, signal.SIGCONT)

    assert [node["why"] for node in status["missing"]] == ["is paused by its user (Ctrl-Z)"]


def test_stacks_of_all_nodes_and_of_one_rank(job: JobOnThreeHosts) -> None:
    stacks = json.loads(job.command(1, "stacks", "--json").out)
    one = json.loads(job.command(1, "stacks", "--json", "--rank=5").out)

    ranks = [rank for group in stacks["groups"] for rank in group["ranks"]]
    assert sorted(ranks) == list(range(6))
    assert stacks["missing"] == []
    assert [group["ranks"] for group in one["groups"]] == [[5]]


@pytest.mark.long
@pytest.mark.needs("py-spy")
def test_native_stacks_of_another_node(
    hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    """A node whose agent does not answer is named."""
    # The command waits for the frozen agent for longer than the default timeout.
    job = JobOnThreeHosts(hosts, clusterrun, tmp_path, "--heartbeat-timeout=60")
    one = json.loads(job.command(1, "stacks", "--native", "--json", "--rank=5").out)
    agent = job.jobs[2].agent
    os.kill(agent, signal.SIGSTOP)
    await_status(agent, psutil.STATUS_STOPPED)
    others = json.loads(job.command(1, "stacks", "--native", "--json").out)
    os.kill(agent, signal.SIGCONT)
    job.command(1, "stop", "--now", "mine")

    [group] = one["groups"]
    assert (group["ranks"], group["found"]) == ([5], True)
    assert "<module>" in group["text"]
    assert one["missing"] == []
    assert sorted(rank for each in others["groups"] for rank in each["ranks"]) == [0, 1, 2, 3]
    assert missing_in(others) == [2]
    assert codes(ended(job.jobs)) == [143] * 3


def times_of_all_commands(job: JobOnThreeHosts, number: int) -> dict[str, float]:
    """Run each command on a host; return how many seconds each took."""
    took = {}
    for words in (["ps"], ["status"], ["stacks"]):
        began = time.monotonic()
        done = job.command(number, *words, "--json")
        took[words[0]] = time.monotonic() - began
        assert done.code == 0, (words, done)
        json.loads(done.out)
    return took


@pytest.mark.long
@pytest.mark.parametrize("fault", ["rank", "agent", "coordinator", "terminal", "busy"])
def test_commands_answer_during_fault(
    hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path, full_terminal: str, fault: str
) -> None:
    printing_to = full_terminal if fault == "terminal" else ""
    job = JobOnThreeHosts(hosts, clusterrun, tmp_path, printing_to=printing_to)
    stopped = {
        "rank": [job.pids[2][0]] if job.pids else [],
        "agent": [job.jobs[2].agent],
        "coordinator": [job.jobs[0].agent],
    }.get(fault, [])
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
        await_status(pid, psutil.STATUS_STOPPED)
    if fault == "busy":
        for _ in range(4):
            hosts[0].start(sys.executable, "-c", "while True: pass")

    took = times_of_all_commands(job, 1)
    status, _ = job.status(1)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    stop = job.command(1, "stop", "--now", "mine")
    ends = ended(job.jobs)

    print({command: f"{seconds:.1f} s" for command, seconds in took.items()})  # noqa: T201
    assert missing_in(status) == {"agent": [2], "coordinator": [0]}.get(fault, [])
    assert max(took.values()) < SECONDS_TO_ANSWER
    assert stop.code == 0, stop
    assert codes(ends) == [143] * 3, ends


SEND_QUERIES = (
    imports(Channel, Answers, Query, Topic, member_handshake)
    + """
import select, socket, sys, time
from msgspec.msgpack import Decoder
from pathlib import Path

[path] = Path(sys.argv[1]).glob("job-*")
deadline, count = time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < deadline:
    poll, channels = select.poll(), {}
    for _ in range(40):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(str(path))
        channel = Channel(Decoder(Answers), connection, member_handshake(b""))
        channel.send(Query(1, Topic.RANKS, 1.2))
        poll.register(channel, select.POLLIN)
        channels[channel.fileno()] = channel
    while channels:
        for descriptor, _ in poll.poll(60_000):
            if channels[descriptor].receive() or channels[descriptor].end:
                poll.unregister(descriptor)
                channels.pop(descriptor).close()
                count += 1
print(count)
"""
)
"""Sends queries to an agent, forty at a time, as fast as it answers; prints the number of answers."""

SECONDS_OF_QUERIES = 10


@pytest.mark.long
def test_thousand_requests_a_second_do_not_delay_heartbeats(
    hosts: tuple[Host, ...], clusterrun: Launcher, tmp_path: Path
) -> None:
    job = JobOnThreeHosts(hosts, clusterrun, tmp_path, "--heartbeat-timeout=3")
    clients = [
        subprocess.Popen(
            # A relative path: that of a socket may have 107 bytes.
            [sys.executable, "-c", SEND_QUERIES, "clusterrun", str(SECONDS_OF_QUERIES)],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        for folder in job.folders
        for _ in range(2)
    ]

    counts = [int(client.communicate(timeout=120)[0]) for client in clients]
    status, _ = job.status(1)
    stopped = job.command(1, "stop", "--now", "mine")
    ends = ended(job.jobs)

    print(f"{sum(counts) / SECONDS_OF_QUERIES:.0f} requests a second")  # noqa: T201
    assert min(counts) > 0
    assert missing_in(status) == []
    assert sorted(states_of(status).values()) == ["running"] * 6
    assert stopped.code == 0
    assert codes(ends) == [143] * 3, ends
    assert all("lost" not in end.err for end in ends)
