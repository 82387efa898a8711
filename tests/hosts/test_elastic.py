"""--nnodes MIN:MAX: the world shrinks with losses and grows with newcomers."""

import signal

import pytest

from tests.contract.launched import Job, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.spared_job import STEPS_UNTIL_TOLD
from tests.hosts.test_spares import SILENT


class ElasticJob:
    """A job whose nodes join one by one; MASTER_ADDR is the first host."""

    def __init__(self, hosts: tuple[Host, ...], launcher: Launcher) -> None:
        self.hosts = hosts
        self.folder = launcher.folder
        self._nodes = Nodes(launcher, hosts, STEPS_UNTIL_TOLD)

    def join(self, number: int, *options: str) -> Job:
        """Start an agent on the host of this number."""
        return self._nodes.start(number, "--master-addr", self.hosts[0].address, *options)

    def start(self, count: int, *options: str) -> list[Job]:
        """Start an agent on each of the first hosts, with node ranks in this order."""
        jobs = [self.join(rank, "--node-rank", str(rank), *options) for rank in range(count)]
        for job in jobs:
            job.wait_for(rf"place \d {count} \d 0 n\d")
        return jobs

    def ends_well(self, jobs: list[Job]) -> list[str]:
        """Let all workers exit; return what was printed to standard error."""
        (self.folder / "enough").touch()
        ends = ended(jobs)
        assert codes(ends) == [0] * len(jobs), ends
        return [end.err for end in ends]


@pytest.fixture
def job(hosts: tuple[Host, ...], clusterrun: Launcher) -> ElasticJob:
    return ElasticJob(hosts, clusterrun)


def test_elastic_job_shrinks_and_grows(job: ElasticJob) -> None:
    """Ranks are renumbered. A node that rejoins gets ranks in the next attempt."""
    options = ("--nnodes", "1:3")
    jobs = job.start(3, *options)

    jobs[1].signal(signal.SIGKILL)
    jobs[0].wait_for("place 0 2 0 1 n0")
    jobs[2].wait_for("place 1 2 1 1 n2")
    back = job.join(1, *options)
    jobs[0].wait_for("has joined and joins when all workers restart")
    jobs[2].signal(signal.SIGKILL)

    jobs[0].wait_for("place 0 2 0 2 n0")
    back.wait_for("place 1 2 1 2 n1")
    errors = job.ends_well([jobs[0], back])
    assert "clusterrun: restarting all workers on 2 nodes (1 node lost so far)\n" in errors[0]
    assert "clusterrun: restarting all workers on 2 nodes (2 nodes lost so far)\n" in errors[0]


def test_node_zero_continues_alone_if_minimum_is_1(job: ElasticJob) -> None:
    """The node that is cut off has ended before."""
    jobs = job.start(2, "--nnodes", "1:2", "--heartbeat-timeout", str(SILENT))

    job.hosts[1].cut()

    jobs[0].wait_for("place 0 1 0 1 n0")
    [cut_off] = ended(jobs[1:])
    assert cut_off.code == 5, cut_off.err
    [error] = job.ends_well(jobs[:1])
    assert "clusterrun: restarting all workers on 1 node (1 node lost so far)\n" in error


def test_rejoin_timeout_waits_for_lost_node(job: ElasticJob) -> None:
    options = ("--nnodes", "2", "--rejoin-timeout", "60")
    jobs = job.start(2, *options)
    jobs[1].signal(signal.SIGKILL)
    jobs[0].wait_for("node 1 .n1. is gone: stopping 1 worker on this node")

    back = job.join(1, *options)

    back.wait_for("place 1 2 1 1 n1")
    [error, _] = job.ends_well([jobs[0], back])
    assert "clusterrun: node 1 (n1) is gone; it has joined again\n" in error
