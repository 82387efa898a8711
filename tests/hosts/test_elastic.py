"""--nnodes MIN:MAX: the world shrinks with losses and grows with newcomers."""

import re
import signal

import pytest

from tests.contract.changed_times import command_with
from tests.contract.launched import Job, Launcher
from tests.contract.worker_scripts import RANKS_MEET
from tests.hosts.door import coordinator
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.spared_job import STEPS_UNTIL_TOLD
from tests.hosts.test_spares import SILENT

STEPS_AND_SAVES = f"""
    import os, pathlib, sys, time
    from clusterrun import suspend
    own, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
{RANKS_MEET}
    saved = pathlib.Path("saved")
    step = int(saved.read_text()) if saved.exists() else 0
    print(f"rank {{own}} of {{size}} goes on from step {{step}}", flush=True)
    while not pathlib.Path("enough").exists():
        step += 1
        time.sleep(0.01)
        if suspend.requested(step):
            if own == "0":
                saved.write_text(str(step))
            print(f"rank {{own}} saves step {{step}}", flush=True)
            suspend.ready()
"""
"""All ranks step until there is a file, and save when they are asked to."""


class ElasticJob:
    """A job whose nodes join one by one; MASTER_ADDR is the first host."""

    def __init__(
        self, hosts: tuple[Host, ...], launcher: Launcher, script: str = STEPS_UNTIL_TOLD
    ) -> None:
        self.hosts = hosts
        self.folder = launcher.folder
        self._nodes = Nodes(launcher, hosts, script)

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


def test_the_world_shrinks_and_grows(job: ElasticJob, clusterrun: Launcher) -> None:
    """Ranks are counted through again; a newcomer is let in at once if that is asked for."""
    options = ("--nnodes", "2:3", "--elastic-join", "now")
    clusterrun.program = command_with(clusterrun.folder, coordinator, "GROWS_AFTER", 0.0)
    jobs = job.start(3, *options)

    jobs[1].signal(signal.SIGKILL)
    jobs[0].wait_for("place 0 2 0 1 n0")
    jobs[2].wait_for("place 1 2 1 1 n2")
    back = job.join(1, *options)

    jobs[0].wait_for("place 0 3 0 2 n0")
    jobs[2].wait_for("place 1 3 1 2 n2")
    back.wait_for("place 2 3 2 2 n1")
    errors = job.ends_well([jobs[0], jobs[2], back])
    assert "clusterrun: restarting all workers on 2 nodes (1 node lost so far)\n" in errors[0]
    assert "clusterrun: restarting all workers on 3 nodes (n1 joined)\n" in errors[1]


def test_ranks_save_before_the_world_grows(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """All at one step, from which the larger world goes on: nothing is lost, and no restart counted."""
    job = ElasticJob(hosts, clusterrun, STEPS_AND_SAVES)
    options = ("--nnodes", "2:3", "--elastic-join", "now", "--last-call-timeout", "1")
    clusterrun.program = command_with(clusterrun.folder, coordinator, "GROWS_AFTER", 0.5)
    jobs = [job.join(rank, "--node-rank", str(rank), *options) for rank in range(2)]
    for each in jobs:
        each.wait_for(r"rank \d of 2 goes on from step 0\n")

    jobs.append(job.join(2, *options))

    jobs[2].wait_for(r"rank 2 of 3 goes on from step \d+\n")
    [error, *_] = job.ends_well(jobs)
    [told, *_] = re.findall(r"n2 joined: all ranks save at step (\d+) and restart", error)
    assert (job.folder / "saved").read_text() == told
    for rank, each in enumerate(jobs):
        assert f"rank {rank} of 3 goes on from step {told}\n" in each.ended().out
        assert rank == 2 or f"rank {rank} saves step {told}\n" in each.ended().out
    assert re.search(r"n2 .* comes in when all workers restart in \d s", error)
    assert "clusterrun: restarting all workers on 3 nodes (n2 joined)\n" in error


def test_two_nodes_that_lose_sight_of_each_other_both_end(job: ElasticJob) -> None:
    """Neither can know that the other has ended."""
    jobs = job.start(2, "--nnodes", "1:2", "--heartbeat-timeout", str(SILENT))

    job.hosts[1].cut()

    ends = ended(jobs)
    assert codes(ends) == [5, 5], ends
    assert "not restarted: 1 of 2 nodes are left, not more than half" in ends[0].err


def test_a_node_too_many_for_a_multiple_waits(job: ElasticJob) -> None:
    """It is let in when another one joins, and takes the place of a lost one before."""
    options = ("--nnodes", "2:4", "--elastic-multiple", "2", "--last-call-timeout", "1")
    first = [job.join(rank, "--node-rank", str(rank), *options) for rank in range(3)]
    for each in first[:2]:
        each.wait_for(r"place \d 2 \d 0")
    first[2].wait_for("this node waits for a place")

    first[1].signal(signal.SIGKILL)

    first[2].wait_for("place 1 2 1 1 n2")
    job.ends_well([first[0], first[2]])


def test_a_job_waits_for_a_lost_node(job: ElasticJob) -> None:
    """--rejoin-timeout, with a world that keeps its size."""
    options = ("--nnodes", "2", "--rejoin-timeout", "60")
    jobs = job.start(2, *options)
    jobs[1].signal(signal.SIGKILL)
    jobs[0].wait_for("node 1 .n1. is gone: stopping 1 worker here")

    back = job.join(1, *options)

    back.wait_for("place 1 2 1 1 n1")
    [error, _] = job.ends_well([jobs[0], back])
    assert "clusterrun: node 1 (n1) is gone; it has joined again\n" in error
