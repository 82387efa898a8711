"""A running job on loopback: what one node tells, all the others hear."""

import select
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from free_ports import free_port

from tests.plans import world
from tests.rendezvous.door import (
    FROM_COORDINATOR,
    SECONDS_FOR_VERDICT,
    Channel,
    CoordinatorLost,
    CoordinatorSent,
    CoordinatorSought,
    EndedExternally,
    Failing,
    FirstFailure,
    Interrupted,
    JoiningNode,
    Killed,
    NextAttempt,
    NodeLost,
    Order,
    OutputGone,
    Peers,
    Reason,
    RendezvousError,
    Stop,
    Succeeded,
    Terms,
    Verdict,
    WorkerFailed,
    bound_everywhere,
    done,
    heartbeat_rhythm,
    join,
)
from tests.rendezvous.nodes import PATIENCE, Notices, fate, hooks, job_terms, ranked_hello

WORLD = world(2)


SECONDS_UNTIL_QUIET = 0.3
"""On loopback messages arrive at once; an agent's answer may take a turn or two."""


class Job:
    """The nodes of one job, each as its agent sees the others."""

    def __init__(self, nodes: int, terms: Terms | None = None, *, workers: int = 1) -> None:
        terms = terms or job_terms(free_port(), nodes)
        self.notices = [Notices() for _ in range(nodes)]

        def join_as(number: int) -> Peers:
            introduction = ranked_hello(number, workers=workers)
            peers = join(JoiningNode(terms, introduction, b"", hooks(self.notices[number])))
            assert isinstance(peers, Peers)
            return peers

        with ThreadPoolExecutor(nodes) as executor:
            self.nodes = list(executor.map(join_as, range(nodes)))
        self.received: list[list[Order | CoordinatorLost | CoordinatorSought]] = [
            [] for _ in range(nodes)
        ]
        """What each node has received from the coordinator, or that it is lost."""

    def receives(
        self, number: int, count: int = 1
    ) -> list[Order | CoordinatorLost | CoordinatorSought]:
        """Wait until a node has received ``count`` messages; return all of them."""
        deadline = time.monotonic() + PATIENCE
        while len(self.received[number]) < count:
            assert time.monotonic() < deadline, self.received
            self.go_on(1.0)
        return self.received[number]

    def go_on(self, seconds: float) -> None:
        """Let all nodes do what there is to do, as their agents would."""
        living = [peers for peers in self.nodes if not peers.lost]
        now = time.monotonic()
        due = min([now + seconds, *(peers.due for peers in living)])
        ready, _, _ = select.select(living, [], [], max(0.0, due - now))
        now = time.monotonic()
        for peers in (each for each in living if each in ready or now >= each.due):
            self.received[self.nodes.index(peers)] += received(peers)

    def goes_quiet(self) -> None:
        """Let all that is under way arrive, and what follows from it."""
        until = time.monotonic() + SECONDS_UNTIL_QUIET
        while time.monotonic() < until:
            self.go_on(SECONDS_UNTIL_QUIET / 10)

    def reasons(self) -> list[Reason]:
        """Wait for the verdict on every node, and return it for each."""
        for number in range(len(self.nodes)):
            while not any(isinstance(each, Verdict) for each in self.received[number]):
                self.receives(number, len(self.received[number]) + 1)
        return [last.reason for [*_, last] in self.received if isinstance(last, Verdict)]

    def close(self) -> None:
        """Let all leave, node 0 last."""
        for peers in reversed(self.nodes):
            peers.leave()


def received(peers: Peers) -> Iterator[Order | CoordinatorLost | CoordinatorSought]:
    """Yield what a node has received now."""
    for event in peers.events(time.monotonic()):
        assert isinstance(event, CoordinatorSent | CoordinatorLost | CoordinatorSought)
        yield event.message if isinstance(event, CoordinatorSent) else event


@pytest.fixture
def job(stack: ExitStack) -> Job:
    """Return a job of three nodes."""
    made = Job(3)
    stack.callback(made.close)
    return made


def test_success_on_all_nodes(job: Job) -> None:
    """When the last one is done."""
    for number in range(3):
        job.nodes[number].send(done(0, [fate(number)], 0.0, None))

    assert job.reasons() == [Succeeded()] * 3
    assert [peers.lost for peers in job.nodes] == [False, True, True]


