"""A running job on loopback: messages of one node reach all others."""

import socket
import time
from contextlib import ExitStack, closing

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.network.channel import MAX_FRAME_BYTES
from clusterrun.planning.plan import World
from clusterrun.policy import events, messages, outcome
from clusterrun.policy.settings import RendezvousSettings
from clusterrun.ports import bind_wildcard
from free_ports import free_port

from tests.network.nodes import (
    PATIENCE,
    Node,
    Notices,
    done,
    job_settings,
    join_context,
    ranked_hello,
    result,
    run_until,
)

FROM_OTHERS = (
    events.WaitListed,
    events.WorldJoined,
    events.CoordinatorSent,
    events.CoordinatorLost,
)

SECONDS_UNTIL_QUIET = 0.3
"""On loopback messages arrive at once; an agent's answer may take a turn or two."""


class Job:
    """The nodes of one job, each as its agent sees the others."""

    def __init__(
        self,
        nodes: int,
        settings: RendezvousSettings | None = None,
        *,
        workers: int = 1,
        token: bytes = b"",
        spares: int = 0,
    ) -> None:
        """Let them join; the last ``spares`` of them wait as spares."""
        settings = settings or job_settings(free_port(), nodes)
        self.notices = [Notices() for _ in range(nodes)]
        self.leases: list[list[float | None]] = [[] for _ in range(nodes)]
        """What each fork server is given."""
        self.nodes = [
            Node(
                settings,
                ranked_hello(number, workers=workers),
                token,
                join_context(self.notices[number])._replace(renew_lease=self.leases[number].append),
            )
            for number in range(nodes)
        ]
        self.worlds: list[World] = []
        """Their first ones."""
        working = self.nodes[: nodes - spares]
        run_until(
            lambda: (
                all(each.received for each in self.nodes) and all(each.world for each in working)
            ),
            *self.nodes,
        )
        self.worlds = [each.world for each in self.nodes if each.world is not None]

    def received(self, number: int) -> list[messages.Order | events.CoordinatorLost]:
        """Return what a node has received from the coordinator, or that it is lost."""
        received = list[messages.Order | events.CoordinatorLost]()
        for each in self.nodes[number].received:
            assert isinstance(each, FROM_OTHERS)
            if isinstance(each, events.CoordinatorSent):
                received.append(each.message)
            elif isinstance(each, events.CoordinatorLost):
                received.append(each)
        return received

    def receive(self, number: int, count: int = 1) -> list[messages.Order | events.CoordinatorLost]:
        """Wait until a node has received ``count`` messages; return all of them."""
        run_until(lambda: len(self.received(number)) >= count, *self.nodes)
        return self.received(number)

    def wait_until_quiet(self) -> None:
        """Let all that is under way arrive, and what follows from it."""
        until = time.monotonic() + SECONDS_UNTIL_QUIET
        run_until(lambda: time.monotonic() > until, *self.nodes)

    def reasons(self) -> list[outcome.Reason]:
        """Wait for the verdict on every node, and return it for each."""

        def verdicts() -> list[outcome.Reason]:
            ends = [self.received(number)[-1:] for number in range(len(self.nodes))]
            return [
                last.reason for [last] in filter(None, ends) if isinstance(last, messages.Verdict)
            ]

        run_until(lambda: len(verdicts()) == len(self.nodes), *self.nodes)
        return verdicts()

    def close(self) -> None:
        """Let all leave, node 0 last."""
        for node in reversed(self.nodes):
            node.leave()


@pytest.fixture
def job(stack: ExitStack) -> Job:
    """Return a job of three nodes."""
    made = Job(3)
    stack.callback(made.close)
    return made


def test_failure_on_one_node_stops_all(job: Job) -> None:
    """All nodes report the same."""
    cause = result(1, 7, tail="ValueError: it", clock=100.0)
    job.nodes[1].send(messages.FirstFailure(0, cause, None))
    orders = [job.receive(number)[0] for number in range(3)]
    for number in (0, 2):
        stopped = result(number, exit_status=outcome.Killed(15), stopped_by_us=True)
        job.nodes[number].send(done(0, [stopped]))
    job.nodes[1].send(done(0, [cause]))

    assert orders == [messages.Stop(0, "rank 1 on n1 failed")] * 3
    assert job.reasons() == [outcome.WorkerFailed(cause)] * 3


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(16 << 10, id="more than a socket takes"),
        pytest.param(MAX_FRAME_BYTES + 1, id="cut"),
    ],
)
def test_long_messages_reach_all_nodes(stack: ExitStack, tail: int) -> None:
    """Those of node 0's own agent are cut in the same way, because the verdict contains them."""
    job = Job(3, workers=64)
    stack.callback(job.close)
    for number, peers in enumerate(job.nodes):
        ranks = range(64 * number, 64 * number + (64 if tail < MAX_FRAME_BYTES else 1))
        peers.send(done(0, [result(rank, 1, tail="x" * tail) for rank in ranks]))

    (first, *others) = job.reasons()

    assert isinstance(first, outcome.WorkerFailed)
    assert others == [first] * 2


