"""A network that splits, agents that freeze and connections that are reset: no two parts train at once.

The workers catch SIGTERM to save, as training scripts do, and note the time in each step: only SIGKILL
ends them. All hosts share a clock.
"""

import signal
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.contract.launched import Job, Launcher
from tests.contract.worker_scripts import RANKS_MEET
from tests.hosts.host import Host
from tests.hosts.network import Network, network
from tests.hosts.nodes import Nodes, codes, ended

SILENT = 3
"""Seconds: ``--heartbeat-timeout``."""

GRACE = 12
"""Seconds: ``--shutdown-timeout``, much longer."""

SAVES_FOR_LONG = f"""
    import signal
{RANKS_MEET}
    import pathlib
    signal.signal(signal.SIGTERM, lambda *_: None)
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print("begins", attempt, size, flush=True)
    with open(f"trains-{{attempt}}-{{os.uname().nodename}}", "a", buffering=1) as notes:
        while not pathlib.Path("enough").exists():
            notes.write(f"{{time.monotonic()}}\\n")
            time.sleep(0.02)
"""


class FiveHosts:
    """An elastic job of five hosts, at least three of them."""

    def __init__(self, hosts: Sequence[Host], launcher: Launcher, silent: int) -> None:
        """Start it with this ``--heartbeat-timeout``; it runs when this returns."""
        self.hosts = hosts[:5]
        self.folder = launcher.folder
        self._muted: list[tuple[Host, list[Host]]] = []
        nodes = Nodes(launcher, hosts, SAVES_FOR_LONG)
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

    def overlap(self) -> float:
        """Return the seconds from the new attempt's first step to the old one's last; < 0: none."""
        steps = [
            [
                float(line)
                for notes in self.folder.glob(f"trains-{attempt}-*")
                for line in notes.read_text().splitlines()
            ]
            for attempt in (0, 1)
        ]
        return max(steps[0]) - min(steps[1])


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


def test_the_network_splits(job: FiveHosts) -> None:
    """Node 0 is in the smaller part: its lease ends, and its member's with it."""
    job.split(0, 1)

    for each in job.jobs[2:]:
        each.wait_for("begins 1 3")
    cut_off = ended(job.jobs[:2])
    assert codes(cut_off) == [5, 5], cut_off
    job.end(job.jobs[2:])
    assert job.overlap() < 0


def test_the_network_splits_and_node_zero_goes_on(job: FiveHosts) -> None:
    """The next attempt begins when the leases of the lost nodes are over."""
    job.split(3, 4)

    for each in job.jobs[:3]:
        each.wait_for("begins 1 3")
    cut_off = ended(job.jobs[3:])
    assert codes(cut_off) == [5, 5], cut_off
    job.end(job.jobs[:3])
    assert job.overlap() < 0


def test_a_frozen_agent_continues(job: FiveHosts) -> None:
    """It reads answers that are old: they give its workers no more time."""
    job.jobs[1].signal(signal.SIGSTOP)

    job.jobs[0].wait_for("begins 1 4")
    job.jobs[1].signal(signal.SIGCONT)

    [frozen] = ended(job.jobs[1:2])
    assert frozen.code == 5, frozen.err
    job.end([each for each in job.jobs if each is not job.jobs[1]])
    assert job.overlap() < 0


@pytest.mark.parametrize("job", [8], indirect=True)
def test_a_node_is_cut_off_before_node_zero_is_killed(job: FiveHosts) -> None:
    """The successor knows no leases: it waits for that of the lost node."""
    job.split(1)
    time.sleep(0.5)
    job.jobs[0].signal(signal.SIGKILL)

    for each in job.jobs[2:]:
        each.wait_for("begins 1 3")
    [cut_off] = ended(job.jobs[1:2])
    assert cut_off.code == 5, cut_off.err
    job.end(job.jobs[2:])
    assert job.overlap() < 0


@pytest.mark.parametrize("number", [0, 1])
def test_an_agent_is_killed_that_has_not_read_all(number: int, job: FiveHosts) -> None:
    """Its kernel resets its connections, as something between two hosts may: that is no known end."""
    # Its heartbeats are not answered, or those of the others wait for it.
    others = [each for each in job.jobs if each is not job.jobs[number]]
    if number == 0:
        job.jobs[0].signal(signal.SIGSTOP)
        time.sleep(0.8)
    else:
        for each in (job.jobs[0], job.jobs[1]):
            each.signal(signal.SIGSTOP)
        job.jobs[0].signal(signal.SIGCONT)
        time.sleep(0.8)
    job.jobs[number].signal(signal.SIGKILL)

    for each in others:
        each.wait_for("begins 1 4")
    job.end(others)
    assert job.overlap() < 0
