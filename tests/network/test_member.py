"""Members: which messages of node 0 they accept, the lease of workers, the loss of node 0."""

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast, get_args

import pytest
from clusterrun.bounds import NodeRank
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.services import Service
from clusterrun.network.channel import (
    ChannelEnd,
    OutgoingChannel,
)
from clusterrun.network.handshake import BadFrame
from clusterrun.network.joining_node import JoinContext, JoiningNode
from clusterrun.network.member import Member, MemberPhase, NodeZeroLoss, check_world
from clusterrun.planning.plan import ProgramOnNode, ProgramWorld, World
from clusterrun.policy import events, messages, outcome, queries
from clusterrun.policy.settings import HeartbeatRhythm
from msgspec.structs import replace

from tests.network.nodes import (
    PATIENCE,
    MemberHarness,
    Notices,
    job_settings,
    join_context,
    ranked_hello,
    world_of_node_1,
)

RHYTHM = HeartbeatRhythm(0.25, 1.5)
SILENCE = "has been silent for 2 s"
LEASE = 1.5 + 2.25 * 0.25
"""Seconds from the sending of a heartbeat."""

FORMED = messages.WorldFormed(world_of_node_1(), "n0")
NEXT = messages.NextAttempt(world_of_node_1(attempt=1), outcome.NodeLost(1, "n1"))


class FakeChannel:
    """A channel to node 0, which is the test."""

    def __init__(self) -> None:
        self.sent: list[messages.FromMember] = []
        self.unread: list[messages.FromCoordinator] = []
        self.end: ChannelEnd | None = None
        self.patience = 0.0

    def fileno(self) -> int:
        return 7

    def limit_silence(self, seconds: float) -> None:
        self.patience = seconds

    def send(self, message: messages.FromMember) -> None:
        self.sent.append(message)

    def receive(self) -> list[messages.FromCoordinator]:
        read, self.unread = self.unread, []
        return read


class LoneMember:
    """A member without an agent, by clocks that a test sets."""

    def __init__(self, **values: Any) -> None:
        """Let it introduce itself; ``values`` are fields of its settings."""
        self.now = 100.0
        """By the clock of leases."""
        self.at = 0.0
        """By that of the agent's loop."""
        self.leases: list[float | None] = []
        """What the fork server is given."""
        self.held: list[int] = []
        self.channel = FakeChannel()
        where = join_context()._replace(
            lease_clock=lambda: self.now,
            renew_lease=self.leases.append,
            hold_connection=self.held.append,
        )
        settings = job_settings(29500, **{"rhythm": RHYTHM, "spares": 1, **values})
        node = JoiningNode(settings, ranked_hello(1), b"", where)
        hello = replace(node.hello, at=self.now)
        self.member = Member(cast("OutgoingChannel", self.channel), node, hello, 0.0)

    def send(self, *sent: messages.FromCoordinator) -> list[messages.FromCoordinator]:
        """Let node 0 send messages; return what the member takes of them."""
        self.channel.unread += sent
        return list(self.member.receive(self.at))


@pytest.fixture
def lone() -> LoneMember:
    """Return a member of a job that outlives nodes."""
    return LoneMember()


def answer(sent: float, at: float = 0.0) -> messages.HeartbeatAnswer:
    """Return the answer to the heartbeat of that time, received at a time of node 0's clock."""
    return messages.HeartbeatAnswer(sent, at)


# The world that it is given.


def check(world: World, previous: int, **values: Any) -> None:
    """Check a world after the attempt ``previous``; ``values`` are of the hello and the settings."""
    says = {name: values.pop(name) for name in ("workers", "programs") if name in values}
    hello = ranked_hello(1, run_id="run", **says)
    check_world(world, hello, job_settings(29500, **values), previous)


@pytest.mark.parametrize(
    ("previous", "changes", "values"),
    [
        (-1, {}, {}),
        (6, {"attempt": 7}, {"max_restarts": 7}),
        # Lost nodes may cause more attempts than restarts.
        (2, {"attempt": 3}, {"max_restarts": 1, "spares": 1}),
        # A node may have workers of services only.
        (-1, {"local_size": 0, "size": 1, "role_size": 1}, {"workers": 0}),
    ],
)
def test_matching_world_is_accepted(
    previous: int, changes: dict[str, Any], values: dict[str, Any]
) -> None:
    check(replace(world_of_node_1(), **changes), previous, **values)


