"""A node that node 0 has declared lost ends its workers and rejoins."""

import select
import socket
import time
from contextlib import ExitStack
from typing import Any

import pytest
from clusterrun.loop import NEVER
from clusterrun.network.channel import FROM_MEMBERS, Channel
from clusterrun.network.handshake import coordinator_handshake, packed_address
from clusterrun.policy import events, messages, outcome
from clusterrun.policy.settings import HeartbeatRhythm
from free_ports import free_port

from tests.network.nodes import (
    MemberHarness,
    Node,
    Notices,
    done,
    job_settings,
    join_context,
    run_until,
    world_of_node_1,
)
from tests.network.test_peers import Job

PATIENT = 20.0
"""Seconds."""

RHYTHM = HeartbeatRhythm(0.1, 0.6)
SILENT = messages.GivenUp("has been silent for 0.9 s")
"""T + 3 I."""

NOT_AGAIN = outcome.NodeLost(0, "n0", "has continued without this node, and does not let it rejoin")


@pytest.fixture
def job(stack: ExitStack) -> Job:
    """Return a job of two nodes and a spare, which is node 2."""
    settings = job_settings(free_port(), 3, spares=1, keeps_rendezvous_port=True, rhythm=RHYTHM)
    made = Job(3, settings, spares=1)
    stack.callback(made.close)
    return made


def waiting(job: Job) -> list[messages.Hello]:
    """Return the hellos of the nodes that wait to be admitted."""
    server = job.nodes[0].membership._state  # noqa: SLF001 - to be sure
    return [each.hello for each in server.coordinator.members.waiting]  # type: ignore[union-attr]


def freeze(job: Job, number: int) -> None:
    """Let a node do nothing until node 0 has given it up: prints it, or stops its own workers."""
    others = [each for each in job.nodes if each is not job.nodes[number]]
    run_until(lambda: job.notices[0].has(SILENT.why) or job.received(0), *others)


def test_given_up_spare_rejoins(job: Job) -> None:
    """It has no workers to end, so its agent is not informed."""
    [before] = waiting(job)
    freeze(job, 2)
    given_up = waiting(job)
    run_until(lambda: waiting(job), *job.nodes)

    [after] = waiting(job)
    assert given_up == []
    assert (before.rank, after.rank) == (2, None)
    assert after.identity != before.identity
    assert (after.host, after.pid, after.must) == (before.host, before.pid, before.must)
    assert job.notices[2].has("node 0 has declared this node lost, as it has been silent for 0.9 s")
    assert [type(each) for each in job.nodes[2].received] == [events.WaitListed] * 2
    assert job.notices[0][-2:] == [
        "n2 (pid 12), which was waiting to join, has been silent for 0.9 s",
        "n2 (pid 12) has joined and waits to take the place of a lost node",
    ]


def test_given_up_node_rejoins_after_its_workers_have_ended(job: Job) -> None:
    """A spare has replaced it by then."""
    leases = job.leases[1]
    freeze(job, 1)
    job.nodes[0].send(done(0, []))
    run_until(lambda: job.nodes[2].world, job.nodes[0], job.nodes[2])
    # That the connection has ended is nothing new.
    run_until(lambda: job.received(1), job.nodes[1])
    job.nodes[1].run_for(0.1)
    learned = job.received(1)
    # Nor does it wake the agent again and again.
    began = time.monotonic()
    job.nodes[1].loop.turn(job.nodes[1].loop.clock() + 0.1)
    rested = time.monotonic() - began
    job.nodes[1].send(done(0, [], outcome.Interrupted(15)))
    before = leases[-1]
    job.nodes[1].membership.rejoin()
    run_until(lambda: waiting(job), *job.nodes)

    assert learned == [SILENT]
    assert rested >= 0.09
    assert before is not None
    assert leases[-1] is None
    [again] = waiting(job)
    assert (again.host, again.rank) == ("n1", None)
    assert isinstance(job.nodes[1].received[-1], events.WaitListed)


