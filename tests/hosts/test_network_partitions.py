"""Network partitions, frozen agents and reset connections: no two attempts train at the same time."""

import math
import signal
import time
from collections.abc import Iterator

import pytest

from tests.contract.launched import Job, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import codes, ended
from tests.hosts.resilient_job import RECORD_STEPS, ResilientJob, overlap

HEARTBEAT_TIMEOUT = 3

SHUTDOWN_TIMEOUT = 12


class ElasticJob(ResilientJob):
    """A job of five hosts that survives as long as there are three."""

    def __init__(self, hosts: tuple[Host, ...], launcher: Launcher, heartbeat_timeout: int) -> None:
        """Start it; it runs when this returns."""
        options = (
            *("--nnodes", "3:5", "--heartbeat-timeout", str(heartbeat_timeout)),
            *("--shutdown-timeout", str(SHUTDOWN_TIMEOUT)),
        )
        super().__init__(hosts, launcher, *options, script=RECORD_STEPS)
        self._muted: list[tuple[Host, list[Host]]] = []
        self.jobs = self.start(nodes=5, spares=0)
        # A lease begins with the first answer.
        time.sleep(1.0)

    def split(self, *side: int) -> None:
        """Drop all packets between these hosts and the others."""
        one = [self.hosts[number] for number in side]
        other = [each for each in self.hosts if each not in one]
        for each, peers in [*((it, other) for it in one), *((it, one) for it in other)]:
            each.mute(peers)
            self._muted.append((each, peers))

    def heal(self) -> None:
        for each, peers in self._muted:
            each.unmute(peers)


@pytest.fixture
def job(
    five_hosts: tuple[Host, ...], clusterrun: Launcher, request: pytest.FixtureRequest
) -> Iterator[ElasticJob]:
    """Return a running job; the parameter is its ``--heartbeat-timeout``."""
    made = ElasticJob(five_hosts, clusterrun, getattr(request, "param", HEARTBEAT_TIMEOUT))
    yield made
    made.heal()


def test_partition_with_node_zero_in_minority_ends_job(job: ElasticJob) -> None:
    """Node 0 has too few nodes; the other side has no node 0."""
    job.split(0, 1)

    ends = ended(job.jobs)
    assert codes(ends) == [5] * 5, ends
    assert "not restarted: 2 nodes left, and the minimum is 3\n" in ends[0].err
    assert overlap(job.folder) == -math.inf


def test_partition_with_node_zero_in_majority_restarts_job(job: ElasticJob) -> None:
    """The next attempt begins when the leases of the lost nodes have expired."""
    job.split(3, 4)

    for rank, each in enumerate(job.jobs[:3]):
        each.wait_for(f"worker {rank} 3 {rank} 1 on n{rank}")
    cut_off = ended(job.jobs[3:])
    assert codes(cut_off) == [5, 5], cut_off
    job.finish(*job.jobs[:3])
    assert overlap(job.folder) < 0


def test_agent_that_continues_rejoins(job: ElasticJob) -> None:
    """The old answers that it reads do not renew its workers' lease."""
    job.jobs[1].signal(signal.SIGSTOP)

    job.jobs[0].wait_for("worker 0 4 0 1 on n0")
    job.jobs[1].signal(signal.SIGCONT)

    job.jobs[1].wait_for("this node is waiting to join")
    job.finish(*job.jobs)
    assert overlap(job.folder) < 0


@pytest.mark.parametrize("job", [8], indirect=True)
def test_node_cut_off_before_node_zero_is_killed(job: ElasticJob) -> None:
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


def test_killed_agent_with_unread_input_is_replaced_after_its_workers(job: ElasticJob) -> None:
    """Its fork server reads the rest, so the connection is closed in order."""
    kill_with_unread_answers(job.jobs[0], job.jobs[1], 1.2 * HEARTBEAT_TIMEOUT / 6)

    others = [each for each in job.jobs if each is not job.jobs[1]]
    for each in others:
        each.wait_for(r"worker \d 4 \d 1 on n\d")
    job.finish(*others)
    assert overlap(job.folder) < 0


def test_spare_replaces_killed_agent_with_unread_input_at_once(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """The next attempt does not wait for the end of the lease."""
    job = ResilientJob(hosts, clusterrun, "--nnodes", "2", "--spares", "1")
    jobs = job.start("--heartbeat-timeout", "30", "--shutdown-timeout", "1")

    kill_with_unread_answers(jobs[0], jobs[1], 1.2)

    jobs[2].wait_for("worker 1 2 1 1 on n2", seconds=15)
    job.finish(jobs[0], jobs[2])


def kill_with_unread_answers(node_zero: Job, killed: Job, interval: float) -> None:
    """Kill a member's agent that has not read an answer to its heartbeat."""
    node_zero.signal(signal.SIGSTOP)
    time.sleep(interval)
    killed.signal(signal.SIGSTOP)
    node_zero.signal(signal.SIGCONT)
    time.sleep(0.3)
    killed.signal(signal.SIGKILL)


def test_node_zero_killed_with_unread_input_ends_job(job: ElasticJob) -> None:
    """Its kernel resets the connections. Workers that save for longer than their lease are killed."""
    job.jobs[0].signal(signal.SIGSTOP)
    time.sleep(0.8)
    killed = time.monotonic()
    job.jobs[0].signal(signal.SIGKILL)

    ends = ended(job.jobs[1:])
    assert codes(ends) == [5] * 4, ends
    assert time.monotonic() - killed < SHUTDOWN_TIMEOUT
    for end in ends:
        assert "node 0 (n0) is gone: stopping 1 worker on this node\n" in end.err
    assert [each.left() for each in job.jobs] == [[]] * 5
    assert overlap(job.folder) == -math.inf
