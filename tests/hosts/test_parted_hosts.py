"""A network that splits, agents that freeze and connections that are reset: no two parts train at once."""

import math
import signal
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.contract.launched import Job, Launcher
from tests.hosts.host import Host
from tests.hosts.network import Network, network
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.spared_job import SparedJob
from tests.hosts.stamping_ranks import STAMPS_UNTIL_TOLD, overlap

SILENT = 3
"""Seconds: ``--heartbeat-timeout``."""

GRACE = 12
"""Seconds: ``--shutdown-timeout``, much longer."""


class FiveHosts:
    """An elastic job of five hosts, at least three of them."""

    def __init__(self, hosts: Sequence[Host], launcher: Launcher, silent: int) -> None:
        """Start it with this ``--heartbeat-timeout``; it runs when this returns."""
        self.hosts = hosts[:5]
        self.folder = launcher.folder
        self._muted: list[tuple[Host, list[Host]]] = []
        nodes = Nodes(launcher, hosts, STAMPS_UNTIL_TOLD)
        options = (
            *("--nnodes", "3:5", "--master-addr", hosts[0].address),
            *("--heartbeat-timeout", str(silent), "--shutdown-timeout", str(GRACE)),
        )
        self.jobs = [nodes.start(rank, *options, "--node-rank", str(rank)) for rank in range(5)]
        for each in self.jobs:
            each.wait_for("begins 0 5")
        # A lease runs from the first answer on.
        time.sleep(1.0)

    def split(self, *side: int) -> None:
        """Cut all connections between these hosts and the others."""
        one = [self.hosts[number] for number in side]
        other = [each for each in self.hosts if each not in one]
        for each, peers in [*((it, other) for it in one), *((it, one) for it in other)]:
            each.mute(peers)
            self._muted.append((each, peers))

    def heal(self) -> None:
        for each, peers in self._muted:
            each.unmute(peers)

    def end(self, going: Sequence[Job]) -> None:
        """Let the workers of those that go on end, and see that all of these do with 0."""
        (self.folder / "enough").touch()
        ends = ended(going)
        assert codes(ends) == len(going) * [0], ends


@pytest.fixture(scope="module")
def five_hosts(this_run: str) -> Iterator[Network]:
    with network(this_run, "parted", *(f"n{number}" for number in range(5))) as made:
        yield made


@pytest.fixture
def job(
    five_hosts: Network, clusterrun: Launcher, request: pytest.FixtureRequest
) -> Iterator[FiveHosts]:
    """Return a job that runs; all its processes end with the test."""
    made = FiveHosts(five_hosts.hosts, clusterrun, getattr(request, "param", SILENT))
    yield made
    made.heal()
    five_hosts.end_all()


def test_partition_with_node_zero_in_minority_ends_job(job: FiveHosts) -> None:
    """Node 0 has too few nodes; the other side has no node 0."""
    job.split(0, 1)

    ends = ended(job.jobs)
    assert codes(ends) == [5] * 5, ends
    assert "not restarted: 2 nodes left, and the minimum is 3\n" in ends[0].err
    assert overlap(job.folder) == -math.inf


def test_partition_with_node_zero_in_majority_restarts_job(job: FiveHosts) -> None:
    """The next attempt begins when the leases of the lost nodes have expired."""
    job.split(3, 4)

    for each in job.jobs[:3]:
        each.wait_for("begins 1 3")
    cut_off = ended(job.jobs[3:])
    assert codes(cut_off) == [5, 5], cut_off
    job.end(job.jobs[:3])
    assert overlap(job.folder) < 0


def test_agent_that_continues_rejoins(job: FiveHosts) -> None:
    """The old answers that it reads do not renew its workers' lease."""
    job.jobs[1].signal(signal.SIGSTOP)

    job.jobs[0].wait_for("begins 1 4")
    job.jobs[1].signal(signal.SIGCONT)

    job.jobs[1].wait_for("this node is waiting to join")
    job.end(job.jobs)
    assert overlap(job.folder) < 0


@pytest.mark.parametrize("job", [8], indirect=True)
def test_node_cut_off_before_node_zero_is_killed(job: FiveHosts) -> None:
    """It kills its workers when its lease expires."""
    job.split(1)
    time.sleep(0.5)
    job.jobs[0].signal(signal.SIGKILL)

    ends = ended(job.jobs[1:])
    assert codes(ends) == [5] * 4, ends
    assert "error: node 0 (n0) has been silent for 10 s; the job was stopped\n" in ends[0].err
    for end in ends[1:]:
        assert "node 0 (n0) is gone: stopping 1 worker on this node\n" in end.err
    assert [each.left() for each in job.jobs] == [[]] * 5
    assert overlap(job.folder) == -math.inf


def test_killed_agent_with_unread_input_is_replaced_after_its_workers(job: FiveHosts) -> None:
    """Its fork server reads the rest, so the connection is closed in order."""
    kill_with_unread_answers(job.jobs[0], job.jobs[1], 1.2 * SILENT / 6)

    others = [each for each in job.jobs if each is not job.jobs[1]]
    for each in others:
        each.wait_for("begins 1 4")
    job.end(others)
    assert overlap(job.folder) < 0


def test_spare_replaces_killed_agent_with_unread_input_at_once(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """The next attempt does not wait for the end of the lease."""
    job = SparedJob(hosts, clusterrun)
    jobs = job.start("--heartbeat-timeout", "30", "--shutdown-timeout", "1")

    kill_with_unread_answers(jobs[0], jobs[1], 1.2)

    jobs[2].wait_for("place 1 2 1 1 n2", seconds=15)
    job.let_all_end()
    ends = ended([jobs[0], jobs[2]])
    assert codes(ends) == [0, 0], ends


def kill_with_unread_answers(node_zero: Job, killed: Job, interval: float) -> None:
    """Kill a member's agent; an answer to its heartbeat has come, which it has not read."""
    node_zero.signal(signal.SIGSTOP)
    time.sleep(interval)
    killed.signal(signal.SIGSTOP)
    node_zero.signal(signal.SIGCONT)
    time.sleep(0.3)
    killed.signal(signal.SIGKILL)


def test_node_zero_killed_with_unread_input_ends_job(job: FiveHosts) -> None:
    """Its kernel resets the connections. Workers that save for longer than their lease are killed."""
    job.jobs[0].signal(signal.SIGSTOP)
    time.sleep(0.8)
    killed = time.monotonic()
    job.jobs[0].signal(signal.SIGKILL)

    ends = ended(job.jobs[1:])
    assert codes(ends) == [5] * 4, ends
    assert time.monotonic() - killed < GRACE
    for end in ends:
        assert "node 0 (n0) is gone: stopping 1 worker on this node\n" in end.err
    assert [each.left() for each in job.jobs] == [[]] * 5
    assert overlap(job.folder) == -math.inf
