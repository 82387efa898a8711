"""Nodes are stopped, killed and cut off: workers of two attempts never run at once."""

from collections.abc import Callable
from typing import Any

import pytest
from clusterrun.policy import outcome

from tests.policy.partition_job import ELASTIC, I, PartitionJob, T, replace_sockets
from tests.policy.partition_nodes import Agent, Broken
from tests.policy.partition_wires import LONGEST_RETRY
from tests.rounds import in_all_rounds, numbers

RUNS_PER_SCENARIO = 12
"""Histories of each kind."""

SECONDS = 30.0

LEASE = T + 3 * I
"""Seconds after which node 0 goes on."""


@pytest.fixture(autouse=True)
def without_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_sockets(monkeypatch)


def wild(seed: int) -> PartitionJob:
    """Return a job to which anything may have happened; then all are reached, and go on."""
    job = PartitionJob(seed)
    job.disturb(SECONDS)
    job.runs(SECONDS + 5.0)
    job.calms()
    job.settles()
    return job


def continued(seeds: range) -> int:
    """Run histories; return how many of them had another attempt."""
    found = 0
    for seed in seeds:
        job = None
        try:
            job = wild(seed)
        except Broken as broken:
            raise Broken(f"history {seed}: {broken}") from broken
        found += job.attempts > 0
    return found


@pytest.mark.parametrize(
    "histories",
    [
        pytest.param(100, marks=pytest.mark.timeout(in_all_rounds(120))),
        pytest.param(5_000, marks=(pytest.mark.long, pytest.mark.timeout(in_all_rounds(1800)))),
    ],
)
def test_no_two_attempts_run_at_once_and_nothing_hangs(histories: int) -> None:
    """Processes, hosts and all nodes stop, agents are killed, links are cut, reset and heal."""
    seeds = numbers(histories)

    assert continued(seeds) > len(seeds) / 3


# Histories of one kind. Each raises ``Broken`` if the rule is.


def begun(seed: int, **values: Any) -> PartitionJob:
    """Return a job without slow messages whose first attempt runs."""
    job = PartitionJob(seed, is_steady=True, **values)
    job.runs(job.dice.uniform(2.0, 4.0))
    return job


def worker(job: PartitionJob) -> Agent:
    """Return a member with a place."""
    return job.dice.choice([it for it in job.agents[1:] if it.trains is not None])


def demand(job: PartitionJob, holds: object, what: str) -> None:
    if not holds:
        raise Broken(f"{what}: attempts {job.attempts}, left {job.left}, {job.reasons}, {job.log}")


def a_short_stop(seed: int) -> None:
    """One process, one host or all are stopped for less than T: that costs nothing."""
    job = begun(seed)
    dice, agent = job.dice, job.dice.choice(job.agents)
    seconds = dice.choice([dice.uniform(2.0, T - 0.01), dice.uniform(T - 0.3, T - 0.01)])
    what = dice.choice(["agent", "agent", "host", "fork server", "all"])
    if what == "agent":
        job.stops_agent(agent, seconds)
    elif what == "host":
        # What is lost meanwhile is sent again later.
        job.stops_host(agent, seconds - LONGEST_RETRY)
    elif what == "fork server":
        job.stops_fork_server(agent, min(seconds, 4.9))
    else:
        job.stops_all(seconds)
    job.runs(seconds + 2 * LEASE)
    demand(job, len(job.left) == job.nodes and not job.attempts, "a short stop costs something")


def a_long_stop(seed: int) -> None:
    """One agent or one host is stopped, for any time: no rank is blamed, and an agent comes back."""
    job = begun(seed)
    agent = worker(job)
    seconds = job.dice.uniform(T, 4 * T)
    if job.dice.random() < 0.7:
        job.stops_agent(agent, seconds)
    else:
        job.stops_host(agent, seconds)
    job.runs(seconds)
    job.settles()
    demand(job, outcome.WorkerFailed not in job.reasons, "a rank is blamed")
    is_back = len(job.left) == job.nodes and 1 <= job.attempts <= 2
    demand(job, is_back or agent.host.has_slept or not job.attempts, "a node is missing")