@pytest.mark.parametrize(
    "wrong",
    [
        {"local_size": 2, "size": 3},
        {"local_size": 0},
        {"node_rank": 2},
        {"nodes": 3},
        {"nodes": 1},
        {"first_rank": 2},
        {"size": 1, "role_size": 1},
        {"size": (1 << 21) + 1},
        # It would keep the agent busy for ever.
        {"size": (1 << 31) - 1},
        {"first_role_rank": 2},
        {"role_size": 1},
        {"role_size": 3},
        {"run_id": "other"},
        {"attempt": 1},
        {"attempt": 3},
        {"attempt": 4},
        {"kept_attempts": 10_001},
        {"master_port": None},
        {"programs": (ProgramWorld("main", 0, ()),)},
    ],
    ids=str,
)
def test_world_without_this_node_is_refused(wrong: dict[str, Any]) -> None:
    world = world_of_node_1(attempt=2)
    check(world, 1, max_restarts=2)

    with pytest.raises(BadFrame, match="sent a world that does not fit this node"):
        check(replace(world, **wrong), 1, max_restarts=2)


def test_too_many_attempts_are_refused() -> None:
    with pytest.raises(BadFrame):
        check(world_of_node_1(attempt=3), 2, max_restarts=1)


SERVICE = Service(
    name="server", where="job.yaml:2", program=WorkerProgram(ProgramKind.EXECUTABLE, "serve", ())
)
OFFERS = (
    messages.ProgramOffer("main", (7000,), 7001),
    messages.ProgramOffer("server", (7002, 7003), 7004),
)


def on_node(rank: int, *ports: int, workers: int = 0) -> ProgramOnNode:
    return ProgramOnNode(NodeRank(rank), "10.0.0.1", workers or len(ports), ports, 7001)


MAIN_PROGRAM = ProgramWorld("main", 0, (on_node(0, 7000), on_node(1, 7000)))
SERVER = ProgramWorld("server", 2, (on_node(1, 7002, 7003),))


def test_program_without_workers_on_this_node_is_accepted() -> None:
    world = replace(world_of_node_1(), local_size=0, size=1, role_size=1)
    programs = (replace(MAIN_PROGRAM, nodes=(on_node(0, 7000),)), replace(SERVER, first=1))

    check(
        replace(world, programs=programs), -1, programs=OFFERS[1:], workers=0, services=(SERVICE,)
    )


@pytest.mark.parametrize(
    "programs",
    [
        (),
        (MAIN_PROGRAM,),
        (SERVER, MAIN_PROGRAM),
        (MAIN_PROGRAM, replace(SERVER, name="other")),
        (MAIN_PROGRAM, replace(SERVER, first=3)),
        (MAIN_PROGRAM, replace(SERVER, nodes=())),
        (MAIN_PROGRAM, replace(SERVER, nodes=(on_node(0, 7002, 7003),))),
        (MAIN_PROGRAM, replace(SERVER, nodes=(on_node(1, 7002),))),
        (MAIN_PROGRAM, replace(SERVER, nodes=(on_node(1, 7002, workers=2),))),
        (MAIN_PROGRAM, replace(SERVER, nodes=(on_node(1, 7002, 7003),) * 2)),
        (replace(MAIN_PROGRAM, nodes=(on_node(1, 7000),)), replace(SERVER, first=1)),
    ],
)
def test_programs_that_do_not_match_are_refused(programs: tuple[ProgramWorld, ...]) -> None:
    """A worker's plan needs its program, its number there and its port."""
    world = replace(world_of_node_1(), programs=(MAIN_PROGRAM, SERVER))
    check(world, -1, programs=OFFERS, services=(SERVICE,))

    with pytest.raises(BadFrame):
        check(replace(world, programs=programs), -1, programs=OFFERS, services=(SERVICE,))


