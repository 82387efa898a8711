"""Any process is stopped for some time, and continues: what follows, by how long.

T is ``--heartbeat-timeout``, I the interval of heartbeats. When a process is stopped, the newest answered
heartbeat was sent up to I before, so the ranges overlap: near a limit both outcomes are right.

| stopped | for how long | what follows |
| --- | --- | --- |
| agent of a member | to T + 2.25 I | nothing |
| | T + 1.25 I to T + 3 I | the lease of its workers was over: next attempt, same nodes |
| | T + 2 I to T + 4.2 I | node 0 has given it up, and it is back before the next attempt |
| | from T + 2 I | node 0 has given it up: the spare takes its place, and this node rejoins |
| agent of node 0 | to T + 2 I | nothing |
| | T + I to T + 2 I | some have ended with 5; the others go on |
| | from T + I | all end with 5 |
| fork server, relay | to 6 s | nothing |
| | from 5 s | its agent ends it, and leaves with 137: the spare |
| worker | for ever | nothing |
"""

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum, auto
from itertools import product
from math import inf
from pathlib import Path

import psutil
import pytest

from tests.contract.launched import Ended, Launcher, await_end
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended
from tests.hosts.stamping_ranks import STAMPS_UNTIL_TOLD, overlap

TIMEOUTS = (2, 5, 15)
FACTORS = (0.3, 0.7, 0.9, 1.0, 1.2, 2.0)
KINDS = ("agent", "node 0", "fork server", "relay", "worker")

QUICK = {
    ("agent", 2, 0.9),
    ("agent", 2, 2.0),
    ("node 0", 2, 2.0),
    ("fork server", 5, 2.0),
}
"""One cell for each outcome; of the same nodes in the next attempt there is a test of its own."""

BUSY = 0.25
"""Seconds: a signal or a message is late on a busy machine."""

SECONDS_TO_SETTLE = 4.0
"""From the end of a freeze to the next attempt, if there is one."""

LEASE_OVER = "clusterrun: this node was stopped, or cut off from node 0, for too long: its lease has expired, and 1 worker killed\n"

GIVEN_UP = re.compile(
    r"node 0 has declared this node lost, as it has been silent for \S+ s: killing 1 worker on this node; rejoining\n"
)

FALSE_CAUSE = re.compile(r"rank \d+ .*(failed|was killed)")


class Outcome(Enum):
    """What follows from a freeze."""

    NOTHING = auto()
    SAME_NODES = auto()
    IS_BACK = auto()
    """In its own place, after node 0 has given it up."""
    SPARE = auto()
    NODE_LEAVES = auto()
    """With 137, and the spare takes its place."""
    PARTS = auto()
    """Some have given up node 0, and the others go on, or nobody does."""
    ALL_END = auto()
    """With 5, as node 0 was stopped."""


INTERVALS = {
    "agent": {
        Outcome.NOTHING: (-inf, 2.25),
        Outcome.SAME_NODES: (1.25, 3.0),
        Outcome.IS_BACK: (2.0, 4.2),
        Outcome.SPARE: (2.0, inf),
    },
    "node 0": {
        Outcome.NOTHING: (-inf, 2.0),
        Outcome.PARTS: (1.0, 2.0),
        Outcome.ALL_END: (1.0, inf),
    },
}
"""From when and until when each outcome is right: intervals after T."""

SECONDS = {
    "fork server": {Outcome.NOTHING: (-inf, 6.0), Outcome.NODE_LEAVES: (5.0, inf)},
    "relay": {Outcome.NOTHING: (-inf, 6.0), Outcome.NODE_LEAVES: (5.0, inf)},
    "worker": {Outcome.NOTHING: (-inf, inf)},
}
"""The same, in seconds."""


def right_outcomes(kind: str, timeout: int, seconds: float) -> set[Outcome]:
    """Return what may follow if a process of this kind is stopped for so long."""
    zero, unit = (timeout, min(1.0, timeout / 6)) if kind in INTERVALS else (0, 1.0)
    return {
        outcome
        for outcome, (least, most) in {**INTERVALS, **SECONDS}[kind].items()
        if zero + least * unit - BUSY <= seconds < zero + most * unit + BUSY
    }


