"""A running job on loopback: messages of one node reach all others."""

import socket
import time
from contextlib import ExitStack, closing
from typing import Any

import pytest
from clusterrun.errors import RendezvousError
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


@pytest.mark.parametrize("values", [{}, {"fewest_nodes": 1}])
def test_loss_of_node_zero_ends_the_job(stack: ExitStack, values: dict[str, Any]) -> None:
    """The other nodes must not continue alone, even if the job survives the loss of other nodes."""
    job = Job(3, job_settings(free_port(), 3, keeps_rendezvous_port=True, **values))
    stack.callback(job.close)
    job.nodes[0].leave()
    (event,) = job.receive(2)

    assert isinstance(event, events.CoordinatorLost)
    assert (event.node, event.at_once) == (outcome.NodeLost(0, "n0"), False)
    job.nodes[2].send(done(0, []))
    assert job.nodes[2].run_for(0.1) == []


def test_late_node_is_refused(stack: ExitStack) -> None:
    """If the coordinator keeps its port."""
    settings = job_settings(free_port(), 2, keeps_rendezvous_port=True)
    job = Job(2, settings)
    stack.callback(job.close)

    late = Node(settings, ranked_hello(1, host="n9"))
    stack.callback(late.leave)

    address = f"127.0.0.1:{settings.ports.value[0]}"
    with pytest.raises(RendezvousError, match=f"the job at {address} has all its 2 nodes: n0, n1"):
        run_until(lambda: False, late, *job.nodes)
    assert job.notices[0] == ["refused n9 (pid 11) at 127.0.0.1: all 2 nodes have joined"]
    for number in range(2):
        job.nodes[number].send(done(0, [result(number)]))
    assert job.reasons() == [outcome.Succeeded()] * 2


def test_master_port_differs_from_a_kept_rendezvous_port(stack: ExitStack) -> None:
    settings = job_settings(free_port(), 2, keeps_rendezvous_port=True)
    job = Job(2, settings)
    stack.callback(job.close)

    (port,) = {world.master_port for world in job.worlds}

    assert port not in {None, *settings.ports.value}
    with closing(bind_wildcard(port or 0)) as store:
        store.listen()
    with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port or 0))


def test_leaving_twice_is_harmless(job: Job) -> None:
    job.nodes[1].leave()
    job.nodes[1].leave()

    assert job.receive(0) == [messages.Stop(0, "node 1 (n1) is gone")]


def test_long_messages_reach_all_nodes(stack: ExitStack) -> None:
    """They are larger than what a socket takes at once."""
    job = Job(3, workers=64)
    stack.callback(job.close)
    tail = "x" * (16 << 10)
    for number, peers in enumerate(job.nodes):
        ranks = range(64 * number, 64 * (number + 1))
        peers.send(done(0, [result(rank, 1, tail=tail) for rank in ranks]))

    (first, *others) = job.reasons()

    assert isinstance(first, outcome.WorkerFailed)
    assert others == [first] * 2


def test_too_long_results_are_cut(job: Job) -> None:
    """Those of node 0's own agent are cut in the same way, because the verdict contains them."""
    cause = result(0, 1, tail="x" * (MAX_FRAME_BYTES + 1))
    job.nodes[0].send(messages.FirstFailure(0, cause, 0.0))
    for number in range(3):
        results = [
            cause
            if number == 0
            else result(number, exit_status=outcome.Killed(15), stopped_by_us=True)
        ]
        job.nodes[number].send(done(0, results))

    (first, *others) = job.reasons()

    assert isinstance(first, outcome.WorkerFailed)
    assert others == [first] * 2


def test_all_nodes_restart_together(stack: ExitStack) -> None:
    """A chosen port is different in the next attempt, the address stays."""
    job = Job(2, job_settings(free_port(), 2, keeps_rendezvous_port=True, max_restarts=1))
    stack.callback(job.close)
    before = job.worlds
    cause = result(1, 7, tail="ValueError: it", clock=100.0)

    job.nodes[1].send(messages.FirstFailure(0, cause, None))
    job.nodes[0].send(done(0, [result(0, exit_status=outcome.Killed(15), stopped_by_us=True)]))
    job.nodes[1].send(done(0, [cause]))
    orders = [job.receive(number, 2)[1] for number in (0, 1)]
    after = [node.world for node in job.nodes if node.world]
    for number in (0, 1):
        job.nodes[number].send(done(1, [result(number)]))

    reasons = [order.reason for order in orders if isinstance(order, messages.NextAttempt)]
    assert reasons == [outcome.WorkerFailed(cause)] * 2
    assert [world.attempt for world in after] == [1, 1]
    assert len({world.master_port for world in after}) == 1
    assert {world.master_port for world in after} != {world.master_port for world in before}
    assert [world.master_addr for world in after] == [world.master_addr for world in before]
    assert [world.first_rank for world in after] == [0, 1]
    assert job.reasons() == [outcome.Succeeded()] * 2


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


def test_set_port_is_kept(stack: ExitStack) -> None:
    """A port that the user sets never changes."""
    port = free_port()
    job = Job(2, job_settings(port, 2, max_restarts=1))
    stack.callback(job.close)

    job.nodes[1].send(messages.FirstFailure(0, result(1, 7), None))
    for number in (0, 1):
        job.nodes[number].send(done(0, [result(number, 7)]))
    for number in (0, 1):
        job.receive(number, 2)

    assert {node.world and (node.world.attempt, node.world.master_port) for node in job.nodes} == {
        (1, port)
    }


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


def test_chosen_port_is_reserved_for_the_whole_job(stack: ExitStack) -> None:
    """Even while a process that the previous attempt has left listens there."""
    port = free_port()
    chosen = Setting[int | None](port, "--master-port")
    settings = job_settings(
        free_port(), 2, keeps_rendezvous_port=True, workers_port=chosen, max_restarts=1
    )
    job = Job(2, settings)
    stack.callback(job.close)
    left = stack.enter_context(closing(bind_wildcard(port)))
    left.listen()

    job.nodes[1].send(messages.FirstFailure(0, result(1, 7), None))
    for number in (0, 1):
        job.nodes[number].send(done(0, [result(number, 7)]))
    for number in (0, 1):
        job.receive(number, 2)

    assert {world.master_port for world in job.worlds} == {port}
    assert {node.world and node.world.master_port for node in job.nodes} == {port}
