"""The desk where looks are answered: in a bounded time, with bounded work, whatever hangs."""

import pytest
from msgspec.msgpack import decode

from tests.network.door import NEVER, LocalRank, events, look_desk, looks, messages

LOOK = looks.LookAtRanks()
PATIENT = looks.LookAtStacks(patient=True)
SEEN = {LocalRank(0): looks.LastLine("step 1", 0.5, 1)}


def node(rank: int, state: str = "running") -> looks.NodeRanks:
    return looks.NodeRanks(rank, f"n{rank}", 1, 0, state, ())


class Desk:
    """A desk of node 1, and what it sends and asks."""

    def __init__(self) -> None:
        self.sent: list[messages.AgentMessage] = []
        self.asked: list[int] = []
        self.replies: list[looks.JobLook] = []
        ports = look_desk.LookPorts(self._send, self._ask, self._answer, lambda: "n0")
        self.desk = look_desk.LookDesk(ports)

    def _send(self, message: messages.AgentMessage) -> tuple[()]:
        self.sent.append(message)
        return ()

    def _ask(self, number: int, look: looks.Look) -> bool:
        if look == looks.LookAtStacks(7):
            return False
        self.asked.append(number)
        return True

    def _answer(
        self, look: looks.Look, seen: looks.Seen | None, _now: float
    ) -> looks.NodeRanks | None:
        if look == PATIENT and seen is None:
            return None
        return node(1, "with lines" if seen else "without lines")

    def look(self, now: float = 0.0) -> None:
        """A user looks."""
        list(self.desk.look(LOOK, self._reply, now))

    def take(self, event: events.LookEvent) -> list[events.Event]:
        """Return what the agent gets to do."""
        return list(self.desk.take(event))

    def wait(self, now: float) -> None:
        list(self.desk.events(now))

    def _reply(self, data: bytes) -> None:
        self.replies.append(decode(data, type=looks.JobLook))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_look_has_the_answers_of_all_nodes(desk: Desk) -> None:
    """In the order of their ranks; what other nodes lack is named."""
    missing = (looks.MissingNode(2, "n2", "does not answer"),)
    desk.look()
    desk.take(events.RelaySaw(1, SEEN, 0.1))
    desk.take(events.LookOrdered(messages.Part(1, node(0)), 0.1))
    before = list(desk.replies)
    desk.take(events.LookOrdered(messages.End(1, missing, 0, ("n7",)), 0.1))

    assert desk.sent == [messages.Ask(1, LOOK)]
    assert before == []
    assert desk.replies == [looks.JobLook((node(0), node(1, "with lines")), missing, ("n7",))]
    assert desk.desk.due == NEVER


def test_another_nodes_look_is_answered_to_the_coordinator(desk: Desk) -> None:
    """Under the coordinator's number."""
    desk.take(events.LookOrdered(messages.Ask(9, LOOK), 0.0))
    desk.take(events.RelaySaw(1, SEEN, 0.1))

    assert desk.sent == [messages.Part(9, node(1, "with lines"))]


def test_what_node_zero_shows_is_the_business_of_its_policy(desk: Desk) -> None:
    """No user waits for it at the desk."""
    end = messages.End(messages.ON_NODE_ZERO)

    assert desk.take(events.LookOrdered(end, 0.0)) == [events.StacksToPrint(end, 0.0)]


def test_stacks_for_the_policy_of_this_node(desk: Desk) -> None:
    """By local rank, as the relay has them; none if it does not answer."""
    for number in (1, 2):
        list(desk.desk.collect_stacks(0.0))
        assert desk.asked[-1] == number

    assert desk.take(events.RelaySaw(1, looks.WorkerStacks((), on_screen=True), 1.0)) == [
        events.StacksCollected((), 1.0)
    ]
    assert list(desk.desk.events(PATIENT.seconds)) == []
    assert desk.desk.due == NEVER


