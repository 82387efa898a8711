"""The desk where looks are answered: in a bounded time, with bounded work, whatever hangs."""

from collections.abc import Iterator, Mapping

import pytest
from clusterrun.control.look_desk import (
    MOST_LOOKS,
    SECONDS_BETWEEN_LOOKS,
    SECONDS_FOR_COORDINATOR,
    SECONDS_FOR_RELAY,
    LookDesk,
    LookPorts,
)
from clusterrun.control.messages import decode_answer
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.events import LinesSeen, LookEvent, LookOrdered
from clusterrun.domain.looks import JobLook, LastLine, Look, LookAtRanks, MissingNode, NodeRanks
from clusterrun.domain.messages import (
    AgentMessage,
    Looked,
    LookEnded,
    NodeLooked,
    RequestLook,
    TakeLook,
)
from clusterrun.domain.ranks import LocalRank

LOOK = LookAtRanks()
SEEN = {LocalRank(0): LastLine("step 1", 0.5)}


def node(rank: int, state: str = "running") -> NodeRanks:
    return NodeRanks(rank, f"n{rank}", 1, 0, state, ())


class Desk:
    """A desk of node 1, and what it sends and asks."""

    def __init__(self) -> None:
        self.sent: list[AgentMessage] = []
        self.asked: list[int] = []
        self.replies: list[JobLook] = []
        ports = LookPorts(self._send, self.asked.append, self._answer, lambda: (0, "n0"))
        self.desk = LookDesk(ports)

    def _send(self, message: AgentMessage) -> tuple[()]:
        self.sent.append(message)
        return ()

    def _answer(self, _look: Look, lines: Mapping[LocalRank, LastLine], _now: float) -> NodeRanks:
        return node(1, "with lines" if lines else "without lines")

    def look(self, now: float = 0.0) -> None:
        """A user looks."""
        list(self.desk.look(LOOK, self._reply, now))

    def take(self, event: LookEvent) -> None:
        list(self.desk.take(event))

    def wait(self, now: float) -> None:
        list(self.desk.events(now))

    def _reply(self, data: bytes) -> None:
        self.replies.append(decode_answer(data, JobLook))


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
    desk.take(LinesSeen(1, SEEN, 0.1))
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
    desk.take(LinesSeen(9, SEEN, 0.1))

    assert desk.sent == [Looked(9, node(1, "with lines"))]


def test_a_relay_that_hangs_is_not_waited_for(desk: Desk) -> None:
    """Nor asked again before it has answered."""
    desk.take(LookOrdered(TakeLook(9, LOOK), 0.0))
    desk.wait(SECONDS_FOR_RELAY)
    desk.take(LookOrdered(TakeLook(10, LOOK), 1.0))
    desk.wait(1.0 + SECONDS_FOR_RELAY)
    desk.take(LinesSeen(9, SEEN, 2.0))
    desk.take(LookOrdered(TakeLook(11, LOOK), 2.0))

    assert desk.sent == [Looked(9, node(1, "without lines")), Looked(10, node(1, "without lines"))]
    assert desk.asked == [9, 11]


def test_a_coordinator_that_does_not_answer_is_named(desk: Desk) -> None:
    """This node's own ranks are shown; what comes later is dropped."""
    desk.look()
    desk.take(LinesSeen(1, SEEN, 0.1))
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
    desk.take(LinesSeen(1, SEEN, 0.1))
    desk.take(LookOrdered(LookEnded(1, ()), 0.1))

    assert (len(desk.sent), len(desk.asked), len(desk.replies)) == (1, 1, 1000)


def test_looks_that_follow_each_other_wait(desk: Desk) -> None:
    """For a tenth of a second, and until others have ended."""
    for number in range(1, MOST_LOOKS + 1):
        at = number * 0.01
        desk.look(at)
        desk.take(LinesSeen(number, SEEN, at))
        desk.take(LookOrdered(LookEnded(number, ()), at))
    assert len(desk.sent) == 1
    assert desk.desk.due == 0.01 + SECONDS_BETWEEN_LOOKS
    desk.wait(desk.desk.due)

    assert len(desk.sent) == 2