def ports_of_attempts(stack: ExitStack, job: Job) -> list[int | None]:
    """Let rank 1 fail, so all restart once; return the master ports of both attempts."""
    stack.callback(job.close)
    cause = result(1, 7, tail="ValueError: it", clock=100.0)
    job.nodes[1].send(messages.FirstFailure(0, cause, None))
    job.nodes[0].send(done(0, [result(0, exit_status=outcome.Killed(15), stopped_by_us=True)]))
    job.nodes[1].send(done(0, [cause]))
    orders = [job.receive(number, 2)[1] for number in (0, 1)]
    worlds = [node.world for node in job.nodes if node.world]
    for number in (0, 1):
        job.nodes[number].send(done(1, [result(number)]))

    reasons = [order.reason for order in orders if isinstance(order, messages.NextAttempt)]
    assert reasons == [outcome.WorkerFailed(cause)] * 2
    assert [world.attempt for world in worlds] == [1, 1]
    assert [world.first_rank for world in worlds] == [0, 1]
    assert [it.master_addr for it in worlds] == [it.master_addr for it in job.worlds]
    assert job.reasons() == [outcome.Succeeded()] * 2
    [before], [after] = ({it.master_port for it in each} for each in (job.worlds, worlds))
    return [before, after]


def test_free_port_is_another_one_in_each_attempt(stack: ExitStack) -> None:
    """And none of them is the rendezvous port, which is kept for nodes that join."""
    settings = job_settings(free_port(), 2, keeps_rendezvous_port=True, max_restarts=1)
    job = Job(2, settings)
    (port,) = {world.master_port for world in job.worlds}
    with closing(bind_wildcard(port or 0)) as store:
        store.listen()
    with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port or 0))

    assert len({None, *settings.ports.value, *ports_of_attempts(stack, job)}) == 4


def test_set_port_is_kept(stack: ExitStack) -> None:
    port = free_port()
    job = Job(2, job_settings(port, 2, max_restarts=1))

    assert ports_of_attempts(stack, job) == [port, port]


def test_chosen_port_is_reserved_for_the_whole_job(stack: ExitStack) -> None:
    """Even while a process that the previous attempt has left listens there."""
    port = free_port()
    chosen = Setting[int | None](port, "--master-port")
    job = Job(
        2,
        job_settings(
            free_port(), 2, keeps_rendezvous_port=True, workers_port=chosen, max_restarts=1
        ),
    )
    left = stack.enter_context(closing(bind_wildcard(port)))
    left.listen()

    assert ports_of_attempts(stack, job) == [port, port]


def test_all_nodes_use_node_zeros_clock(stack: ExitStack) -> None:
    """As soon as a heartbeat or the Hello was answered; before that the offset is not known."""
    alone = Node(job_settings(free_port()), ranked_hello(1))
    stack.callback(alone.leave)
    job = Job(3)
    stack.callback(job.close)
    node_zero = job.nodes[0]
    node_zero.ahead = 1000.0
    own = node_zero.membership.node_zero_time(5.0)
    dates = [each.membership.node_zero_time(5.0) for each in job.nodes[1:]]

    assert alone.membership.node_zero_time(5.0) is None
    assert own is not None
    assert abs(node_zero.loop.clock() - 5.0 - own) < PATIENCE
    # Those that joined before its clock was changed.
    assert all(each is not None and abs(own - 1000.0 - each) < PATIENCE for each in dates)


def test_success_ends_the_lease_of_members(stack: ExitStack) -> None:
    """The job has succeeded, and node 0 sees the others leave."""
    settings = job_settings(free_port(), 3, fewest_nodes=1, keeps_rendezvous_port=True)
    job = Job(3, settings)
    stack.callback(job.close)
    begun = [bool(leases) for leases in job.leases]
    for node in job.nodes:
        node.send(messages.RanksSucceeded(0))

    assert job.reasons() == [outcome.Succeeded()] * 3
    job.wait_until_quiet()
    assert begun == [False, True, True]
    assert [leases[-1] for leases in job.leases] == [None] * 3


def test_messages_to_node_zeros_agent_stay_in_order(job: Job) -> None:
    """The answer to a message comes after what was sent before."""
    node_zero = job.nodes[0]
    before = events.CoordinatorSent(messages.Stop(0, "before"), 0.0)
    node_zero.loop.add([before])

    assert node_zero.membership.send(messages.FirstFailure(0, result(0, 1), 0.0)) == ()
    first, second = node_zero.loop.next_event(), node_zero.loop.next_event()

    assert first == before
    assert isinstance(second, events.CoordinatorSent)
    assert second.message == messages.Stop(0, "rank 0 on n0 failed")


def test_signal_at_the_moment_the_world_forms_ends_the_job(job: Job) -> None:
    """Node 0 reads its signal first, and ends the job of all."""
    job.nodes[0].membership.abandon(outcome.Interrupted(15))

    assert job.receive(1) == [messages.Stop(0, "n0 got SIGTERM", outcome.Interrupted(15))]
