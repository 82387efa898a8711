"""A process is stopped for some time: the outcome depends on how long.

T is ``--heartbeat-timeout``, I the interval of heartbeats. When a process is stopped, the newest answered
heartbeat was sent up to I before, so the ranges overlap: near a limit both outcomes are correct.

| stopped | for how long | outcome |
| --- | --- | --- |
| agent of a member | to T + 2.25 I | nothing |
| | T + 1.25 I to T + 3 I | the lease of its workers expired: next attempt, same nodes |
| | T + 2 I to T + 4.2 I | node 0 declared it lost, and it rejoined before the next attempt |
| | from T + 2 I | node 0 declared it lost: the spare replaces it, and it rejoins |
| agent of node 0 | to T + 2 I | nothing |
| | T + I to T + 2 I | some end with 5; the others continue |
| | from T + I | all end with 5 |
| fork server, relay | to 6 s | nothing |
| | from 5 s | its agent kills it and exits with 137; the spare replaces the node |
| worker | for ever | nothing |
"""

import json
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
from tests.hosts.nodes import codes, ended, outputs
from tests.hosts.resilient_job import RECORD_STEPS, ResilientJob, overlap

FACTORS = (0.3, 0.7, 0.9, 1.0, 1.2, 2.0)
PROCESSES = ("agent", "node 0", "fork server", "relay", "worker")
HELPERS = ("fork server", "relay")

QUICK = {
    ("agent", 2, 0.9),
    ("agent", 2, 2.0),
    ("node 0", 2, 2.0),
    ("fork server", 5, 2.0),
}
"""One case for each outcome except SAME_NODES, which has its own test."""

TOLERANCE = 0.25
"""Seconds by which a signal or a message may be late on a busy machine."""

SECONDS_TO_SETTLE = 4.0
"""From the end of a freeze to the next attempt, if there is one."""

LEASE_EXPIRED = "clusterrun: this node was stopped, or cut off from node 0, for too long: its lease has expired, and 1 worker killed\n"

DECLARED_LOST = re.compile(
    r"node 0 has declared this node lost, as it has been silent for \S+ s: killing 1 worker on this node; rejoining\n"
)

FALSE_CAUSE = re.compile(r"rank \d+ .*(failed|was killed)")


class Outcome(Enum):
    """What happens after a freeze."""

    NOTHING = auto()
    SAME_NODES = auto()
    REJOINED = auto()
    """Node 0 had declared the node lost, and the node replaced itself."""
    SPARE = auto()
    """The spare replaced the node."""
    NODE_EXITED = auto()
    """The node exited with 137, and the spare replaced it."""
    SOME_ENDED = auto()
    """Some or all nodes had lost node 0 and exited with 5; the others continued."""
    ALL_ENDED = auto()
    """All exited with 5, because node 0 was stopped."""


INTERVALS = {
    "agent": {
        Outcome.NOTHING: (-inf, 2.25),
        Outcome.SAME_NODES: (1.25, 3.0),
        Outcome.REJOINED: (2.0, 4.2),
        Outcome.SPARE: (2.0, inf),
    },
    "node 0": {
        Outcome.NOTHING: (-inf, 2.0),
        Outcome.SOME_ENDED: (1.0, 2.0),
        Outcome.ALL_ENDED: (1.0, inf),
    },
}
"""The range of each outcome, in intervals after T."""

SECONDS = {
    "fork server": {Outcome.NOTHING: (-inf, 6.0), Outcome.NODE_EXITED: (5.0, inf)},
    "relay": {Outcome.NOTHING: (-inf, 6.0), Outcome.NODE_EXITED: (5.0, inf)},
    "worker": {Outcome.NOTHING: (-inf, inf)},
}
"""The range of each outcome, in seconds."""


def correct_outcomes(kind: str, timeout: int, seconds: float) -> set[Outcome]:
    """Return the correct outcomes if this process is stopped for so long."""
    zero, unit = (timeout, min(1.0, timeout / 6)) if kind in INTERVALS else (0, 1.0)
    return {
        outcome
        for outcome, (least, most) in {**INTERVALS, **SECONDS}[kind].items()
        if zero + least * unit - TOLERANCE <= seconds < zero + most * unit + TOLERANCE
    }


