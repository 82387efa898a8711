"""Node 0 is lost, and the job goes on with another coordinator."""

import signal
import time

import pytest

from tests.contract.launched import Ended, Job, Launcher, await_end
from tests.contract.worker_scripts import RANKS_MEET
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.spared_job import STEPS_UNTIL_TOLD, SparedJob
from tests.rounds import numbers
from tests.waiting import SECONDS_TO_ACT

SILENT = 3
"""Seconds: --heartbeat-timeout where a test waits for it."""


@pytest.fixture
def job(hosts: tuple[Host, ...], clusterrun: Launcher) -> SparedJob:
    return SparedJob(hosts, clusterrun)


def test_a_spare_takes_the_place_of_node_zero(job: SparedJob) -> None:
    """Its agent is killed: rank 0 is on the spare, the coordinator on node 1, and all end with 0."""
    jobs = job.start()

    jobs[0].signal(signal.SIGKILL)

    jobs[2].wait_for("place 0 2 0 1 n2")
    jobs[1].wait_for("place 1 2 1 1 n1")
    job.let_all_end()
    ends = ended(jobs[1:])
    assert codes(ends) == [0, 0], ends
    assert "clusterrun: node 0 (n0) is gone; n2 takes its place\n" in ends[0].err
    assert jobs[0].left() == []


def test_node_zero_is_cut_off(job: SparedJob) -> None:
    """It has no majority and ends; the others go on."""
    jobs = job.start("--heartbeat-timeout", str(SILENT))

    job.hosts[0].cut()

    jobs[2].wait_for("place 0 2 0 1 n2")
    [cut_off] = ended(jobs[:1])
    assert cut_off.code == 5, cut_off.err
    assert "1 of 3 nodes are left, not more than half" in cut_off.err
    job.let_all_end()
    ends = ended(jobs[1:])
    assert codes(ends) == [0, 0], ends


def test_node_zero_is_frozen_and_continues(job: SparedJob) -> None:
    """Its workers were killed before the others went on; it finds them gone, and ends."""
    jobs = job.start("--heartbeat-timeout", str(SILENT))
    # A heartbeat of node 0's begins the time that the workers have.
    time.sleep(1.0)
    before = len(jobs[0].processes())
    jobs[0].signal(signal.SIGSTOP)

    jobs[2].wait_for("place 0 2 0 1 n2")
    left = len(jobs[0].processes())
    jobs[0].signal(signal.SIGCONT)

    [frozen] = ended(jobs[:1])
    assert left < before
    assert frozen.code == 5, frozen.err
    job.let_all_end()
    ends = ended(jobs[1:])
    assert codes(ends) == [0, 0], ends


@pytest.mark.parametrize("way", ["mute", pytest.param("deaf", marks=pytest.mark.long)])
def test_node_zero_is_cut_off_in_one_direction(way: str, job: SparedJob) -> None:
    """Nothing that it sends arrives, or nothing of what is sent to it: the same as both."""
    jobs = job.start("--heartbeat-timeout", str(SILENT))
    first, *others = job.hosts

    senders = {first: others} if way == "mute" else {each: [first] for each in others}
    for each, receivers in senders.items():
        each.mute(receivers)
    try:
        jobs[2].wait_for("place 0 2 0 1 n2")
        [cut_off] = ended(jobs[:1])
    finally:
        for each, receivers in senders.items():
            each.unmute(receivers)
    assert cut_off.code == 5, cut_off.err
    job.let_all_end()
    ends = ended(jobs[1:])
    assert codes(ends) == [0, 0], ends


class JobOfFour:
    """An elastic job whose first two nodes are lost: the coordinator, and its first successor."""

    def __init__(self, hosts: tuple[Host, ...], launcher: Launcher) -> None:
        self._folder = launcher.folder
        nodes = Nodes(launcher, hosts, STEPS_UNTIL_TOLD)
        options = ("--nnodes", "1:4", "--master-addr", hosts[0].address)
        self.jobs = [nodes.start(rank, *options, "--node-rank", str(rank)) for rank in range(4)]
        for rank, each in enumerate(self.jobs):
            each.wait_for(f"place {rank} 4 {rank} 0 n{rank}")

    def loses_two(self, pause: float) -> None:
        """Return once both are gone: until then, a kernel takes what others send, and resets them."""
        self.jobs[0].signal(signal.SIGKILL)
        time.sleep(pause)
        self.jobs[1].signal(signal.SIGKILL)
        for each in self.jobs[:2]:
            each.process.wait(SECONDS_TO_ACT)

    def ends(self) -> list[Ended]:
        """Let all workers exit with 0; return how the other two nodes ended."""
        (self._folder / "enough").touch()
        ends = ended(self.jobs[2:])
        assert [each.left() for each in self.jobs[:2]] == [[], []]
        return ends


