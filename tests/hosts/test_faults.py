"""Faults of a running job on several hosts: the output of every remaining node, and its exit code.

The ranks are training at the time: every rank waits for the sum of all.
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
from tests.rounds import mostly_long

STEPS = f"""{RANKS_STEP}
    fault = faults.get(str(rank))
    if fault == "ignore SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    for step in range(1_000_000):
        if step == 10 and fault == "exit slowly":
            atexit.register(time.sleep, 2)
        if step == 10 and fault in ("exit", "exit slowly"):
            raise ValueError("a bad batch")
        if step == 10 and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 25 == 5:
            print("step", step, flush=True)
        try:
            all_reduce()
        except OSError:
            if fault == "ignore SIGTERM":
                time.sleep(1000)
            raise
        time.sleep(0.02)
"""
"""As in torch, no rank continues without the others."""

HEARTBEAT_TIMEOUT = 2
"""Where a test waits for it."""

SECONDS_TO_END = 8.0
"""From the timeout to the end of all agents; it takes much less."""


class TrainingJob:
    """The nodes of a job whose ranks make steps together."""

    def __init__(self, jobs: list[Job], hosts: tuple[Host, ...]) -> None:
        self.jobs = jobs
        self.hosts = hosts[: len(jobs)]
        for job in jobs:
            job.wait_for("step 5")

    def others(self, node: int) -> tuple[int, ...]:
        """Return the numbers of the other nodes."""
        return tuple(number for number in range(len(self.jobs)) if number != node)

    def ends_after_loss(self, number: int, how: str, survivors: tuple[int, ...] = ()) -> None:
        """Check that the survivors, by default all other nodes, exit with 5 and name the lost node."""
        survivors = survivors or self.others(number)
        ends = ended([self.jobs[each] for each in survivors], HEARTBEAT_TIMEOUT + SECONDS_TO_END)

        name = f"node {number} (n{number})"
        assert codes(ends) == [5] * len(survivors), ends
        for end in ends:
            assert end.err.endswith(
                f"clusterrun: error: {name} {how}; the job was stopped\n"
                f"clusterrun: exit code 5: node {number} was lost\n"
            ), end.err
        assert [self.jobs[each].left() for each in survivors] == [[]] * len(survivors)


@pytest.fixture
def training(hosts: tuple[Host, ...], clusterrun: Launcher) -> TrainingJob:
    """Return a running job on three nodes, with one rank each and a short heartbeat timeout."""
    options = ("--heartbeat-timeout", str(HEARTBEAT_TIMEOUT))
    return TrainingJob(
        Nodes(clusterrun, hosts, STEPS).start_all(*options, workers=(1, 1, 1)), hosts
    )


IS_SILENT = {0: "has been silent for 2.7 s", 1: "has been silent for 3 s"}
"""Node 0, for a member: T + 2 I. A member, for node 0: T + 3 I."""


def test_node_that_is_cut_off_names_node_zero(training: TrainingJob) -> None:
    """The others name the node that is cut off."""
    training.hosts[1].cut()

    training.ends_after_loss(1, IS_SILENT[1])
    training.ends_after_loss(0, IS_SILENT[0], survivors=(1,))


def test_node_zero_that_is_cut_off_names_any_other_node(training: TrainingJob) -> None:
    """The others name node 0."""
    training.hosts[0].cut()

    training.ends_after_loss(0, IS_SILENT[0])
    [end] = ended([training.jobs[0]], SECONDS_TO_END)
    assert end.code == 5, end.err
    assert f"{IS_SILENT[1]}; the job was stopped\n" in end.err


def test_frozen_agent_ends_its_workers_when_it_continues(training: TrainingJob) -> None:
    """The others have ended before."""
    training.jobs[1].signal(signal.SIGSTOP)
    training.ends_after_loss(1, IS_SILENT[1])
    alive = training.jobs[1].processes()

    training.jobs[1].signal(signal.SIGCONT)

    assert len(alive) > 1
    training.ends_after_loss(1, IS_SILENT[1], survivors=(1,))


def test_frozen_node_zero_reports_for_how_long_it_was_stopped(training: TrainingJob) -> None:
    """The others have ended before."""
    training.jobs[0].signal(signal.SIGSTOP)
    training.ends_after_loss(0, IS_SILENT[0])

    training.jobs[0].signal(signal.SIGCONT)

    [end] = ended([training.jobs[0]], SECONDS_TO_END)
    assert end.code == 5, end.err
    assert re.search(r"node 0 \(n0\) was stopped for \d+(\.\d)? s; the job was stopped\n", end.err)


@pytest.mark.parametrize("node", [pytest.param(0, marks=pytest.mark.long), 1])
def test_paused_node_is_not_lost(node: int, training: TrainingJob) -> None:
    """After Ctrl-Z, heartbeats do not count until the node continues."""
    jobs = training.jobs
    name = f"clusterrun: node {node} \\(n{node}\\)"
    jobs[node].signal(signal.SIGTSTP)
    for other in training.others(node):
        jobs[other].wait_for(f"{name} is paused: the job waits until it is continued\n")
    time.sleep(2.0 * HEARTBEAT_TIMEOUT)

    jobs[node].signal(signal.SIGCONT)

    for other in training.others(node):
        jobs[other].wait_for(f"{name} continues\n")
    # All heartbeats count again.
    time.sleep(2.0 * HEARTBEAT_TIMEOUT)
    make_steps(jobs, steps=25)
    jobs[node].signal(signal.SIGSTOP)
    training.ends_after_loss(node, IS_SILENT[node])


@pytest.mark.parametrize("node", [pytest.param(0, marks=pytest.mark.long), 1])
def test_paused_node_whose_host_is_cut_off_is_lost(node: int, training: TrainingJob) -> None:
    """The silence of its kernel counts."""
    training.jobs[node].signal(signal.SIGTSTP)
    for other in training.others(node):
        training.jobs[other].wait_for(f"node {node} \\(n{node}\\) is paused")
    time.sleep(1.5 * HEARTBEAT_TIMEOUT)

    training.hosts[node].cut()

    training.ends_after_loss(node, IS_SILENT[node])


def make_steps(jobs: Sequence[Job], steps: int = 50) -> None:
    """Wait until all ranks have made ``steps`` more steps."""
    for job in jobs:
        done = max(job.numbers("step"))
        job.numbers("step", times=1 + (done + steps) // 25)


def stop(jobs: Sequence[Job]) -> None:
    """Stop a job, and check that it was running."""
    jobs[0].signal(signal.SIGTERM)
    ends = ended(jobs)
    assert codes(ends) == [143] * len(jobs), ends


def test_short_loss_of_link_loses_no_node(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """TCP sends lost packets again."""
    jobs = Nodes(clusterrun, hosts, STEPS).start_all("--heartbeat-timeout", "6")
    training = TrainingJob(jobs, hosts)

    training.hosts[1].cut()
    time.sleep(2.0)
    training.hosts[1].join()

    make_steps(jobs)
    stop(jobs)


def test_busy_cpus_lose_no_node(training: TrainingJob) -> None:
    command = [sys.executable, "-c", "while True: pass"]
    spinning = [training.hosts[0].start(*command) for _ in range(2 * (os.cpu_count() or 1))]

    time.sleep(2.5 * HEARTBEAT_TIMEOUT)

    make_steps(training.jobs, steps=25)
    assert [each.process.poll() for each in spinning] == [None] * len(spinning)
    for each in spinning:
        each.kill_all()
    stop(training.jobs)


def reports(ends: Sequence[Ended]) -> list[str]:
    """Return each node's report of the cause: its first two lines, and the exit code.

    The other lines differ: the worker's output is only shown on the nodes where it was not printed, and
    other workers only by their own node.
    """
    found = []
    for end in ends:
        lines = end.err.splitlines()
        [first] = [
            i
            for i, line in enumerate(lines)
            if re.match(r"clusterrun: rank \d+ on .*(fail|kill)", line) and "stopping" not in line
        ]
        found.append("\n".join([*lines[first : first + 2], lines[-1]]))
    return found


def have_same_cause(ends: Sequence[Ended], code: int, headline: str) -> None:
    """Check that all nodes report the same cause with the same text and exit with its code."""
    found = reports(ends)

    assert codes(ends) == [code] * len(ends), ends
    assert found == found[:1] * len(found)
    rank = re.findall(r"rank (\d+)", headline)[0]
    first, _, last = found[0].splitlines()
    assert first == f"clusterrun: {headline}", ends
    assert last.startswith(f"clusterrun: exit code {code}, from rank {rank}"), ends


BAD_BATCH = "rank 1 on n1 failed: ValueError: a bad batch"


@pytest.mark.parametrize(
    ("fault", "code", "headline"),
    [
        ("exit", 1, BAD_BATCH),
        ("exit slowly", 1, BAD_BATCH),
        ("kill", 137, "rank 1 on n1 was killed by SIGKILL"),
    ],
)
def test_failed_worker_is_the_cause(
    fault: str, code: int, headline: str, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Its peers fail in turn, and every node reports these failures as consequences."""
    jobs = Nodes(clusterrun, hosts, STEPS).start_all(args=[f"1={fault}"], workers=(1, 1, 1))

    have_same_cause(ended(jobs), code, headline)