def all_are_stopped(seed: int) -> None:
    """A scheduler stops all nodes, and continues them: nobody is lost, and one attempt follows."""
    job = begun(seed)
    seconds = job.dice.uniform(T, 200.0)
    job.stops_all(seconds)
    job.runs(seconds + 2 * LEASE)
    demand(job, len(job.left) == job.nodes and job.attempts <= 1, "a node is lost")
    demand(job, len(job.wires) < job.nodes, "a node has joined again")
    demand(job, outcome.WorkerFailed not in job.reasons, "a rank is blamed")
    job.settles()


def all_are_stopped_while_workers_end(seed: int) -> None:
    """For longer than a node may take to report its end: that time does not count."""
    job = begun(seed, grace=12.0)
    job.fails(job.agents[0])
    job.runs(job.dice.uniform(0.5, 2.0))
    seconds = job.dice.uniform(40.0, 200.0)
    job.stops_all(seconds)
    job.runs(seconds + 2 * LEASE)
    demand(job, len(job.left) == job.nodes and len(job.wires) < job.nodes, "a node is lost")
    job.settles()


def node_zero_is_paused(seed: int) -> None:
    """For longer than leases: one attempt follows, with the same nodes."""
    job = begun(seed, grace=0.3)
    seconds = job.dice.uniform(2 * LEASE, 4 * LEASE)
    job.pauses(job.agents[0], seconds)
    job.runs(seconds + LEASE)
    demand(job, len(job.left) == job.nodes and job.attempts == 1, "a pause costs more")
    job.settles()


def a_member_is_killed(seed: int) -> None:
    """Its kernel reports the end of all that it ran: the next attempt begins at once."""
    job = begun(seed, options=ELASTIC, grace=0.3)
    job.kills(worker(job))
    job.runs(2.5)
    demand(job, job.attempts == 1, "the next attempt waits")
    job.settles()


def a_connection_is_reset(seed: int) -> None:
    """That of a member whose agent is stopped, or which is cut off: its worker runs on."""
    job = begun(seed, options=ELASTIC, grace=0.3)
    dice, agent = job.dice, worker(job)
    if dice.random() < 0.5:
        job.stops_agent(agent, 4 * LEASE)
    else:
        job.cuts([agent], 4 * LEASE, up=True, down=True)
    job.runs(dice.uniform(0.0, T))
    job.resets(agent, member=False, zero=True)
    job.runs(4 * LEASE)
    job.settles()


def an_answer_is_late(seed: int) -> None:
    """A cut has held it back, and node 0 has received nothing since: the lease runs from the heartbeat."""
    job = begun(seed, options=ELASTIC, grace=0.3)
    dice, agent = job.dice, worker(job)
    seconds = dice.uniform(2.0, T)
    job.cuts([agent], seconds, up=False, down=True)
    job.runs(dice.uniform(0.0, I))
    job.cuts([agent], 4 * LEASE, up=True, down=False)
    job.resets(agent, member=False, zero=True)
    job.runs(seconds + LONGEST_RETRY)
    job.stops_agent(agent, 4 * LEASE)
    job.runs(5 * LEASE)
    job.settles()


def leases_are_read_late(seed: int) -> None:
    """A fork server is stopped, and reads its newest lease later; then its agent is stopped."""
    job = begun(seed, options=ELASTIC, grace=0.3)
    dice, agent = job.dice, worker(job)
    seconds = dice.uniform(3.0, 4.9)
    job.stops_fork_server(agent, seconds)
    job.runs(seconds - dice.uniform(0.0, 0.1))
    job.stops_agent(agent, 4 * LEASE)
    job.runs(dice.uniform(0.0, 1.0))
    job.resets(agent, member=False, zero=True)
    job.runs(4 * LEASE)
    job.settles()