class StampedJob:
    """Two nodes and a spare, whose ranks note their steps."""

    def __init__(self, hosts: Sequence[Host], launcher: Launcher, *options: str) -> None:
        """Start it with these options; both ranks make steps when this returns."""
        self.folder = launcher.folder
        nodes = Nodes(launcher, hosts, STAMPS_UNTIL_TOLD)
        place = ("--master-addr", hosts[0].address, "--shutdown-timeout", "0.3", *options)
        spares = 1 if "--spares" in options else 0
        self.jobs = [
            nodes.start(rank, "--nnodes", "2", *place, "--node-rank", str(rank))
            for rank in range(2 + spares)
        ]
        for rank in (0, 1):
            self.jobs[rank].wait_for(f"begins 0 2 n{rank}")
        for job in self.jobs[2:]:
            job.wait_for("this node is a spare")
        # A lease runs from the first answer on.
        time.sleep(1.0)

    def process(self, kind: str) -> int:
        """Return the id of node 0's agent, or of a process of node 1."""
        job = self.jobs[1]
        match kind:
            case "node 0":
                return self.jobs[0].agent
            case "agent":
                return job.agent
            case "fork server":
                return job.fork_server
            case "relay":
                return job.relay
        return job.numbers("pid")[0]

    def ends(self) -> list[Ended]:
        """Let all ranks end; return the ends of all nodes, and check that nothing is left."""
        (self.folder / "enough").touch()
        ends = ended(self.jobs)
        assert [job.left() for job in self.jobs] == [[]] * len(self.jobs)
        return ends


def freeze(pid: int, seconds: float) -> float:
    """Stop a process and continue it, if it still lives; return for how long it was stopped."""
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    time.sleep(seconds)
    # An agent that ends a helper reaps it: its process id may be another's by now.
    if _is_stopped(pid):
        os.kill(pid, signal.SIGCONT)
    return time.monotonic() - began


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return False


def outcome_of(ends: Sequence[Ended]) -> Outcome | None:
    """Return what has followed, by all that the nodes print; None: something else."""
    begun = re.findall(r"begins (\d) 2 (n\d)\n", "".join(end.out for end in ends))
    later = sorted(host for attempt, host in begun if attempt != "0")
    first, member, _ = (end.err for end in ends)
    counts = "restarting all workers (1 node lost so far)\n" in first
    match codes(ends), later:
        case [0, 0, 0], [] if first == member == "":
            return Outcome.NOTHING
        case [0, 0, 0], ["n0", "n1"] if (
            "node 1 (n1) was stopped, or cut off, for too long: its workers' lease had expired\n"
            in first
            and first.endswith("clusterrun: restarting all workers\n")
        ):
            return Outcome.SAME_NODES
        case [0, 0, 0], ["n0", "n1"] if counts and "; it has joined again\n" in first:
            return Outcome.IS_BACK
        case [0, 0, 0], ["n0", "n2"] if (
            counts
            and re.search(
                r"node 1 \(n1\) has been silent for [\d.]+ s; n2 takes its place\n", first
            )
            and re.search(r"node 0 has declared this node lost, .*; rejoining\n", member)
        ):
            return Outcome.SPARE
        case [0, 137, 0], ["n0", "n2"] if (
            counts
            and "has not answered for 5 s: it is stopped" in member
            and re.search(r"node 1 \(n1\) has lost its [a-z ]+, which has not answered", first)
        ):
            return Outcome.NODE_LEAVES
        case [5, 5, 5], [] if "node 0 (n0) was stopped for " in first and (
            "node 0 (n0) has been silent for " in member
        ):
            return Outcome.ALL_END
        case all_codes, _ if {5} <= set(all_codes) <= {0, 5}:
            return Outcome.PARTS
    return None


CELLS = [
    pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.long)
    for cell in product(KINDS, TIMEOUTS, FACTORS)
]


