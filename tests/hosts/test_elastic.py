"""``--nnodes MIN:MAX`` and ``--rejoin-timeout``: the world shrinks with lost nodes and grows again."""

import signal

from tests.contract.launched import Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import ended
from tests.hosts.resilient_job import ResilientJob


def test_elastic_job_shrinks_and_grows(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Ranks are renumbered. A node that joins late gets ranks in the next attempt."""
    job = ResilientJob(hosts, clusterrun, "--nnodes", "1:3")
    jobs = job.start(nodes=3, spares=0)

    jobs[1].signal(signal.SIGKILL)
    jobs[0].wait_for("worker 0 2 0 1 on n0")
    jobs[2].wait_for("worker 1 2 1 1 on n2")
    rejoined = job.join(1)
    jobs[0].wait_for("has joined and joins when all workers restart")
    jobs[2].signal(signal.SIGKILL)

    jobs[0].wait_for("worker 0 2 0 2 on n0")
    rejoined.wait_for("worker 1 2 1 2 on n1")
    errors = job.finish(jobs[0], rejoined)
    assert "clusterrun: restarting all workers on 2 nodes (1 node lost so far)\n" in errors[0]
    assert "clusterrun: restarting all workers on 2 nodes (2 nodes lost so far)\n" in errors[0]


def test_node_zero_continues_alone_if_minimum_is_1(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """The node that is cut off has ended before."""
    job = ResilientJob(hosts, clusterrun, "--nnodes", "1:2", "--heartbeat-timeout", "2")
    jobs = job.start(spares=0)

    hosts[1].cut()

    jobs[0].wait_for("worker 0 1 0 1 on n0")
    [cut_off] = ended(jobs[1:])
    assert cut_off.code == 5, cut_off.err
    [error] = job.finish(jobs[0])
    assert "clusterrun: restarting all workers on 1 node (1 node lost so far)\n" in error


def test_rejoin_timeout_waits_for_lost_node(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    job = ResilientJob(hosts, clusterrun, "--nnodes", "2", "--rejoin-timeout", "60")
    jobs = job.start(spares=0)
    jobs[1].signal(signal.SIGKILL)
    jobs[0].wait_for("node 1 .n1. is gone: stopping 1 worker on this node")

    rejoined = job.join(1)

    rejoined.wait_for("worker 1 2 1 1 on n1")
    error, _ = job.finish(jobs[0], rejoined)
    assert "clusterrun: node 1 (n1) is gone; it has joined again\n" in error
