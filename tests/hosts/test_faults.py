"""Faults of a running job on several hosts: what every node that survives says, and its exit code.

In each of them a step of training is in flight: every rank waits for the sum of all.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence

import pytest

from tests.contract.launched import Job, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended

STEPS = """
    import os, socket, time

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def exactly_one(call):
        data = call.recv(1)
        if not data:
            raise ConnectionError("connection closed by peer")
        return data

    if rank == 0:
        server = socket.create_server(("", where[1]))
        calls = [server.accept()[0] for _ in range(size - 1)]
    else:
        while True:
            try:
                calls = [socket.create_connection(where, timeout=20)]
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        calls[0].settimeout(None)

    def all_reduce():
        # Rank 0 adds up, and tells the others.
        if rank == 0:
            total = [exactly_one(call) for call in calls]
        for call in calls:
            call.sendall(b"x")
        if rank > 0:
            exactly_one(calls[0])

    for step in range(1_000_000):
        if step % 25 == 5:
            print("step", step, flush=True)
        all_reduce()
        time.sleep(0.02)
"""
"""What torch does in a step, in so far as faults see it: no rank goes on without the others."""

SILENT = 2
"""Seconds: --heartbeat-timeout where a silence is to be found out."""

WHILE_IT_ENDS = 8.0
"""Seconds for the end of all agents after it has been found out; it takes much less."""


class Trainers:
    """The nodes of a job whose ranks make steps together."""

    def __init__(self, jobs: list[Job], hosts: tuple[Host, ...]) -> None:
        self.jobs = jobs
        self.hosts = hosts[: len(jobs)]
        self._frozen: list[int] = []
        for job in jobs:
            job.wait_for("step 5")

    def freeze(self, number: int) -> None:
        """Stop an agent, and nothing else of its node."""
        self._frozen.append(number)
        self.jobs[number].signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        """Continue it."""
        self._frozen.remove(number)
        self.jobs[number].signal(signal.SIGCONT)

    def said_of(self, number: int, how: str, survivors: tuple[int, ...]) -> None:
        """Check that all survivors end with code 5, and with these last words on that node."""
        ends = ended([self.jobs[each] for each in survivors], SILENT + WHILE_IT_ENDS)

        name = f"node {number} (n{number})"
        assert codes(ends) == [5] * len(survivors), ends
        for end in ends:
            assert end.err.endswith(
                f"clusterrun: error: {name} {how}; the job was ended\n"
                f"clusterrun: exit code 5: node {number} was lost\n"
            ), end.err
        assert [self.jobs[each].left() for each in survivors] == [[]] * len(survivors)


@pytest.fixture
def trainers(hosts: tuple[Host, ...], clusterrun: Launcher) -> Trainers:
    """Return a running job on three nodes, with one rank each, that hears a silence soon."""
    words = ("--heartbeat-timeout", str(SILENT))
    return Trainers(Nodes(clusterrun, hosts, STEPS).start_all(*words, workers=(1, 1, 1)), hosts)


SILENCE = f"has been silent for {SILENT} s"


def test_an_agent_is_killed(trainers: Trainers) -> None:
    """Its connection ends with it."""
    trainers.jobs[1].signal(signal.SIGKILL)

    trainers.said_of(1, "is gone", survivors=(0, 2))


def test_node_zero_is_killed(trainers: Trainers) -> None:
    """No other can take its place."""
    trainers.jobs[0].signal(signal.SIGKILL)

    trainers.said_of(0, "is gone", survivors=(1, 2))


def test_a_node_is_cut_off(trainers: Trainers) -> None:
    """Each side ends by itself, and names the other."""
    trainers.hosts[1].cut()

    trainers.said_of(1, SILENCE, survivors=(0, 2))
    trainers.said_of(0, SILENCE, survivors=(1,))


def test_node_zero_is_cut_off(trainers: Trainers) -> None:
    """The others name it; it names one of them."""
    trainers.hosts[0].cut()

    trainers.said_of(0, SILENCE, survivors=(1, 2))
    [end] = ended([trainers.jobs[0]], WHILE_IT_ENDS)
    assert end.code == 5
    assert f"{SILENCE}; the job was ended\n" in end.err


def test_an_agent_is_frozen(trainers: Trainers) -> None:
    """The others end; once it is continued it learns that they have, and ends its own workers."""
    trainers.freeze(1)
    trainers.said_of(1, SILENCE, survivors=(0, 2))
    alive = trainers.jobs[1].processes()

    trainers.thaw(1)

    assert len(alive) > 1
    trainers.said_of(1, SILENCE, survivors=(1,))


def test_node_zero_is_frozen(trainers: Trainers) -> None:
    """The others end; once it is continued it finds them gone."""
    trainers.freeze(0)
    trainers.said_of(0, SILENCE, survivors=(1, 2))

    trainers.thaw(0)

    [end] = ended([trainers.jobs[0]], WHILE_IT_ENDS)
    assert end.code == 5
    assert "is gone; the job was ended\n" in end.err


def step_on(jobs: Sequence[Job], steps: int = 50) -> None:
    """Wait until all ranks have made so many steps more."""
    for job in jobs:
        done = max(job.numbers("step"))
        job.numbers("step", times=1 + (done + steps) // 25)


def end_in_order(jobs: Sequence[Job]) -> None:
    """End a job that lives, and see that it did."""
    jobs[0].signal(signal.SIGTERM)
    ends = ended(jobs)
    assert codes(ends) == [143] * len(jobs), ends


def test_the_link_is_down_for_a_moment(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Nobody is lost: TCP sends again what was lost meanwhile."""
    jobs = Nodes(clusterrun, hosts, STEPS).start_all("--heartbeat-timeout", "6")
    trainers = Trainers(jobs, hosts)

    trainers.hosts[1].cut()
    time.sleep(2.0)
    trainers.hosts[1].join()

    step_on(jobs)
    end_in_order(jobs)


def test_all_processors_are_busy(trainers: Trainers) -> None:
    """With others than the job's: signs of life come through."""
    hog = [sys.executable, "-c", "while True: pass"]
    hogs = [trainers.hosts[0].start(*hog) for _ in range(2 * (os.cpu_count() or 1))]

    time.sleep(2.5 * SILENT)

    step_on(trainers.jobs, steps=25)
    assert [each.process.poll() for each in hogs] == [None] * len(hogs)
    for each in hogs:
        each.kill_all()
    end_in_order(trainers.jobs)