@pytest.mark.parametrize("of_attempt", [0, 1])
def test_repeated_or_earlier_attempt_is_refused(lone: LoneMember, of_attempt: int) -> None:
    lone.send(replace(FORMED, world=world_of_node_1(attempt=1)))

    with pytest.raises(BadFrame, match="does not fit this node"):
        lone.send(replace(NEXT, world=world_of_node_1(attempt=of_attempt)))


# What it takes of node 0.

STACKS = queries.Query(0, queries.Topic.STACKS, 4.0)
SENT: dict[str, messages.FromCoordinator] = {
    type(each).__name__: each
    for each in (
        messages.Notice("1 of 2 nodes have joined"),
        messages.Refused(messages.Refusal.GIVE_UP, "full", ""),
        messages.KeepWaiting("n0"),
        FORMED,
        NEXT,
        messages.Paused(paused=True),
        messages.Verdict(outcome.Succeeded(), ""),
        messages.GivenUp("has been silent"),
        messages.Stop(0, "rank 0 on n0 failed"),
        messages.CheckNode(),
        messages.ServicesReady(0, ("server",)),
        messages.EndServices(0),
        messages.SuspensionPossible(),
        messages.HoldRanks(0),
        messages.SaveAt(0, 3),
        messages.CancelSuspension(0),
        STACKS,
        queries.Answer(0, 0, "n0"),
        queries.EndOfAnswers(0),
        messages.PrintStacks("  rank 0: no handler"),
    )
}
TAKEN = {
    MemberPhase.JOINING: {"Notice", "Refused", "KeepWaiting", "WorldFormed"},
    MemberPhase.WAITING: {
        *("Notice", "WorldFormed", "Paused", "Verdict", "GivenUp", "SuspensionPossible")
    },
    MemberPhase.WORKING: {*SENT} - {"Refused", "KeepWaiting", "WorldFormed", "PrintStacks"},
}


def test_each_message_is_allowed_in_some_phase() -> None:
    """This includes messages that are added later."""
    kinds = {each.__name__ for each in get_args(messages.FromCoordinator)}

    assert kinds == {*SENT, "HeartbeatAnswer"}
    assert {*SENT} - {"PrintStacks"} == set().union(*TAKEN.values())


@pytest.mark.parametrize("phase", MemberPhase)
@pytest.mark.parametrize("kind", SENT)
def test_message_of_wrong_phase_is_refused(lone: LoneMember, phase: MemberPhase, kind: str) -> None:
    lone.member.phase = phase

    if kind in TAKEN[phase]:
        assert lone.send(SENT[kind]) == [SENT[kind]]
    else:
        with pytest.raises(BadFrame, match=rf"^sent an unexpected message \({kind}\)$"):
            lone.send(SENT[kind])


@pytest.mark.parametrize(
    ("phase", "kind"),
    [(MemberPhase.JOINING, "KeepWaiting"), (MemberPhase.WORKING, "GivenUp")],
)
def test_plain_job_refuses_to_wait(phase: MemberPhase, kind: str) -> None:
    """A node would wait for ever to be admitted."""
    lone = LoneMember(spares=0)
    lone.member.phase = phase

    with pytest.raises(BadFrame, match=kind):
        lone.send(SENT[kind])


def test_waiting_member_becomes_working(lone: LoneMember) -> None:
    phases = [lone.member.phase]
    for each in (messages.KeepWaiting("n0"), FORMED, NEXT):
        lone.send(each)
        phases.append(lone.member.phase)

    joining, waiting, working = MemberPhase
    assert phases == [joining, waiting, working, working]


# Heartbeats, and the lease of its workers.


def test_heartbeat_is_sent_in_each_interval(lone: LoneMember) -> None:
    """With the time of sending by the clock of leases. The Hello was the first one."""
    lone.member.send_due_heartbeat(0.2)
    for at in (0.25, 0.3, 0.5):
        lone.now = 100.0 + at
        lone.member.send_due_heartbeat(at)

    assert lone.channel.sent == [
        replace(ranked_hello(1), at=100.0),
        messages.Heartbeat(100.25),
        messages.Heartbeat(100.5),
    ]
    assert lone.member.due == 0.75