def test_the_first_successor_is_lost_as_well(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The next one gathers the others: the ends of both are known, so that two of four may go on."""
    job = JobOfFour(hosts, clusterrun)
    # An agent that is killed with unread input resets its connections, and that is no known end.
    for each in job.jobs[2:]:
        each.signal(signal.SIGSTOP)
    time.sleep(0.5)

    job.loses_two(0.0)
    for each in job.jobs[2:]:
        each.signal(signal.SIGCONT)

    for rank, each in enumerate(job.jobs[2:]):
        each.wait_for(rf"place {rank} 2 {rank} \d n{rank + 2}")
    ends = job.ends()
    assert codes(ends) == [0, 0], ends


@pytest.mark.long
@pytest.mark.parametrize("pause", [0.01, 0.02, 0.05, 0.1, 0.2, 0.3])
def test_the_first_successor_is_lost_while_it_takes_over(
    pause: float, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """The other two go on together, or both end: what they know differs for a moment."""
    job = JobOfFour(hosts, clusterrun)

    job.loses_two(pause)
    time.sleep(5.0)

    ends = job.ends()
    assert codes(ends) in ([0, 0], [5, 5]), ends


PHASED = f"""
    import os, pathlib, signal, sys, time
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
{RANKS_MEET}
    print("begins", os.environ["RANK"], attempt, os.uname().nodename, flush=True)
    print("pid", os.getpid(), flush=True)
    if os.environ["RANK"] == "0":
        signal.signal(signal.SIGTERM, lambda *_: (print("asked", flush=True), time.sleep(0.3)))
    while not pathlib.Path("enough").exists():
        if os.environ["RANK"] == "1":
            if pathlib.Path("fail").exists() and attempt == "0":
                sys.exit(7)
            if pathlib.Path("end").exists():
                sys.exit(0)
        time.sleep(0.01)
"""
"""Rank 1 fails or ends when it is told to; rank 0 takes its time to stop."""


class PhasedJob(SparedJob):
    """The same job; its ranks do what files tell them."""

    def __init__(self, hosts: tuple[Host, ...], launcher: Launcher) -> None:
        super().__init__(hosts, launcher)
        self._nodes = Nodes(launcher, hosts, PHASED)

    def go_to(self, phase: str) -> list[Job]:
        """Start all, and return as soon as the job is in this phase on node 0."""
        jobs = [self.join(rank, "--max-restarts", "1") for rank in range(3)]
        jobs[0].wait_for("begins 0 0 n0")
        jobs[1].wait_for("begins 1 0 n1")
        [pid] = jobs[1].numbers("pid")
        jobs[2].wait_for("this node is a spare")
        if phase == "restarting":
            (self.folder / "fail").touch()
            jobs[0].wait_for("asked")
        if phase == "ending":
            (self.folder / "end").touch()
            await_end(pid)
        return jobs


def dies_in(phase: str, job: PhasedJob, after: float = 0.0) -> None:
    """Kill node 0's agent ``after`` the beginning of a phase: the others go on, and end with 0."""
    jobs = job.go_to(phase)
    time.sleep(after)

    jobs[0].signal(signal.SIGKILL)

    (job.folder / "end").unlink(missing_ok=True)
    jobs[2].wait_for("begins 0 ")
    job.let_all_end()
    ends = ended(jobs[1:])
    assert codes(ends) == [0, 0], ends
    assert jobs[0].left() == []


@pytest.fixture
def phased(hosts: tuple[Host, ...], clusterrun: Launcher) -> PhasedJob:
    return PhasedJob(hosts, clusterrun)


def joining_fails(job: SparedJob, after: float = 0.0) -> None:
    """Kill node 0's agent while it waits for the spare: the others wait for another node 0."""
    jobs = [job.join(rank, "--rdzv-timeout", "3") for rank in range(2)]
    time.sleep(after)

    jobs[0].signal(signal.SIGKILL)

    [end] = ended(jobs[1:])
    assert end.code == 4, end


PHASES = ("running", "restarting", "ending")
ROUNDS = 20


@pytest.mark.parametrize("phase", PHASES)
def test_node_zero_dies(phase: str, phased: PhasedJob) -> None:
    """The others go on, whatever the job is doing."""
    dies_in(phase, phased)


def test_node_zero_dies_while_nodes_join(job: SparedJob) -> None:
    """There is no job yet: the others wait for another node 0 until --rdzv-timeout."""
    joining_fails(job)


@pytest.mark.long
@pytest.mark.parametrize("number", numbers(ROUNDS))
@pytest.mark.parametrize("phase", PHASES)
def test_node_zero_dies_at_some_time(phase: str, number: int, phased: PhasedJob) -> None:
    """Up to half a second after the beginning of a phase; then it may be the next one already."""
    dies_in(phase, phased, 0.5 * (number % ROUNDS) / ROUNDS)


@pytest.mark.long
@pytest.mark.parametrize("number", numbers(ROUNDS))
def test_node_zero_dies_at_some_time_of_joining(number: int, job: SparedJob) -> None:
    """It is the same."""
    joining_fails(job, 0.5 * (number % ROUNDS) / ROUNDS)
