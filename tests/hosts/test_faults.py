"""Faults of a running job on several hosts: what every surviving node prints, and its exit code.

In each of them a step of training is in flight: every rank waits for the sum of all.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Sequence

import pytest

from tests.contract.launched import Ended, Job, Launcher
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.slow_link import slow_link
from tests.hosts.stepping_ranks import RANKS_STEP
from tests.rounds import numbers

STEPS = f"""{RANKS_STEP}
    def strike(fault):
        if fault == "held back":
            atexit.register(time.sleep, 2)
        if fault in ("exit", "held back"):
            raise ValueError("a bad batch")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    if faults.get(str(rank)) == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    for step in range(1_000_000):
        if step == 10 and str(rank) in faults:
            strike(faults[str(rank)])
        if step % 25 == 5:
            print("step", step, flush=True)
        try:
            all_reduce()
        except OSError:
            if faults.get(str(rank)) == "deaf":
                time.sleep(1000)
            raise
        time.sleep(0.02)
"""
"""Like a step of torch: no rank continues without the others."""

SILENT = 2
"""Seconds: --heartbeat-timeout where a test waits for it."""

WHILE_IT_ENDS = 8.0
"""Seconds from then to the end of all agents; it takes much less."""


class Trainers:
    """The nodes of a job whose ranks make steps together."""

    def __init__(self, jobs: list[Job], hosts: tuple[Host, ...]) -> None:
        self.jobs = jobs
        self.hosts = hosts[: len(jobs)]
        self._frozen: list[int] = []
        for job in jobs:
            job.wait_for("step 5")

    def freeze(self, number: int) -> None:
        """Stop an agent, and no other process of its node."""
        self._frozen.append(number)
        self.jobs[number].signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        self._frozen.remove(number)
        self.jobs[number].signal(signal.SIGCONT)

    def reported_lost(self, number: int, how: str, survivors: tuple[int, ...]) -> None:
        """Check that all survivors exit with 5 and report that node as lost."""
        ends = ended([self.jobs[each] for each in survivors], SILENT + WHILE_IT_ENDS)

        name = f"node {number} (n{number})"
        assert codes(ends) == [5] * len(survivors), ends
        for end in ends:
            assert end.err.endswith(
                f"clusterrun: error: {name} {how}; the job was stopped\n"
                f"clusterrun: exit code 5: node {number} was lost\n"
            ), end.err
        assert [self.jobs[each].left() for each in survivors] == [[]] * len(survivors)


@pytest.fixture
def trainers(hosts: tuple[Host, ...], clusterrun: Launcher) -> Trainers:
    """Return a running job on three nodes, with one rank each and a short heartbeat timeout."""
    words = ("--heartbeat-timeout", str(SILENT))
    return Trainers(Nodes(clusterrun, hosts, STEPS).start_all(*words, workers=(1, 1, 1)), hosts)


SILENCE = "has been silent for 3 s"
"""Of a member, for node 0: T + 3 I."""

SILENCE_OF_NODE_ZERO = "has been silent for 2.7 s"
"""T + 2 I."""


def test_an_agent_is_killed(trainers: Trainers) -> None:
    """Its connection is closed."""
    trainers.jobs[1].signal(signal.SIGKILL)

    trainers.reported_lost(1, "is gone", survivors=(0, 2))


def test_node_zero_is_killed(trainers: Trainers) -> None:
    """No other node can take its place."""
    trainers.jobs[0].signal(signal.SIGKILL)

    trainers.reported_lost(0, "is gone", survivors=(1, 2))


def test_a_node_is_cut_off(trainers: Trainers) -> None:
    """Each side ends and names the other."""
    trainers.hosts[1].cut()

    trainers.reported_lost(1, SILENCE, survivors=(0, 2))
    trainers.reported_lost(0, SILENCE_OF_NODE_ZERO, survivors=(1,))


def test_node_zero_is_cut_off(trainers: Trainers) -> None:
    """The others name it; it names one of them."""
    trainers.hosts[0].cut()

    trainers.reported_lost(0, SILENCE_OF_NODE_ZERO, survivors=(1, 2))
    [end] = ended([trainers.jobs[0]], WHILE_IT_ENDS)
    assert end.code == 5, end.err
    assert f"{SILENCE}; the job was stopped\n" in end.err


def test_an_agent_is_frozen(trainers: Trainers) -> None:
    """The others end; once it continues, it learns that and ends its own workers."""
    trainers.freeze(1)
    trainers.reported_lost(1, SILENCE, survivors=(0, 2))
    alive = trainers.jobs[1].processes()

    trainers.thaw(1)

    assert len(alive) > 1
    trainers.reported_lost(1, SILENCE, survivors=(1,))


def test_node_zero_is_frozen(trainers: Trainers) -> None:
    """The others end; once it continues, it finds that, and says for how long it was stopped."""
    trainers.freeze(0)
    trainers.reported_lost(0, SILENCE_OF_NODE_ZERO, survivors=(1, 2))

    trainers.thaw(0)

    [end] = ended([trainers.jobs[0]], WHILE_IT_ENDS)
    assert end.code == 5, end.err
    assert re.search(r"node 0 \(n0\) was stopped for \d+(\.\d)? s; the job was stopped\n", end.err)


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_node_is_paused(number: int, trainers: Trainers) -> None:
    """A user pressed Ctrl-Z: the node's silence does not count, and the job goes on later."""
    jobs = trainers.jobs
    name = f"clusterrun: node {number} \\(n{number}\\)"
    jobs[number].signal(signal.SIGTSTP)
    for job in jobs[:number] + jobs[number + 1 :]:
        job.wait_for(f"{name} is paused: the job waits until it is continued\n")
    time.sleep(2.0 * SILENT)

    jobs[number].signal(signal.SIGCONT)

    for job in jobs[:number] + jobs[number + 1 :]:
        job.wait_for(f"{name} continues\n")
    # All heartbeats count again.
    time.sleep(2.0 * SILENT)
    step_on(jobs, steps=25)
    trainers.freeze(number)
    survivors = tuple({0, 1, 2} - {number})
    trainers.reported_lost(number, SILENCE if number else SILENCE_OF_NODE_ZERO, survivors)


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.long), 1])
def test_the_host_of_a_paused_node_dies(number: int, trainers: Trainers) -> None:
    """Its agent's silence does not count, that of its kernel does."""
    jobs = trainers.jobs
    survivors = tuple({0, 1, 2} - {number})
    jobs[number].signal(signal.SIGTSTP)
    for each in survivors:
        jobs[each].wait_for(f"node {number} \\(n{number}\\) is paused")
    time.sleep(1.5 * SILENT)

    trainers.hosts[number].cut()

    trainers.reported_lost(number, SILENCE if number else SILENCE_OF_NODE_ZERO, survivors)