def test_answer_renews_the_lease_from_the_time_of_sending(lone: LoneMember) -> None:
    """However late it is read; no answer makes the lease shorter."""
    lone.now = 101.5
    lone.send(answer(100.0), answer(100.75), answer(100.5), FORMED)
    before = list(lone.leases)
    lone.member.begin_work(0.0)
    lone.now = 109.0
    lone.send(answer(101.0), answer(100.9), answer(101.25))

    assert before == []
    assert lone.held == [7]
    assert lone.leases == [at + LEASE for at in (100.75, 101.0, 101.25)]


def test_answer_from_the_future_extends_no_lease(lone: LoneMember) -> None:
    """Otherwise a lease could be without end."""
    lone.send(FORMED, answer(1e9))

    assert lone.leases == [100.0 + LEASE]


def test_lease_before_the_first_answer_has_ended(lone: LoneMember) -> None:
    """Node 0 answers the Hello before it forms a world."""
    lone.send(FORMED)
    lone.member.begin_work(0.0)

    assert lone.leases == [0.0]


def test_plain_job_has_no_leases() -> None:
    """The fork server does not keep the connection open either."""
    lone = LoneMember(spares=0)
    lone.send(answer(100.0), FORMED)
    lone.member.begin_work(0.0)
    lone.now = 101.0
    lone.send(answer(100.5))

    assert (lone.leases, lone.held) == ([], [])


def test_node_zero_time_is_known_after_an_answer(lone: LoneMember) -> None:
    """Node 0 has answered in the middle of the exchange: ``ClockOffset`` has more of them."""
    unknown = lone.member.node_zero_time(0.0)
    lone.now = 104.0
    lone.send(answer(100.0, 1003.0))

    assert unknown is None
    assert lone.member.node_zero_time(1.0) == 1003.0 + 2.0 - 1.0


# How node 0 is lost.


@pytest.mark.parametrize(
    ("end", "loss"),
    [
        (None, None),
        (ChannelEnd.UNREACHABLE, NodeZeroLoss(SILENCE, is_silent=True)),
        *(
            (how, NodeZeroLoss("is gone", is_closed=True))
            for how in (ChannelEnd.CLOSED, ChannelEnd.RESET, ChannelEnd.BAD, ChannelEnd.SLOW)
        ),
    ],
)
def test_closed_connection_is_a_loss_of_node_zero(
    lone: LoneMember, end: ChannelEnd | None, loss: NodeZeroLoss | None
) -> None:
    lone.channel.end = end

    assert lone.member.loss(0.0) == loss


def test_slow_name_server_is_not_silence(lone: LoneMember) -> None:
    """Messages that node 0 has sent meanwhile were not read yet."""
    [lone.member.loss(at * 0.25) for at in range(8)]
    lone.member.begin_work(1.75)

    assert [lone.member.loss(1.75 + at) is None for at in (0.5, 1.0, 1.5, 2.0)] == [
        *(True, True, True, False)
    ]


def test_kernel_timeout_of_node_zero_equals_heartbeat_timeout(lone: LoneMember) -> None:
    assert lone.channel.patience == 2.0


# As its agent gets to know it.


class LeasedMember(MemberHarness):
    """A member whose job may continue without it, in the loop of its agent."""

    def __init__(self, where: JoinContext | None = None, **values: Any) -> None:
        self.leases: list[float | None] = []
        where = (where or join_context())._replace(renew_lease=self.leases.append)
        super().__init__(where, **{"rhythm": RHYTHM, "spares": 1, **values})
        first = self.received[0]
        assert isinstance(first, messages.Hello)
        self.sent = first.at
        """The time of its first heartbeat."""

    def wait_for_loss(self) -> events.CoordinatorLost:
        """Let time pass until node 0 is lost, which happens once."""
        lost: list[events.Event] = []
        deadline = time.monotonic() + PATIENCE
        while not lost and time.monotonic() < deadline:
            self.node.ahead += 0.25
            lost += self.node.run_for(0.01)
        [event] = lost
        assert isinstance(event, events.CoordinatorLost)
        assert self.node.run_for(0.05) == []
        return event