def test_two_failures_at_once_have_one_cause(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Either worker may be the cause, but all nodes report the same one."""
    faults = ["1=exit", "2=kill"]
    jobs = Nodes(clusterrun, hosts, STEPS).start_all(args=faults, workers=(1, 1, 1))

    ends = ended(jobs)

    # The signal is the cause, unless all workers were already being stopped.
    killed = [end.code == 137 for end in ends]
    if all(killed):
        have_same_cause(ends, 137, "rank 2 on n2 was killed by SIGKILL")
    else:
        have_same_cause(ends, 1, BAD_BATCH)


def test_worker_that_ignores_sigterm_is_killed(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """It is not the cause."""
    faults = ["1=exit", "2=ignore SIGTERM"]
    nodes = Nodes(clusterrun, hosts, STEPS)
    jobs = nodes.start_all("--shutdown-timeout", "0.5", args=faults, workers=(1, 1, 1))

    ends = ended(jobs)

    have_same_cause(ends, 1, BAD_BATCH)
    assert "clusterrun: 1 worker did not exit within 0.5 s: sending SIGKILL\n" in ends[2].err


WITH_WRONG_CLOCK = """
import runpy, sys, time
real, ahead = time.time, float(sys.argv[1])
time.time = lambda: real() + ahead
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a Python program whose wall clock differs by the seconds of its first argument."""


@pytest.mark.parametrize("ahead", [30, -30])
def test_all_nodes_print_same_time_if_clocks_differ(
    ahead: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    program = clusterrun.folder / "with_wrong_clock.py"
    program.write_text(WITH_WRONG_CLOCK)
    before = (sys.executable, str(program), str(ahead))
    nodes = Nodes(clusterrun, hosts, STEPS)
    jobs = [
        nodes.join(rank, "--nnodes", "2", args=["1=exit"], before=before if rank else ())
        for rank in (0, 1)
    ]

    ends = ended(jobs)

    have_same_cause(ends, 1, BAD_BATCH)
    [shown] = re.findall(r"at (\S+ \S+),", ends[0].err)
    at = time.mktime(time.strptime(shown, "%Y-%m-%d %H:%M:%S"))
    assert abs(at - time.time() - ahead) < 15


@pytest.mark.parametrize("helper", ["fork server", "relay"])
def test_killed_helper_ends_job(helper: str, hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    jobs = Nodes(clusterrun, hosts, STEPS).start_all(workers=(1, 1, 1))
    training = TrainingJob(jobs, hosts)
    server, relay = jobs[1].fork_server, jobs[1].relay

    os.kill(server if helper == "fork server" else relay, signal.SIGKILL)
    ends = ended(training.jobs)

    assert codes(ends) == [137] * 3, ends
    for end in ends:
        assert end.err.endswith(
            f"clusterrun: error: the {helper} on n1 was killed by SIGKILL; the job was"
            " stopped\n"
            f"clusterrun: exit code 137, from the {helper} on n1: 128 + 9 for SIGKILL\n"
        ), end.err
    assert [job.left() for job in jobs] == [[]] * 3


@pytest.mark.long
def test_packet_loss_loses_no_node(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """For a third of the time, no packet arrives."""
    jobs = Nodes(clusterrun, hosts, STEPS).start_all("--heartbeat-timeout", "6")
    training = TrainingJob(jobs, hosts)

    for _ in range(6):
        training.hosts[1].cut()
        time.sleep(0.25)
        training.hosts[1].join()
        time.sleep(0.5)

    make_steps(jobs, steps=25)
    stop(jobs)


FAIL_ONCE_FILE_EXISTS = """
    import os, pathlib, sys, time
    print("up", flush=True)
    while os.environ["RANK"] == "0" or not pathlib.Path("go").exists():
        time.sleep(0.01)
    sys.exit(7)
"""


@pytest.mark.long
def test_link_delay_of_half_a_second_loses_no_node(
    hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """A failure is reported a little later."""
    with slow_link(hosts[1], sends=0.5, gets=0.5):
        jobs = Nodes(clusterrun, hosts, FAIL_ONCE_FILE_EXISTS).start_all(
            "--heartbeat-timeout", str(HEARTBEAT_TIMEOUT)
        )
        for job in jobs:
            job.wait_for("up")
        time.sleep(2.0 * HEARTBEAT_TIMEOUT)

        (clusterrun.folder / "go").touch()
        began = time.monotonic()
        ends = ended(jobs)

    have_same_cause(ends, 7, "rank 1 on n1 failed: exit code 7")
    assert time.monotonic() - began < 5.0


FAIL_80_MS_APART = """
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
"""The argument names the rank that fails first. All hosts share a clock."""


@pytest.mark.parametrize("first", [pytest.param("0", marks=pytest.mark.long), "1"])
@pytest.mark.parametrize(
    ("delay", "loss"), [(0.15, 0.0), pytest.param(0.0, 0.2, marks=pytest.mark.long)]
)
def test_first_failure_is_the_cause_over_bad_link(
    delay: float, loss: float, first: str, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Node 0 learns of its own rank's failure at once, and of the other one later."""
    with slow_link(hosts[1], sends=delay, gets=delay, loss=loss):
        jobs = Nodes(clusterrun, hosts, FAIL_80_MS_APART).start_all(
            "--heartbeat-timeout", "6", args=[first]
        )
        for job in jobs:
            job.wait_for("up")
        # Heartbeats measure by how much the clocks differ.
        time.sleep(5.0)
        unfinished = clusterrun.folder / "unfinished"
        unfinished.write_text(f"{time.monotonic() + 0.2}")
        unfinished.rename(clusterrun.folder / "go")

        have_same_cause(ended(jobs), 7, f"rank {first} on n{first} failed: exit code 7")


WITH_SMALL_DISK = """
mount -t tmpfs -o size=64k none "$0"
exec "$@"
"""

PRINT_MUCH = """
    import os, time
    for number in range(2000):
        print("line", number, "x" * 100)
    print("all printed", flush=True)
    if os.environ["RANK"] == "1":
        time.sleep(1)
"""


def test_full_disk_for_logs_exits_with_3(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """No worker waits, and no node is lost."""
    logs = clusterrun.folder / "logs"
    logs.mkdir()
    nodes = Nodes(clusterrun, hosts, PRINT_MUCH)
    options = ("--nnodes", "2", "--log-dir", str(logs))
    full = ("sh", "-c", WITH_SMALL_DISK, str(logs))
    jobs = [nodes.join(rank, *options, before=full if rank else ()) for rank in (0, 1)]

    ends = ended(jobs)

    assert codes(ends) == [0, 3], [end.err for end in ends]
    assert ["all printed" in end.out for end in ends] == [True, True]
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


def test_failed_torch_rank_is_the_cause(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """Its peer fails in the backward pass, with an error of gloo."""
    jobs = Nodes(clusterrun, hosts, TRAINS).start_all(args=["1"], workers=(1, 1))

    # Most of it is the import of torch on both nodes.
    ends = ended(jobs, 100)

    have_same_cause(ends, 1, BAD_BATCH)


@pytest.mark.parametrize("round_", mostly_long(4))
def test_agent_killed_at_any_time_is_named(
    round_: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    jobs = Nodes(clusterrun, hosts, STEPS).start_all(workers=(1, 1, 1, 1))
    training = TrainingJob(jobs, hosts)
    killed = round_ % 4
    time.sleep(0.037 * (round_ % 10))

    jobs[killed].signal(signal.SIGKILL)

    training.ends_after_loss(killed, "is gone")