def an_order_is_read_late(seed: int) -> None:
    """A worker has failed; the agent of another is stopped before it reads that the next attempt begins."""
    job = begun(seed, options=ELASTIC, grace=0.3)
    agent = worker(job)
    job.fails(job.agents[0])
    while agent.trains == 0:
        job.runs(0.01)
    job.stops_agent(agent, 2 * LEASE)
    job.runs(2 * LEASE)
    job.settles()


def a_member_stops_at_its_start(seed: int) -> None:
    """It has just been given its place, and has had no other answer since."""
    job = PartitionJob(seed, options=ELASTIC, grace=0.3, is_steady=True)
    agent = job.dice.choice(job.agents[1:])
    while agent.trains is None:
        job.runs(0.001)
    job.stops_agent(agent, 4 * LEASE)
    job.resets(agent, member=False, zero=True)
    job.runs(5 * LEASE)
    job.settles()


def node_zero_stops_in_a_turn(seed: int) -> None:
    """It has read the time before; a heartbeat came meanwhile, and the member is stopped after it."""
    job = begun(seed, options=ELASTIC, grace=0.3)
    dice, zero, agent = job.dice, job.agents[0], worker(job)
    seconds = dice.uniform(1.0, T)
    job.stops_agent(zero, seconds)
    zero.loop.stopped_at = zero.host.monotonic()
    job.runs(seconds + dice.uniform(0.0, 0.2))
    job.stops_agent(agent, 4 * LEASE)
    job.resets(agent, member=False, zero=True)
    job.runs(4 * LEASE)
    job.settles()


def a_helper_is_lost(seed: int) -> None:
    """The relay of a member: that stops its worker, which takes longer to end than a lease."""
    job = begun(seed, options=ELASTIC, grace=40.0)
    job.loses_helper(worker(job), "relay")
    job.grace = 0.3
    job.runs(4 * LEASE)
    job.settles()


def a_worker_fails(seed: int) -> None:
    """The others take their grace period to end."""
    job = begun(seed, grace=12.0)
    job.fails(worker(job))
    job.runs(2 * LEASE)
    demand(job, outcome.WorkerFailed in job.reasons, "no rank is blamed")
    job.settles()


def an_agent_is_killed_while_its_fork_server_is_stopped(seed: int) -> None:
    """Its worker runs on for that time."""
    job = begun(seed, options=ELASTIC, grace=0.3)
    agent = worker(job)
    job.stops_fork_server(agent, job.dice.uniform(3.0, 4.9))
    job.kills(agent)
    job.runs(2 * LEASE)
    job.settles()


SCENARIOS: tuple[Callable[[int], object], ...] = (
    a_short_stop,
    a_long_stop,
    all_are_stopped,
    all_are_stopped_while_workers_end,
    node_zero_is_paused,
    a_member_is_killed,
    a_connection_is_reset,
    an_answer_is_late,
    leases_are_read_late,
    an_order_is_read_late,
    a_member_stops_at_its_start,
    node_zero_stops_in_a_turn,
    a_helper_is_lost,
    a_worker_fails,
    an_agent_is_killed_while_its_fork_server_is_stopped,
)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenarios(scenario: Callable[[int], object]) -> None:
    """As the docstring of each scenario says."""
    for seed in numbers(RUNS_PER_SCENARIO):
        scenario(seed)


@pytest.mark.parametrize("seed", range(10))
def test_no_lease_expires_in_healthy_job(seed: int) -> None:
    """Although each message is up to an interval late, and the timeout is the shortest allowed."""
    job = PartitionJob(seed, delay=I)
    job.runs(2 * SECONDS)

    assert job.attempts == 0
    assert len(job.left) == job.nodes


def test_fork_server_stopped_as_lease_expires() -> None:
    """The member is cut off. Its agent runs, and kills the fork server, which would kill the worker too late."""
    for seed in range(10):
        job = begun(seed, options=ELASTIC, grace=0.3)
        agent = worker(job)
        job.cuts([agent], 4 * LEASE, up=True, down=True)
        job.runs(T + I)
        job.stops_fork_server(agent, 4.9, beyond_lease=True)
        job.runs(LEASE)