@pytest.fixture
def member() -> Iterator[LeasedMember]:
    made = LeasedMember()
    yield made
    made.close()


def test_slow_name_server_extends_no_lease(stack: ExitStack) -> None:
    """The name is looked up when all have joined, after the heartbeat was sent."""

    def slowly(*_: object) -> bool:
        time.sleep(0.4)
        return True

    member = LeasedMember(join_context()._replace(resolves_for_others=slowly))
    stack.callback(member.close)
    [begins] = member.deliver(answer(member.sent), FORMED)

    assert isinstance(begins, events.WorldJoined)
    assert begins.world.attempt == 0
    assert member.leases == [member.sent + LEASE]
    assert abs(member.sent - time.clock_gettime(time.CLOCK_BOOTTIME)) < PATIENCE


def test_node_zero_without_answers_extends_no_lease(member: LeasedMember) -> None:
    """The fork server ends the workers, although node 0 is known to be alive."""
    member.deliver(answer(member.sent), FORMED)
    for number in range(20):
        member.node.ahead += 0.25
        assert member.deliver(messages.Notice(str(number))) == []

    assert member.leases == [member.sent + LEASE]


def test_success_ends_the_lease(member: LeasedMember) -> None:
    """Processes that ranks have left may run on, and no member renews a lease any more."""
    member.deliver(answer(member.sent), FORMED, messages.Verdict(outcome.Succeeded(), ""))

    assert member.leases == [member.sent + LEASE, None]


@pytest.mark.parametrize(
    ("before", "order"),
    [
        ((), messages.Verdict(outcome.NodeLost(1, "n1"), "")),
        ((messages.KeepWaiting("n0"),), messages.Verdict(outcome.NodeLost(1, "n1"), "")),
        ((), messages.Stop(0, "because", outcome.Interrupted(15))),
    ],
)
def test_order_that_comes_with_the_world_is_not_lost(
    member: LeasedMember, before: tuple[messages.FromCoordinator, ...], order: messages.Order
) -> None:
    """A job may be stopped as soon as it starts, or end while this node was stopped."""
    *_, joined, sent = member.deliver(*before, FORMED, order)

    assert isinstance(joined, events.WorldJoined)
    assert isinstance(sent, events.CoordinatorSent)
    assert sent.message == order


def test_query_after_success_is_answered_by_this_node(member: LeasedMember) -> None:
    """Processes that workers have left still run, and the user may query them."""
    member.deliver(FORMED, messages.Verdict(outcome.Succeeded(), ""))

    [end] = member.node.membership.send(queries.Query(3, queries.Topic.RANKS, 1.2))

    assert isinstance(end, events.QueryReceived)
    assert end.message == queries.EndOfAnswers(3)


def freezes(_member: LeasedMember) -> None:
    """Have node 0 send nothing."""


def closes(member: LeasedMember) -> None:
    member.coordinator.close()


def resets(member: LeasedMember) -> None:
    member.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    member.coordinator.close()


@pytest.mark.parametrize(
    ("values", "first", "node_zero", "how", "at_once"),
    [
        # If other nodes may continue, there is no grace period, because the lease is over.
        ({"spares": 1}, FORMED, freezes, SILENCE, True),
        ({"spares": 1}, messages.KeepWaiting("n0"), freezes, SILENCE, True),
        ({"fewest_nodes": 1, "spares": 0}, FORMED, freezes, SILENCE, True),
        ({"spares": 0}, FORMED, freezes, SILENCE, False),
        # No other node continues, so the workers may save.
        ({"spares": 0}, FORMED, closes, "is gone", False),
        ({"spares": 1}, FORMED, closes, "is gone", False),
        ({"spares": 0}, FORMED, resets, "is gone", False),
        ({"spares": 1}, FORMED, resets, "is gone", False),
    ],
)
def test_agent_learns_that_node_zero_is_lost(
    stack: ExitStack,
    values: dict[str, Any],
    first: messages.FromCoordinator,
    node_zero: Callable[[LeasedMember], None],
    how: str,
    *,
    at_once: bool,
) -> None:
    member = LeasedMember(**values)
    stack.callback(member.close)
    member.deliver(first)
    node_zero(member)

    lost = member.wait_for_loss()

    assert (lost.node, lost.at_once) == (outcome.NodeLost(0, "n0", how), at_once)