def test_a_failure_on_one_node_stops_all(job: Job) -> None:
    """And all report the same."""
    cause = fate(1, 7, tail="ValueError: it", clock=100.0)
    job.nodes[1].send(FirstFailure(0, cause, 0.1))
    orders = [job.receives(number)[0] for number in range(3)]
    for number in (0, 2):
        stopped = fate(number, ending=Killed(15), stopped_by_us=True)
        job.nodes[number].send(done(0, [stopped], 0.0, None))
    job.nodes[1].send(done(0, [cause], 101.0, None))

    assert orders == [Stop(0, "rank 1 on n1 failed")] * 3
    assert job.reasons() == [WorkerFailed(cause)] * 3


def test_a_failure_on_node_zero_stops_all_nodes(job: Job) -> None:
    """Its agent is a member like any other."""
    job.nodes[0].send(FirstFailure(0, fate(0, 1), 0.0))

    assert [type(job.receives(number)[0]) for number in range(3)] == [Stop] * 3


def test_a_signal_on_one_node_ends_all(job: Job) -> None:
    """Ctrl-C, or a scheduler that signals one node first."""
    job.nodes[2].send(EndedExternally(0, Interrupted(2)))
    (order,) = job.receives(1)
    for peers in job.nodes:
        peers.send(done(0, [], 0.0, None))

    assert order == Stop(0, "n2 got SIGINT", Interrupted(2))
    assert job.reasons() == [Interrupted(2)] * 3


def test_an_external_cause_on_one_node_may_be_reported_at_its_end(job: Job) -> None:
    """As the reason of the end."""
    job.nodes[0].send(done(0, [], 0.0, OutputGone()))
    assert job.receives(1)
    for peers in job.nodes[1:]:
        peers.send(done(0, [], 0.0, None))

    assert job.reasons() == [OutputGone()] * 3


def test_a_node_that_goes_without_a_word_is_lost(job: Job) -> None:
    """Its agent was killed."""
    job.nodes[1].leave()
    (order,) = job.receives(2)
    for number in (0, 2):
        job.nodes[number].send(done(0, [fate(number, 1)], 0.0, None))
    while not all(len(job.received[number]) > 1 for number in (0, 2)):
        job.go_on(1.0)

    assert order == Stop(0, "node 1 (n1) is gone")
    assert [job.received[number][1] for number in (0, 2)] == [Verdict(NodeLost(1, "n1"), "")] * 2


def test_without_node_zero_the_job_is_over(job: Job) -> None:
    """A part of it must not go on alone."""
    job.nodes[0].leave()
    (event,) = job.receives(2)

    assert isinstance(event, CoordinatorLost)
    assert event.host == "n0"
    assert job.nodes[2].lost
    job.nodes[2].send(done(0, [], 0.0, None))
    assert list(job.nodes[2].events(0.0)) == []


def test_node_zero_waits_until_all_have_the_verdict(job: Job) -> None:
    """It has nothing else to do, and they have no other way to know."""
    for number in range(3):
        job.nodes[number].send(done(0, [fate(number)], 0.0, None))
    while not job.received[0]:
        job.received[0] += received(job.nodes[0])

    with ThreadPoolExecutor(1) as executor:
        leaving = executor.submit(job.nodes[0].leave)
        verdicts = [each for number in (1, 2) for each in job.receives(number)]
        before = time.monotonic()
        leaving.result(PATIENCE)

    assert time.monotonic() - before < SECONDS_FOR_VERDICT / 2
    assert verdicts == [Verdict(Succeeded(), "")] * 2


def test_a_late_node_is_refused_and_the_job_undisturbed(stack: ExitStack) -> None:
    """Where the coordinator keeps its endpoint."""
    terms = job_terms(free_port(), 2, keeps_joining_port=True)
    job = Job(2, terms)
    stack.callback(job.close)

    with ThreadPoolExecutor(1) as executor:
        late = executor.submit(join, JoiningNode(terms, ranked_hello(1, host="n9"), b"", hooks()))
        while not late.done():
            job.go_on(0.01)

    place = f"127.0.0.1:{terms.ports.value[0]}"
    with pytest.raises(RendezvousError, match=f"the job at {place} has all its 2 nodes: n0, n1"):
        late.result()
    assert job.notices[0] == ["refused n9 (pid 11) at 127.0.0.1: all 2 nodes have joined"]
    for number in range(2):
        job.nodes[number].send(done(0, [fate(number)], 0.0, None))
    assert job.reasons() == [Succeeded()] * 2