class GivenUpMember(MemberHarness):
    """A member that waits or works, and is declared lost by a node 0 that ends."""

    def __init__(self, port: int, *, works: bool, **values: Any) -> None:
        self.notices = Notices()
        self.port = port
        # Of a time that a test need not wait for.
        rhythm = HeartbeatRhythm(0.1, PATIENT)
        super().__init__(join_context(self.notices), port=port, rhythm=rhythm, spares=1, **values)
        first = (
            messages.WorldFormed(world_of_node_1(), "n0") if works else messages.KeepWaiting("n0")
        )
        # Before it begins to count, however long it then takes to be here again.
        self.began = self.node.loop.clock()
        self.deliver(first, SILENT, messages.Notice("to the former member"))
        self.coordinator.close()
        if works:
            self.node.membership.rejoin()

    def wait_for_loss(self, *others: Node) -> float:
        """Let time pass until node 0 is lost for good; return how long that took."""
        node = self.node

        def is_lost() -> bool:
            node.ahead += 0.5
            return any(isinstance(each, events.CoordinatorLost) for each in node.received)

        run_until(is_lost, node, *others)
        [lost] = [each for each in node.received if isinstance(each, events.CoordinatorLost)]
        assert (lost.node, lost.at_once) == (NOT_AGAIN, False)
        assert node.run_for(0.05) == []
        assert node.membership.due == NEVER
        return lost.at - self.began


@pytest.mark.parametrize("works", [False, True])
@pytest.mark.parametrize("rdzv_timeout", [PATIENT / 2, 600.0])
def test_rejoining_stops_when_nothing_answers(
    stack: ExitStack, rdzv_timeout: float, *, works: bool
) -> None:
    """After T, for which a process may be stopped at no cost. No line is printed for each attempt."""
    made = GivenUpMember(free_port(), works=works, rdzv_timeout=rdzv_timeout)
    stack.callback(made.close)

    assert PATIENT <= made.wait_for_loss() < PATIENT + 2.0
    notice = "node 0 has declared this node lost, as it has been silent for 0.9 s; rejoining"
    spare = "this node is a spare: it waits to take the place of a lost node"
    assert made.notices == ([] if works else [spare, notice])


@pytest.fixture(params=[False, True], ids=["waits", "works"])
def given_up(stack: ExitStack, request: pytest.FixtureRequest) -> GivenUpMember:
    """Return one whose node 0 is gone."""
    made = GivenUpMember(free_port(), works=request.param, rdzv_timeout=600.0)
    stack.callback(made.close)
    return made


def test_rejoining_stops_when_node_zero_refuses(stack: ExitStack, given_up: GivenUpMember) -> None:
    """Node 0 might admit the node a moment later, so it retries for T."""
    full = Job(2, job_settings(given_up.port, 2, keeps_rendezvous_port=True))
    stack.callback(full.close)

    assert PATIENT <= given_up.wait_for_loss(*full.nodes) < PATIENT + 2.0


@pytest.mark.parametrize("is_clusterrun", [False, True])
def test_rejoining_stops_when_the_peer_is_silent(
    stack: ExitStack, given_up: GivenUpMember, *, is_clusterrun: bool
) -> None:
    """A different program, or a node 0 that freezes after the handshake."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", given_up.port)))
    run_until(lambda: select.select([listener], [], [], 0)[0], given_up.node)
    theirs, where = listener.accept()[0], listener.getsockname()
    steps = coordinator_handshake(b"", packed_address(where)) if is_clusterrun else None
    answering = Channel(FROM_MEMBERS, theirs, steps)
    stack.callback(answering.close)
    if is_clusterrun:
        run_until(answering.receive, given_up.node)

    assert PATIENT <= given_up.wait_for_loss() < PATIENT + 2.0


def test_messages_while_rejoining_are_dropped(given_up: GivenUpMember) -> None:
    membership = given_up.node.membership

    assert membership.send(messages.RequestSuspension("SIGUSR1")) == ()
    assert membership.node_zero_time(0.0) is None