def test_agent_waits_for_a_paused_node_zero(member: LeasedMember) -> None:
    """Afterwards silence counts again."""
    assert member.deliver(FORMED, messages.Paused(paused=True))[1:] == []
    for _ in range(20):
        member.node.ahead += 0.25
        assert member.node.run_for(0.005) == []
    assert member.deliver(messages.Paused(paused=False)) == []

    assert member.wait_for_loss().node.how == SILENCE


@pytest.mark.parametrize(
    ("sent", "how"),
    [
        ((FORMED, FORMED), "sent an unexpected message (WorldFormed)"),
        (
            (FORMED, replace(NEXT, world=world_of_node_1())),
            "sent a world that does not fit this node",
        ),
        (
            (messages.KeepWaiting("n0"), messages.Stop(0, "no")),
            "sent an unexpected message (Stop)",
        ),
    ],
)
def test_wrong_message_of_node_zero_is_a_loss(
    member: LeasedMember, sent: tuple[messages.FromCoordinator, ...], how: str
) -> None:
    """The reason of the job's end says which message it was."""
    [*_, lost] = member.deliver(*sent)

    assert isinstance(lost, events.CoordinatorLost)
    assert (lost.node, lost.at_once) == (outcome.NodeLost(0, "n0", how), False)
    assert member.coordinator.receive() == []
    assert member.coordinator.end is ChannelEnd.CLOSED


def test_printed_lines_of_node_zero_are_limited(stack: ExitStack, notices: Notices) -> None:
    """Another machine must not fill the screen."""
    member = LeasedMember(join_context(notices))
    stack.callback(member.close)
    member.deliver(FORMED, *[messages.Notice(f"line {number}") for number in range(1000)])
    member.node.run_for(0.2)

    assert notices == [f"line {number}" for number in range(64)]


@pytest.mark.parametrize(
    ("end", "is_orderly"),
    [
        (messages.Verdict(outcome.NodeLost(1, "n1"), ""), True),
        (messages.GivenUp("has been silent"), False),
        (FORMED, False),
    ],
    ids=["verdict", "given up", "no node 0"],
)
def test_fork_server_keeps_the_connection_open(
    stack: ExitStack, end: messages.FromCoordinator, *, is_orderly: bool
) -> None:
    """Node 0 sees it close when no worker is left; at once after a verdict."""
    held: list[int] = []
    where = join_context()._replace(hold_connection=lambda number: held.append(os.dup(number)))
    member = LeasedMember(where)
    stack.callback(member.close)
    member.deliver(FORMED)
    [number] = held
    member.deliver(end)
    member.receive()
    before = member.coordinator.end
    os.close(number)
    if isinstance(end, messages.GivenUp):
        # Its workers have ended.
        member.node.membership.rejoin()
    member.receive()

    assert before is (ChannelEnd.CLOSED if is_orderly else None)
    assert member.coordinator.end is ChannelEnd.CLOSED


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (messages.Stop(0, "no"), "it sent an unexpected message (Stop)"),
        (
            replace(FORMED, world=replace(world_of_node_1(), size=(1 << 31) - 1)),
            "it sent a world that does not fit this node",
        ),
        (messages.Paused(paused=True), "it sent an unexpected message (Paused)"),
    ],
)
def test_peer_that_is_not_node_zero_is_dialed_again(
    sent: messages.FromCoordinator, why: str, stack: ExitStack, notices: Notices
) -> None:
    """A different program may have had the port."""
    member = LeasedMember(join_context(notices, seconds_to_answer=600.0), rdzv_timeout=600.0)
    stack.callback(member.close)
    address = member.socket.getsockname()
    learned = member.deliver(sent)
    listener = stack.enter_context(socket.create_server(address))
    listener.settimeout(PATIENCE)
    member.node.run_for(0.1)
    stack.enter_context(listener.accept()[0])
    member.node.ahead += 5.0
    member.node.run_for(0.01)

    assert learned == []
    [notice] = notices
    assert f"yet: {why} (" in notice