def test_a_node_without_stacks_for_node_zero_does_not_answer(desk: Desk) -> None:
    """It is named there."""
    desk.take(events.LookOrdered(messages.Ask(9, PATIENT), 0.0))
    assert desk.desk.due == PATIENT.seconds
    desk.wait(PATIENT.seconds)

    assert desk.sent == []


def test_a_look_that_needs_nothing_of_the_relay_is_answered_at_once(desk: Desk) -> None:
    """At the stacks of a rank that is elsewhere, for instance."""
    desk.take(events.LookOrdered(messages.Ask(9, looks.LookAtStacks(7)), 0.0))

    assert desk.sent == [messages.Part(9, node(1, "without lines"))]
    assert desk.asked == []


def test_a_relay_that_hangs_is_not_waited_for(desk: Desk) -> None:
    """Stacks take it longer; what comes too late is dropped."""
    desk.take(events.LookOrdered(messages.Ask(9, LOOK), 0.0))
    desk.take(events.LookOrdered(messages.Ask(10, looks.LookAtStacks()), 0.0))
    desk.wait(look_desk.SECONDS_FOR_RELAY)
    before = list(desk.sent)
    desk.wait(look_desk.SECONDS_FOR_STACKS)
    desk.take(events.RelaySaw(1, SEEN, 2.0))

    assert before == [messages.Part(9, node(1, "without lines"))]
    assert desk.sent == [*before, messages.Part(10, node(1, "without lines"))]


def test_a_relay_that_hangs_is_not_asked_for_ever(desk: Desk) -> None:
    """Questions would pile up; it is asked again once it has answered, or after some time."""
    for number in range(100):
        desk.take(events.LookOrdered(messages.Ask(number, LOOK), 0.0))
    hanging = len(desk.asked)
    desk.take(events.RelaySaw(1, SEEN, 1.0))
    desk.take(events.LookOrdered(messages.Ask(100, LOOK), 1.0))
    desk.take(events.LookOrdered(messages.Ask(101, LOOK), 1.0))
    answering = len(desk.asked)
    desk.take(events.LookOrdered(messages.Ask(102, LOOK), look_desk.SECONDS_TO_ASK_AGAIN))

    assert (hanging, answering) == (look_desk.MOST_UNANSWERED, look_desk.MOST_UNANSWERED + 1)
    assert len(desk.asked) == look_desk.MOST_UNANSWERED + 2


def test_a_coordinator_that_does_not_answer_is_named(desk: Desk) -> None:
    """This node's own ranks are shown; what comes later is dropped."""
    desk.look()
    desk.take(events.RelaySaw(1, SEEN, 0.1))
    assert desk.desk.due == LOOK.seconds + look_desk.SECONDS_FOR_COORDINATOR
    desk.wait(desk.desk.due)
    for late in (messages.Part(1, node(0)), messages.End(1)):
        desk.take(events.LookOrdered(late, 2.0))

    [reply] = desk.replies
    assert reply.nodes == (node(1, "with lines"),)
    assert [(each.node_rank, each.host) for each in reply.missing] == [(0, "n0")]


def test_equal_looks_share_one_answer(desk: Desk) -> None:
    """However many look: one question to the relay and one to the coordinator."""
    for _ in range(1000):
        desk.look()
    desk.take(events.RelaySaw(1, SEEN, 0.1))
    desk.take(events.LookOrdered(messages.End(1), 0.1))

    assert (len(desk.sent), len(desk.asked), len(desk.replies)) == (1, 1, 1000)


def test_looks_that_follow_each_other_wait(desk: Desk) -> None:
    """For a tenth of a second, and until others have ended."""
    for number in range(1, look_desk.MOST_LOOKS + 1):
        at = number * 0.01
        desk.look(at)
        desk.take(events.RelaySaw(number, SEEN, at))
        desk.take(events.LookOrdered(messages.End(number), at))
    assert len(desk.sent) == 1
    assert desk.desk.due == 0.01 + look_desk.SECONDS_BETWEEN_LOOKS
    desk.wait(desk.desk.due)

    assert len(desk.sent) == 2