class RecordedJob(ResilientJob):
    """A job of two nodes, by default with a spare; the ranks record their steps."""

    def __init__(
        self, hosts: Sequence[Host], launcher: Launcher, *options: str, spares: int = 1
    ) -> None:
        """Start it with these options; both ranks make steps when this returns."""
        options = ("--nnodes", "2", "--spares", str(spares), "--shutdown-timeout", "0.3", *options)
        super().__init__(hosts, launcher, *options, script=RECORD_STEPS)
        self.jobs = self.start(spares=spares)
        # A lease begins with the first answer.
        time.sleep(1.0)

    def process(self, kind: str, node: int = 1) -> int:
        """Return the id of a process of a node; "node 0" is the agent of node 0."""
        job = self.jobs[node]
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

    def results(self) -> list[Ended]:
        """Let all ranks exit; return the results of all nodes, and check that nothing is left."""
        (self.folder / "finish").touch()
        ends = ended(self.jobs)
        assert [job.left() for job in self.jobs] == [[]] * len(self.jobs)
        return ends


def freeze(pid: int, seconds: float) -> float:
    """Stop a process, and continue it if it is alive; return for how long it was stopped."""
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    time.sleep(seconds)
    # The agent may have killed and reaped a helper, and its process id may be reused.
    if _is_stopped(pid):
        os.kill(pid, signal.SIGCONT)
    return time.monotonic() - began


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return False


def outcome_of(ends: Sequence[Ended]) -> Outcome | None:
    """Return the outcome by what the nodes printed; None if it is none of these."""
    begun = re.findall(r"worker \d 2 \d (\d) on (n\d)\n", "".join(end.out for end in ends))
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
            return Outcome.REJOINED
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
            return Outcome.NODE_EXITED
        case [5, 5, 5], [] if "node 0 (n0) was stopped for " in first and (
            "node 0 (n0) has been silent for " in member
        ):
            return Outcome.ALL_ENDED
        case all_codes, _ if {5} <= set(all_codes) <= {0, 5}:
            return Outcome.SOME_ENDED
    return None


CASES = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.long)
    for case in (
        *product(PROCESSES, [2], FACTORS),
        # What T is decides when a helper is killed, up to 5 s.
        *product(HELPERS, [5], FACTORS),
        # The default, in which an interval of heartbeats is not a sixth of T.
        *product(("agent", "node 0"), [15], (0.9, 1.2)),
    )
]


