"""Nodes are stopped, killed and cut off: workers of two attempts never run at once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clusterrun.loop import NEVER
from clusterrun.network import member
from clusterrun.network.member import Member
from clusterrun.network.server import CoordinatorServer
from clusterrun.policy import coordinator, events, heartbeat, job_events, leases, outcome, settings
from clusterrun.policy.coordinator import Coordinator
from clusterrun.policy.heartbeat import ListeningClock
from clusterrun.policy.leases import GrantedLeases
from clusterrun.policy.node import Attempt
from clusterrun.policy.settings import HeartbeatRhythm
from msgspec.structs import replace

from tests.policy.partition_job import ELASTIC, I, PartitionJob, T, replace_sockets
from tests.policy.partition_nodes import Agent, Broken, ForkServer, Host
from tests.policy.partition_wires import LONGEST_RETRY
from tests.rounds import in_all_rounds, numbers

HISTORIES = 300
LONG_HISTORIES = 10_000
RUNS_PER_SCENARIO = 12
"""Histories of each kind."""

RUNS_PER_MUTANT = 120
"""Histories of a kind of which one shows that a part of the rule is needed."""

SECONDS = 30.0

LEASE = T + 3 * I
"""Seconds after which node 0 goes on."""

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def without_sockets(monkeypatch: Patch) -> None:
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


@pytest.mark.timeout(in_all_rounds(120))
def test_no_two_attempts_run_at_once_and_nothing_hangs() -> None:
    """Processes, hosts and all nodes stop, agents are killed, links are cut, reset and heal."""
    seeds = numbers(HISTORIES)

    assert continued(seeds) > len(seeds) / 3


@pytest.mark.long
@pytest.mark.timeout(in_all_rounds(1800))
def test_no_two_attempts_run_at_once_in_ten_thousand_histories() -> None:
    """As above."""
    seeds = numbers(LONG_HISTORIES)

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


# Each part of the rule is needed: without it, a history is found in which it is broken.


def a_margin(patch: Patch) -> None:
    patch.setattr(leases, "FORK_SERVER_KILL_INTERVALS", 3.25)


def dating_from_sending(patch: Patch) -> None:
    # Not min(answer.to, now).
    patch.setattr(member, "min", max, raising=False)


def resets_that_are_no_ends(patch: Patch) -> None:
    original = CoordinatorServer.handle

    def believes(server: CoordinatorServer, event: job_events.CoordinatorEvent) -> None:
        if isinstance(event, job_events.MemberDisconnected):
            event = replace(event, has_ended=True)
        original(server, event)

    patch.setattr(CoordinatorServer, "handle", believes)


def waiting_for_leases(patch: Patch) -> None:
    patch.setattr(GrantedLeases, "lost", lambda _grants, _member: None)


def trust_in_ends(patch: Patch) -> None:
    patch.setattr(GrantedLeases, "has_ended", lambda _grants, _member: None)


def no_answer_to_lost_members(patch: Patch) -> None:
    patch.setattr(Coordinator, "is_lost", lambda _coordinator, _member: False)


def answers_dated_when_they_are_sent(patch: Patch) -> None:
    answer, serve, began = GrantedLeases.answer, vars(CoordinatorServer)["_serve"], [0.0]

    def serves(server: CoordinatorServer, number: int, now: float) -> object:
        began[0] = now
        return serve(server, number, now)

    patch.setattr(CoordinatorServer, "_serve", serves)
    patch.setattr(GrantedLeases, "answer", lambda grants, it, _now: answer(grants, it, began[0]))


def two_intervals_for_node_zero(patch: Patch) -> None:
    for module in (heartbeat, settings):
        patch.setattr(module, "NODE_ZERO_SILENCE_INTERVALS", 0.0)


def three_intervals_for_members(patch: Patch) -> None:
    for module in (heartbeat, settings):
        patch.setattr(module, "MEMBER_SILENCE_INTERVALS", 0.0)


def two_intervals_for_leases(patch: Patch) -> None:
    patch.setattr(leases, "FORK_SERVER_KILL_INTERVALS", 0.0)


def ends_that_name_the_lease(patch: Patch) -> None:
    original = Attempt.handle

    def forgets(attempt: Attempt, event: events.Event) -> object:
        if isinstance(event, events.WorkerEnded):
            event = replace(event, by_lease=False)
        return original(attempt, event)

    patch.setattr(Attempt, "handle", forgets)


def nodes_that_come_back(patch: Patch) -> None:
    patch.setattr(Attempt, "_handle_given_up", lambda _attempt, _order, _why: None)


def a_lease_from_the_start_on(patch: Patch) -> None:
    patch.setattr(Member, "begin_work", lambda _member, _now: None)


def own_workers_that_have_ended(patch: Patch) -> None:
    name = "_end_if_all_have_reported"
    ends = vars(Coordinator)[name]

    def hurries(job: Coordinator, running: coordinator.Running, at: float) -> object:
        if job.members.own not in running.evidence.reported:
            running.evidence.reported.append(job.members.own)
        return ends(job, running, at)

    patch.setattr(Coordinator, name, hurries)


def time_spent_listening(patch: Patch) -> None:
    class WholeTime(ListeningClock):
        def __init__(self, rhythm: HeartbeatRhythm, now: float) -> None:
            super().__init__(rhythm, now)
            self._longest_gap = NEVER

    patch.setattr(heartbeat, "ListeningClock", WholeTime)


def time_to_report_after_a_stop(patch: Patch) -> None:
    original = Coordinator.handle

    def counts_it(job: Coordinator, event: job_events.CoordinatorEvent) -> object:
        if isinstance(event, job_events.NodeZeroWasStopped):
            event = replace(event, seconds=0.0)
        return original(job, event)

    patch.setattr(Coordinator, "handle", counts_it)


def leases_after_a_pause_of_node_zero(patch: Patch) -> None:
    patch.setattr(coordinator, "HEARTBEATS_TO_SETTLE", 0.0)


def fork_servers_that_kill(patch: Patch) -> None:
    patch.setattr(ForkServer, "kills_by_lease", False)


def fork_servers_that_refuse(patch: Patch) -> None:
    patch.setattr(ForkServer, "refuses_late_starts", False)


def absolute_times(patch: Patch) -> None:
    patch.setattr(ForkServer, "takes_absolute_times", False)


def ends_of_all_processes(patch: Patch) -> None:
    patch.setattr(ForkServer, "holds", lambda _fork_server, _end: None)


def a_clock_that_runs_while_its_host_sleeps(patch: Patch) -> None:
    patch.setattr(Host, "boot_time", Host.monotonic)


Mutant = Callable[[Patch], None]
MUTANTS: dict[Mutant, Callable[[int], object]] = {
    a_margin: a_connection_is_reset,
    dating_from_sending: an_answer_is_late,
    resets_that_are_no_ends: a_connection_is_reset,
    waiting_for_leases: a_connection_is_reset,
    trust_in_ends: a_member_is_killed,
    no_answer_to_lost_members: a_helper_is_lost,
    answers_dated_when_they_are_sent: node_zero_stops_in_a_turn,
    two_intervals_for_node_zero: a_short_stop,
    three_intervals_for_members: a_short_stop,
    two_intervals_for_leases: a_short_stop,
    ends_that_name_the_lease: a_long_stop,
    nodes_that_come_back: a_long_stop,
    a_lease_from_the_start_on: a_member_stops_at_its_start,
    own_workers_that_have_ended: a_worker_fails,
    time_spent_listening: all_are_stopped,
    time_to_report_after_a_stop: all_are_stopped_while_workers_end,
    leases_after_a_pause_of_node_zero: node_zero_is_paused,
    fork_servers_that_kill: a_connection_is_reset,
    fork_servers_that_refuse: an_order_is_read_late,
    absolute_times: leases_are_read_late,
    ends_of_all_processes: an_agent_is_killed_while_its_fork_server_is_stopped,
    a_clock_that_runs_while_its_host_sleeps: a_long_stop,
}
"""Each with the histories that show what it is for."""


def found_broken(scenario: Callable[[int], object]) -> Iterator[int]:
    """Yield the histories in which the rule is broken."""
    for seed in range(RUNS_PER_MUTANT):
        try:
            scenario(seed)
        except Broken:
            yield seed


@pytest.mark.parametrize("mutant", MUTANTS)
def test_rule_is_broken_without_each_part(mutant: Mutant, monkeypatch: Patch) -> None:
    """Each part is needed."""
    mutant(monkeypatch)

    assert next(found_broken(MUTANTS[mutant]), None) is not None