def test_workers_meet_at_another_port_than_their_agents(stack: ExitStack) -> None:
    """If the coordinator keeps its own."""
    terms = job_terms(free_port(), 2, keeps_joining_port=True)
    job = Job(2, terms)
    stack.callback(job.close)

    (port,) = {peers.world(0).master_port for peers in job.nodes}

    assert port not in {None, *terms.ports.value}
    with closing(bound_everywhere(port or 0)) as store:
        store.listen()
    with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port or 0))


def test_what_came_with_the_world_is_not_forgotten() -> None:
    """A job may be stopped as soon as it begins."""
    ours, theirs = socket.socketpair()
    peers = Peers(
        WORLD,
        "n0",
        Channel(FROM_COORDINATOR, ours),
        early=[Stop(0, "because", Interrupted(15))],
        server=None,
        rhythm=heartbeat_rhythm(2, 15.0),
        hooks=hooks(),
    )

    due_at_first = peers.due
    events = [*peers.events(1.0), *peers.events(2.0)]
    due_later = peers.due

    theirs.close()
    peers.leave()
    assert due_at_first == 0.0
    assert due_later > time.monotonic()
    assert events == [CoordinatorSent(Stop(0, "because", Interrupted(15)), 1.0)]


def test_leaving_twice_does_no_harm(job: Job) -> None:
    """The agent's way out has several doors."""
    job.nodes[1].leave()
    job.nodes[1].leave()

    assert job.nodes[1].lost


def test_it_is_an_event_source(job: Job) -> None:
    """With nothing to flush: its own epoll watches what it sends."""
    (source,) = job.nodes[1].sources

    source.flush()

    assert not source.wants_write
    assert not source.lost
    assert list(source.events(time.monotonic())) == []


def test_long_last_words_reach_all(stack: ExitStack) -> None:
    """Messages larger than what a socket takes at once."""
    job = Job(3, workers=64)
    stack.callback(job.close)
    tail = "x" * (16 << 10)
    for number, peers in enumerate(job.nodes):
        ranks = range(64 * number, 64 * (number + 1))
        peers.send(done(0, [fate(rank, 1, tail=tail) for rank in ranks], 0.0, None))

    (first, *others) = job.reasons()

    assert isinstance(first, WorkerFailed)
    assert others == [first] * 2


def test_all_nodes_begin_anew_together(stack: ExitStack) -> None:
    """Each with the world of the next attempt: a chosen port is fresh, the address stays."""
    failing = Failing(max_restarts=1)
    job = Job(2, job_terms(free_port(), 2, keeps_joining_port=True, failing=failing))
    stack.callback(job.close)
    before = [peers.world(0) for peers in job.nodes]
    cause = fate(1, 7, tail="ValueError: it", clock=100.0)

    job.nodes[1].send(FirstFailure(0, cause, 0.1))
    job.nodes[0].send(done(0, [fate(0, ending=Killed(15), stopped_by_us=True)], 0.0, None))
    job.nodes[1].send(done(0, [cause], 101.0, None))
    orders = [job.receives(number, 2)[1] for number in (0, 1)]
    after = [peers.world(1) for peers in job.nodes]
    for number in (0, 1):
        job.nodes[number].send(done(1, [fate(number)], 0.0, None))

    reasons = [order.reason for order in orders if isinstance(order, NextAttempt)]
    assert reasons == [WorkerFailed(cause)] * 2
    assert [world.attempt for world in after] == [1, 1]
    assert len({world.master_port for world in after}) == 1
    assert {world.master_port for world in after} != {world.master_port for world in before}
    assert [world.master_addr for world in after] == [world.master_addr for world in before]
    assert [world.first_rank for world in after] == [0, 1]
    assert job.reasons() == [Succeeded()] * 2


def test_a_given_port_is_kept(stack: ExitStack) -> None:
    """A port that the user sets never changes."""
    port = free_port()
    job = Job(2, job_terms(port, 2, failing=Failing(max_restarts=1)))
    stack.callback(job.close)

    job.nodes[1].send(FirstFailure(0, fate(1, 7), 0.1))
    for number in (0, 1):
        job.nodes[number].send(done(0, [fate(number, 7)], 0.0, None))
    for number in (0, 1):
        job.receives(number, 2)

    assert {peers.world(1).master_port for peers in job.nodes} == {port}
    with pytest.raises(AssertionError, match="attempt 0, and node 0 is at 1"):
        job.nodes[0].world(0)
