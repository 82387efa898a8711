"""The desk where looks are answered: in a bounded time, with bounded work, whatever hangs."""

from collections.abc import Iterator

import pytest
from msgspec.msgpack import decode

from tests.control.door import (
    MOST_LOOKS,
    MOST_UNANSWERED,
    NEVER,
    SECONDS_BETWEEN_LOOKS,
    SECONDS_FOR_COORDINATOR,
    SECONDS_FOR_RELAY,
    SECONDS_FOR_STACKS,
    SECONDS_TO_ASK_AGAIN,
    AgentMessage,
    JobLook,
    LastLine,
    LastLines,
    LocalRank,
    Look,
    LookAtRanks,
    LookAtStacks,
    LookDesk,
    Looked,
    LookEnded,
    LookEvent,
    LookOrdered,
    LookPorts,
    MissingNode,
    NodeLooked,
    NodeRanks,
    RelaySaw,
    RequestLook,
    Seen,
    TakeLook,
)

LOOK = LookAtRanks()
SEEN = LastLines({LocalRank(0): LastLine("step 1", 0.5, 1)})


def node(rank: int, state: str = "running") -> NodeRanks:
    return NodeRanks(rank, f"n{rank}", 1, 0, state, ())


class Desk:
    """A desk of node 1, and what it sends and asks."""

    def __init__(self) -> None:
        self.sent: list[AgentMessage] = []
        self.asked: list[int] = []
        self.replies: list[JobLook] = []
        ports = LookPorts(self._send, self._ask, self._answer, lambda: (0, "n0"))
        self.desk = LookDesk(ports)

    def _send(self, message: AgentMessage) -> tuple[()]:
        self.sent.append(message)
        return ()

    def _ask(self, number: int, look: Look) -> bool:
        if look == LookAtStacks(7):
            return False
        self.asked.append(number)
        return True

    def _answer(self, _look: Look, seen: Seen | None, _now: float) -> NodeRanks:
        return node(1, "with lines" if seen else "without lines")

    def look(self, now: float = 0.0) -> None:
        """A user looks."""
        list(self.desk.look(LOOK, self._reply, now))

    def take(self, event: LookEvent) -> None:
        list(self.desk.take(event))

    def wait(self, now: float) -> None:
        list(self.desk.events(now))

    def _reply(self, data: bytes) -> None:
        self.replies.append(decode(data, type=JobLook))


@pytest.fixture
def desk() -> Iterator[Desk]:
    """Return a desk that is closed after the test."""
    made = Desk()
    yield made
    made.desk.close()


def test_a_look_has_the_answers_of_all_nodes(desk: Desk) -> None:
    """In the order of their ranks; what other nodes lack is named."""
    missing = (MissingNode(2, "n2", "does not answer"),)
    desk.look()
    desk.take(RelaySaw(1, SEEN, 0.1))
    desk.take(LookOrdered(NodeLooked(1, node(0)), 0.1))
    before = list(desk.replies)
    desk.take(LookOrdered(LookEnded(1, missing, ("n7",)), 0.1))

    assert desk.sent == [RequestLook(1, LOOK)]
    assert before == []
    assert desk.replies == [JobLook((node(0), node(1, "with lines")), missing, ("n7",))]
    assert desk.desk.due == NEVER


def test_another_nodes_look_is_answered_to_the_coordinator(desk: Desk) -> None:
    """Under the coordinator's number."""
    desk.take(LookOrdered(TakeLook(9, LOOK), 0.0))
    desk.take(RelaySaw(1, SEEN, 0.1))

    assert desk.sent == [Looked(9, node(1, "with lines"))]


def test_a_look_that_needs_nothing_of_the_relay_is_answered_at_once(desk: Desk) -> None:
    """At the stacks of a rank that is elsewhere, for instance."""
    desk.take(LookOrdered(TakeLook(9, LookAtStacks(7)), 0.0))

    assert desk.sent == [Looked(9, node(1, "without lines"))]
    assert desk.asked == []


def test_a_relay_that_hangs_is_not_waited_for(desk: Desk) -> None:
    """Stacks take it longer; what comes too late is dropped."""
    desk.take(LookOrdered(TakeLook(9, LOOK), 0.0))
    desk.take(LookOrdered(TakeLook(10, LookAtStacks()), 0.0))
    desk.wait(SECONDS_FOR_RELAY)
    before = list(desk.sent)
    desk.wait(SECONDS_FOR_STACKS)
    desk.take(RelaySaw(1, SEEN, 2.0))

    assert before == [Looked(9, node(1, "without lines"))]
    assert desk.sent == [*before, Looked(10, node(1, "without lines"))]


def test_a_relay_that_hangs_is_not_asked_for_ever(desk: Desk) -> None:
    """Questions would pile up; it is asked again once it has answered, or after some time."""
    for number in range(100):
        desk.take(LookOrdered(TakeLook(number, LOOK), 0.0))
    hanging = len(desk.asked)
    desk.take(RelaySaw(1, SEEN, 1.0))
    desk.take(LookOrdered(TakeLook(100, LOOK), 1.0))
    desk.take(LookOrdered(TakeLook(101, LOOK), 1.0))
    answering = len(desk.asked)
    desk.take(LookOrdered(TakeLook(102, LOOK), SECONDS_TO_ASK_AGAIN))

    assert (hanging, answering) == (MOST_UNANSWERED, MOST_UNANSWERED + 1)
    assert len(desk.asked) == MOST_UNANSWERED + 2


def test_a_coordinator_that_does_not_answer_is_named(desk: Desk) -> None:
    """This node's own ranks are shown; what comes later is dropped."""
    desk.look()
    desk.take(RelaySaw(1, SEEN, 0.1))
    assert desk.desk.due == SECONDS_FOR_COORDINATOR
    desk.wait(SECONDS_FOR_COORDINATOR)
    for late in (NodeLooked(1, node(0)), LookEnded(1, ())):
        desk.take(LookOrdered(late, 2.0))

    [reply] = desk.replies
    assert reply.nodes == (node(1, "with lines"),)
    assert [(each.node_rank, each.host) for each in reply.missing] == [(0, "n0")]


def test_equal_looks_share_one_answer(desk: Desk) -> None:
    """However many look: one question to the relay and one to the coordinator."""
    for _ in range(1000):
        desk.look()
    desk.take(RelaySaw(1, SEEN, 0.1))
    desk.take(LookOrdered(LookEnded(1, ()), 0.1))

    assert (len(desk.sent), len(desk.asked), len(desk.replies)) == (1, 1, 1000)


def test_looks_that_follow_each_other_wait(desk: Desk) -> None:
    """For a tenth of a second, and until others have ended."""
    for number in range(1, MOST_LOOKS + 1):
        at = number * 0.01
        desk.look(at)
        desk.take(RelaySaw(number, SEEN, at))
        desk.take(LookOrdered(LookEnded(number, ()), at))
    assert len(desk.sent) == 1
    assert desk.desk.due == 0.01 + SECONDS_BETWEEN_LOOKS
    desk.wait(desk.desk.due)

    assert len(desk.sent) == 2