@pytest.mark.parametrize(("kind", "timeout", "factor"), CASES)
def test_outcome_of_frozen_process(
    kind: str, timeout: int, factor: float, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """No rank is reported as failed, no two attempts run at once, and nothing is left."""
    job = RecordedJob(hosts, clusterrun, "--heartbeat-timeout", str(timeout))

    seconds = freeze(job.process(kind), factor * timeout)

    time.sleep(SECONDS_TO_SETTLE)
    ends = job.results()
    context = outputs(f"{seconds:.2f} s", ends)
    assert outcome_of(ends) in correct_outcomes(kind, timeout, seconds), context
    assert not FALSE_CAUSE.search("".join(end.err for end in ends)), context
    assert overlap(job.folder) < 0, context


@pytest.mark.parametrize("timeout", [5, pytest.param(15, marks=pytest.mark.long)])
def test_agent_that_continues_after_its_lease_restarts_same_nodes(
    timeout: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """It continues as soon as its workers have been killed, before node 0 declares it lost."""
    job = RecordedJob(hosts, clusterrun, "--heartbeat-timeout", str(timeout))
    agent, worker = job.process("agent"), job.process("worker")

    os.kill(agent, signal.SIGSTOP)
    await_end(worker)
    os.kill(agent, signal.SIGCONT)

    job.jobs[1].wait_for("worker 1 2 1 1 on n1")
    ends = job.results()
    assert outcome_of(ends) is Outcome.SAME_NODES, ends
    assert overlap(job.folder) < 0


@pytest.mark.parametrize("helper", ["fork server", "relay"])
@pytest.mark.parametrize(
    ("node", "spares"), [(0, 0), (1, 0), (0, 1)], ids=["node 0", "node 1", "node 0, with a spare"]
)
def test_frozen_helper_ends_job(
    helper: str, node: int, spares: int, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """All nodes end as if the helper had been killed. No spare can replace node 0."""
    job = RecordedJob(hosts, clusterrun, spares=spares)
    os.kill(job.process(helper, node), signal.SIGSTOP)
    began = time.monotonic()

    ends = ended(job.jobs)

    assert time.monotonic() - began < 10.0
    assert codes(ends) == [137] * len(ends), ends
    for end in ends:
        assert (
            f"clusterrun: error: the {helper} on n{node} has not answered for 5 s: it is stopped;"
            " the job was stopped\n"
        ) in end.err
        assert not FALSE_CAUSE.search(end.err)
    assert [each.left() for each in job.jobs] == [[]] * len(ends)


@pytest.mark.parametrize(
    ("timeout", "after"),
    [(2, 0.0), (5, 0.0), (5, 5.0), pytest.param(15, 0.0, marks=pytest.mark.long)],
)
def test_frozen_fork_server_of_cut_off_node(
    timeout: int, after: float, hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """The agent kills its workers before the spare replaces them, sooner than after 5 s if need be."""
    job = RecordedJob(hosts, clusterrun, "--heartbeat-timeout", str(timeout))
    server = job.process("fork server")
    hosts[1].cut()
    time.sleep(after)
    os.kill(server, signal.SIGSTOP)

    job.jobs[2].wait_for("worker 1 2 1 1 on n2")
    # The file that ends all workers would also end those of the first attempt.
    time.sleep(SECONDS_TO_SETTLE)
    ends = job.results()

    assert codes(ends) in ([0, 5, 0], [0, 137, 0]), ends
    assert not FALSE_CAUSE.search("".join(end.err for end in ends))
    assert overlap(job.folder) < 0


def test_frozen_agent_and_fork_server(hosts: tuple[Host, ...], clusterrun: Launcher) -> None:
    """A limit: no process is left to kill their workers. They are killed when the two continue."""
    job = RecordedJob(hosts, clusterrun, "--heartbeat-timeout", "2", "--events", "events")
    agent, server, worker = map(job.process, ("agent", "fork server", "worker"))
    for pid in (agent, server):
        os.kill(pid, signal.SIGSTOP)

    job.jobs[2].wait_for("worker 1 2 1 1 on n2")
    assert psutil.pid_exists(worker)
    for pid in (agent, server):
        os.kill(pid, signal.SIGCONT)

    await_end(worker)
    job.jobs[1].wait_for("this node is a spare")
    ends = job.results()
    assert outcome_of(ends) is Outcome.SPARE, ends
    # Whichever message is read first.
    assert LEASE_EXPIRED in ends[1].err or DECLARED_LOST.search(ends[1].err), ends[1].err
    events = map(json.loads, (job.folder / "events").read_text().splitlines())
    last = [event for event in events if event["host"] == "n1"][-1]
    assert (last["event"], last["code"], last["reason"]) == ("ended", 0, "succeeded")


@pytest.mark.parametrize(
    ("seconds", "outcomes"),
    [(1.5, {Outcome.NOTHING}), (4.0, {Outcome.NOTHING, Outcome.SAME_NODES})],
    ids=["shortly", "for long"],
)
def test_all_processes_frozen_by_scheduler(
    seconds: float, outcomes: set[Outcome], hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """No node is lost. Leases may have expired when the job continues."""
    job = RecordedJob(hosts, clusterrun, "--heartbeat-timeout", "2")
    processes = [process for each in job.jobs for process in each.processes()]
    for process in processes:
        process.suspend()
    time.sleep(seconds)
    for process in processes:
        # An agent that has continued may have killed it.
        with suppress(psutil.NoSuchProcess):
            process.resume()

    time.sleep(SECONDS_TO_SETTLE)
    ends = job.results()
    assert outcome_of(ends) in outcomes, ends
    assert not FALSE_CAUSE.search("".join(end.err for end in ends))
    assert overlap(job.folder) < 0