def step_on(jobs: Sequence[Job], steps: int = 50) -> None:
    """Wait until all ranks have made ``steps`` more steps."""
    for job in jobs:
        done = max(job.numbers("step"))
        job.numbers("step", times=1 + (done + steps) // 25)


def end_in_order(jobs: Sequence[Job]) -> None:
    """End a running job, and check that it was running."""
    jobs[0].signal(signal.SIGTERM)
    ends = ended(jobs)
    assert codes(ends) == [143] * len(jobs), ends


def test_the_link_is_down_for_a_moment(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """No node is lost: TCP repeats the packets that were lost."""
    jobs = Nodes(clusterrun, hosts, STEPS).start_all("--heartbeat-timeout", "6")
    trainers = Trainers(jobs, hosts)

    trainers.hosts[1].cut()
    time.sleep(2.0)
    trainers.hosts[1].join()

    step_on(jobs)
    end_in_order(jobs)


def test_all_processors_are_busy(trainers: Trainers) -> None:
    """Other processes use them; heartbeats arrive in time."""
    hog = [sys.executable, "-c", "while True: pass"]
    hogs = [trainers.hosts[0].start(*hog) for _ in range(2 * (os.cpu_count() or 1))]

    time.sleep(2.5 * SILENT)

    step_on(trainers.jobs, steps=25)
    assert [each.process.poll() for each in hogs] == [None] * len(hogs)
    for each in hogs:
        each.kill_all()
    end_in_order(trainers.jobs)


def reports(ends: Sequence[Ended]) -> list[str]:
    """Return each node's report of the cause, from its first line to the exit code.

    The worker's own words are shown where they were not printed, and other workers only at home.
    """
    told = []
    for end in ends:
        lines = end.err.splitlines()
        [first] = [
            i
            for i, line in enumerate(lines)
            if re.match(r"clusterrun: rank \d+ on .*(fail|kill)", line) and "stopping" not in line
        ]
        told.append("\n".join([*lines[first : first + 2], lines[-1]]))
    return told


def one_cause(ends: Sequence[Ended], code: int, headline: str) -> None:
    """Check that all nodes report the same cause in the same words and exit with its code."""
    told = reports(ends)

    assert codes(ends) == [code] * len(ends), ends
    assert told == told[:1] * len(told)
    rank = re.findall(r"rank (\d+)", headline)[0]
    first, _, last = told[0].splitlines()
    assert first == f"clusterrun: {headline}", ends
    assert last.startswith(f"clusterrun: exit code {code}, from rank {rank}"), ends


WORKER_FAULTS = {
    "an exception": ("exit", 1, "rank 1 on n1 failed: ValueError: a bad batch"),
    "an exception whose exit is held back": (
        "held back",
        1,
        "rank 1 on n1 failed: ValueError: a bad batch",
    ),
    "SIGKILL": ("kill", 137, "rank 1 on n1 was killed by SIGKILL"),
}


@pytest.mark.parametrize(
    ("fault", "code", "headline"), WORKER_FAULTS.values(), ids=WORKER_FAULTS.keys()
)
def test_a_worker_fails(
    fault: str, code: int, headline: str, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Its peers wait for it and fail in turn: every node reports these as consequences."""
    jobs = Nodes(clusterrun, hosts, STEPS).start_all(args=[f"1={fault}"], workers=(1, 1, 1))

    one_cause(ended(jobs), code, headline)


def test_two_workers_fail_at_once(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Either worker of the two nodes may be the cause, but all nodes report the same."""
    words = ["1=exit", "2=kill"]
    jobs = Nodes(clusterrun, hosts, STEPS).start_all(args=words, workers=(1, 1, 1))

    ends = ended(jobs)

    # A signal from outside comes first, unless it came while all were being stopped.
    killed = [end.code == 137 for end in ends]
    if all(killed):
        one_cause(ends, 137, "rank 2 on n2 was killed by SIGKILL")
    else:
        one_cause(ends, 1, "rank 1 on n1 failed: ValueError: a bad batch")


def test_a_worker_ignores_sigterm(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The worker is killed after the grace period, and is not the cause."""
    nodes = Nodes(clusterrun, hosts, STEPS)
    jobs = nodes.start_all(
        "--shutdown-timeout", "0.5", args=["1=exit", "2=deaf"], workers=(1, 1, 1)
    )

    ends = ended(jobs)

    one_cause(ends, 1, "rank 1 on n1 failed: ValueError: a bad batch")
    assert "clusterrun: 1 worker did not exit within 0.5 s: sending SIGKILL\n" in ends[2].err


SKEWED = """
import runpy, sys, time
truth, ahead = time.time, float(sys.argv[1])
time.time = lambda: truth() + ahead
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Executes a command with a wall clock of its own."""


@pytest.mark.parametrize("ahead", [30, -30])
def test_clocks_differ(ahead: int, hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """One clock is half a minute early or late: the cause and its time stay the same."""
    (clusterrun.folder / "skewed.py").write_text(SKEWED)
    skewed = (sys.executable, str(clusterrun.folder / "skewed.py"), str(ahead))
    nodes = Nodes(clusterrun, hosts, STEPS)
    place = ("--nnodes", "2", "--master-addr", hosts[0].address)
    jobs = [
        nodes.start(0, *place, "--node-rank", "0", args=["1=exit"]),
        nodes.start(1, *place, "--node-rank", "1", args=["1=exit"], before=skewed),
    ]

    ends = ended(jobs)

    one_cause(ends, 1, "rank 1 on n1 failed: ValueError: a bad batch")
    [shown] = re.findall(r"at (\S+ \S+),", ends[0].err)
    at = time.mktime(time.strptime(shown, "%Y-%m-%d %H:%M:%S"))
    assert abs(at - time.time() - ahead) < 15


@pytest.mark.parametrize("helper", ["fork server", "relay"])
def test_a_helper_process_is_killed(
    helper: str, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Its node can't go on without it, so the job ends."""
    jobs = Nodes(clusterrun, hosts, STEPS).start_all(workers=(1, 1, 1))
    trainers = Trainers(jobs, hosts)
    server, relay = jobs[1].fork_server, jobs[1].relay

    os.kill(server if helper == "fork server" else relay, signal.SIGKILL)
    ends = ended(trainers.jobs)

    assert codes(ends) == [137] * 3, ends
    for end in ends:
        assert end.err.endswith(
            f"clusterrun: error: the {helper} on n1 was killed by SIGKILL; the job was"
            " stopped\n"
            f"clusterrun: exit code 137, from the {helper} on n1: 128 + 9 for SIGKILL\n"
        ), end.err
    assert [job.left() for job in jobs] == [[]] * 3


@pytest.mark.long
def test_the_link_loses_packets(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """No packet arrives in a third of the time; the job is slower, and no node is lost."""
    jobs = Nodes(clusterrun, hosts, STEPS).start_all("--heartbeat-timeout", "6")
    trainers = Trainers(jobs, hosts)

    for _ in range(6):
        trainers.hosts[1].cut()
        time.sleep(0.25)
        trainers.hosts[1].join()
        time.sleep(0.5)

    step_on(jobs, steps=25)
    end_in_order(jobs)


FAILS_ON_ORDER = """
    import os, pathlib, sys, time
    print("up", flush=True)
    while os.environ["RANK"] == "0" or not pathlib.Path("go").exists():
        time.sleep(0.01)
    sys.exit(7)
"""


@pytest.mark.long
def test_the_link_is_slow(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Half a second in each direction: no node is lost, and a failure is reported a little later."""
    with slow_link(hosts[1], sends=0.5, gets=0.5):
        jobs = Nodes(clusterrun, hosts, FAILS_ON_ORDER).start_all(
            "--heartbeat-timeout", str(SILENT)
        )
        for job in jobs:
            job.wait_for("up")
        time.sleep(2.0 * SILENT)

        (clusterrun.folder / "go").touch()
        began = time.monotonic()
        ends = ended(jobs)

    one_cause(ends, 7, "rank 1 on n1 failed: exit code 7")
    assert time.monotonic() - began < 5.0


FAIL_IN_TURN = """
    import os, pathlib, sys, time
    rank = os.environ["RANK"]
    print("up", flush=True)
    go = pathlib.Path("go")
    while not go.exists():
        time.sleep(0.005)
    at = float(go.read_text()) + (0.0 if rank == sys.argv[1] else 0.08)
    time.sleep(max(0.0, at - time.monotonic()))
    os._exit(7)
"""
"""The other rank fails 80 ms after the one that the argument names. All hosts share a clock."""


@pytest.mark.parametrize("first", [pytest.param("0", marks=pytest.mark.long), "1"])
@pytest.mark.parametrize(
    ("delay", "loss"), [(0.15, 0.0), pytest.param(0.0, 0.2, marks=pytest.mark.long)]
)
def test_the_first_failure_is_named_over_a_bad_link(
    delay: float, loss: float, first: str, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Though node 0 hears of its own rank at once, and of the other one later."""
    with slow_link(hosts[1], sends=delay, gets=delay, loss=loss):
        jobs = Nodes(clusterrun, hosts, FAIL_IN_TURN).start_all(
            "--heartbeat-timeout", "6", args=[first]
        )
        for job in jobs:
            job.wait_for("up")
        # Some heartbeats show by how much the clocks differ.
        time.sleep(5.0)
        unfinished = clusterrun.folder / "unfinished"
        unfinished.write_text(f"{time.monotonic() + 0.2}")
        unfinished.rename(clusterrun.folder / "go")

        one_cause(ended(jobs), 7, f"rank {first} on n{first} failed: exit code 7")


FULL = """
mount -t tmpfs -o size=64k none "$0"
exec "$@"
"""

PRINTS_MUCH = """
    import os, time
    for number in range(2000):
        print("line", number, "x" * 100)
    print("all is said", flush=True)
    if os.environ["RANK"] == "1":
        time.sleep(1)
"""


def test_the_disk_for_logs_is_full(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """The files are cut short, which the exit code shows; no worker waits and no node is lost."""
    logs = clusterrun.folder / "logs"
    logs.mkdir()
    nodes = Nodes(clusterrun, hosts, PRINTS_MUCH)
    words = ("--nnodes", "2", "--master-addr", hosts[0].address, "--log-dir", str(logs))
    full = ("sh", "-c", FULL, str(logs))
    jobs = [
        nodes.start(rank, *words, "--node-rank", str(rank), before=full if rank else ())
        for rank in (0, 1)
    ]

    ends = ended(jobs)

    assert codes(ends) == [0, 3], [end.err for end in ends]
    assert ["all is said" in end.out for end in ends] == [True, True]
    assert "No space left on device" in ends[1].err


TRAINS = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(1000, 100))
    for step in range(100_000):
        if step == 20 and dist.get_rank() == int(sys.argv[1]):
            raise ValueError("a bad batch")
        model(torch.ones(1, 1000)).sum().backward()
"""


def test_a_rank_of_torch_fails_inside_a_step(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Its peers fail in the backward pass, with an error of gloo."""
    jobs = Nodes(clusterrun, hosts, TRAINS).start_all(args=["1"], workers=(1, 1))

    ends = ended(jobs, 60)

    one_cause(ends, 1, "rank 1 on n1 failed: ValueError: a bad batch")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("round_", numbers(10))
def test_rounds_of_killed_agents(
    round_: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Any agent is killed at any moment: all others end and name its node."""
    jobs = Nodes(clusterrun, hosts, STEPS).start_all(workers=(1, 1, 1, 1))
    trainers = Trainers(jobs, hosts)
    killed = round_ % 4
    time.sleep(0.037 * (round_ % 10))

    jobs[killed].signal(signal.SIGKILL)

    trainers.reported_lost(killed, "is gone", survivors=tuple({0, 1, 2, 3} - {killed}))