@pytest.mark.parametrize(("kind", "timeout", "factor"), CELLS)
def test_outcome_of_frozen_process(
    kind: str, timeout: int, factor: float, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """No rank is reported as failed, no two attempts run at once, and nothing is left."""
    job = StampedJob(hosts, clusterrun, "--spares", "1", "--heartbeat-timeout", str(timeout))

    seconds = freeze(job.process(kind), factor * timeout)

    time.sleep(SECONDS_TO_SETTLE)
    ends = job.ends()
    said = f"{seconds:.2f} s\n" + "\n".join(f"--- node {i}: {it}" for i, it in enumerate(ends))
    assert outcome_of(ends) in right_outcomes(kind, timeout, seconds), said
    assert not FALSE_CAUSE.search("".join(end.err for end in ends)), said
    assert overlap(job.folder) < 0, said


@pytest.mark.parametrize("timeout", [5, pytest.param(15, marks=pytest.mark.long)])
def test_agent_that_continues_after_its_lease_restarts_same_nodes(
    timeout: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """It continues as soon as its workers have been killed, before node 0 declares it lost."""
    job = StampedJob(hosts, clusterrun, "--spares", "1", "--heartbeat-timeout", str(timeout))
    agent, worker = job.process("agent"), job.process("worker")

    os.kill(agent, signal.SIGSTOP)
    await_end(worker)
    os.kill(agent, signal.SIGCONT)

    job.jobs[1].wait_for("begins 1 2 n1")
    ends = job.ends()
    assert outcome_of(ends) is Outcome.SAME_NODES, ends
    assert overlap(job.folder) < 0


@pytest.mark.parametrize("helper", ["fork server", "relay"])
@pytest.mark.parametrize("number", [0, 1])
def test_frozen_helper_ends_job_without_spares(
    helper: str, number: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """All nodes end as if the helper had been killed."""
    job = StampedJob(hosts, clusterrun)
    frozen = job.jobs[number]
    os.kill(frozen.relay if helper == "relay" else frozen.fork_server, signal.SIGSTOP)
    began = time.monotonic()

    ends = ended(job.jobs)

    assert time.monotonic() - began < 10.0
    assert codes(ends) == [137, 137], ends
    for end in ends:
        assert (
            f"clusterrun: error: the {helper} on n{number} has not answered for 5 s: it is"
            " stopped; the job was stopped\n"
        ) in end.err
        assert not FALSE_CAUSE.search(end.err)
    assert [each.left() for each in job.jobs] == [[], []]


@pytest.mark.parametrize("helper", ["fork server", "relay"])
def test_frozen_helper_of_node_zero_ends_job_with_spare(
    helper: str, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    job = StampedJob(hosts, clusterrun, "--spares", "1")
    first = job.jobs[0]

    os.kill(first.relay if helper == "relay" else first.fork_server, signal.SIGSTOP)

    ends = ended(job.jobs)
    assert codes(ends) == [137] * 3, ends
    assert not FALSE_CAUSE.search("".join(end.err for end in ends))
    assert [each.left() for each in job.jobs] == [[]] * 3


@pytest.mark.parametrize(
    ("timeout", "after"),
    [(2, 0.0), (5, 0.0), (5, 5.0), pytest.param(15, 0.0, marks=pytest.mark.long)],
)
def test_frozen_fork_server_of_cut_off_node(
    timeout: int, after: float, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """The agent kills its workers before the spare replaces them, sooner than after 5 s if need be."""
    job = StampedJob(hosts, clusterrun, "--spares", "1", "--heartbeat-timeout", str(timeout))
    server = job.process("fork server")
    hosts[1].cut()
    time.sleep(after)
    os.kill(server, signal.SIGSTOP)

    job.jobs[2].wait_for("begins 1 2 n2")
    # The file that ends all would end those of an attempt before, too.
    time.sleep(SECONDS_TO_SETTLE)
    ends = job.ends()

    assert codes(ends) in ([0, 5, 0], [0, 137, 0]), ends
    assert not FALSE_CAUSE.search("".join(end.err for end in ends))
    assert overlap(job.folder) < 0


def test_frozen_agent_and_fork_server(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """A limit: no process is left to kill their workers. They are killed when the two continue."""
    job = StampedJob(hosts, clusterrun, "--spares", "1", "--heartbeat-timeout", "2")
    agent, server, worker = map(job.process, ("agent", "fork server", "worker"))
    for pid in (agent, server):
        os.kill(pid, signal.SIGSTOP)

    job.jobs[2].wait_for("begins 1 2 n2")
    assert psutil.pid_exists(worker)
    for pid in (agent, server):
        os.kill(pid, signal.SIGCONT)

    await_end(worker)
    job.jobs[1].wait_for("this node is a spare")
    ends = job.ends()
    assert outcome_of(ends) is Outcome.SPARE, ends
    # The one that is read first.
    assert LEASE_OVER in ends[1].err or GIVEN_UP.search(ends[1].err), ends[1].err


@pytest.mark.parametrize(
    ("seconds", "outcomes"),
    [(1.5, {Outcome.NOTHING}), (4.0, {Outcome.NOTHING, Outcome.SAME_NODES})],
    ids=["shortly", "for long"],
)
def test_all_processes_frozen_by_scheduler(
    seconds: float, outcomes: set[Outcome], hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """No node is lost. Leases may have expired when the job continues."""
    job = StampedJob(hosts, clusterrun, "--spares", "1", "--heartbeat-timeout", "2")
    processes = [process for each in job.jobs for process in each.processes()]
    for process in processes:
        process.suspend()
    time.sleep(seconds)
    for process in processes:
        # Those that have continued may have ended it.
        with suppress(psutil.NoSuchProcess):
            process.resume()

    time.sleep(SECONDS_TO_SETTLE)
    ends = job.ends()
    assert outcome_of(ends) in outcomes, ends
    assert not FALSE_CAUSE.search("".join(end.err for end in ends))
    assert overlap(job.folder) < 0
