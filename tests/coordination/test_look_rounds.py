"""Looks into the running job: who is asked, whose answers go where, who is named as missing."""

from tests.coordination.door import (
    IS_PAUSED,
    MOST_OF_A_MEMBER,
    MOST_PER_SECOND,
    NEVER,
    NO_ANSWER,
    FromMember,
    LookAtRanks,
    Looked,
    LookEnded,
    MissingNode,
    NodeLooked,
    NodeRanks,
    RequestLook,
    TakeLook,
    coordinator_events,
)
from tests.coordination.door import (
    SECONDS_TO_ANSWER_A_LOOK as SECONDS_TO_ANSWER,
)
from tests.rendezvous.replay import Replay, running

LOOK = LookAtRanks()


def answer(number: int) -> NodeRanks:
    """Return the answer of the node with this rank."""
    return NodeRanks(number, f"n{number}", 10, 0, "running", ())


def sends(job: Replay, number: int, message: FromMember) -> None:
    """A member sends a message about a look."""
    assert isinstance(message, RequestLook | Looked)
    job.happens(coordinator_events.MessageReceived(number, message, job.now))


def asks(job: Replay, number: int, own: int = 1) -> None:
    """A user of a node looks into the job."""
    sends(job, number, RequestLook(own, LOOK))


def answers(job: Replay, number: int, round_: int = 1) -> None:
    """A node answers."""
    sends(job, number, Looked(round_, answer(number)))


def sent(job: Replay, kind: type) -> list[tuple[int, object]]:
    """Return the messages of this kind, with their receivers."""
    return [(number, message) for number, message in job.sent if isinstance(message, kind)]


def test_all_other_nodes_answer_to_the_one_that_asks() -> None:
    """Each answer is passed on at once, with the asking agent's own number."""
    job = running(3)
    asks(job, 1, own=7)
    answers(job, 2)
    before = sent(job, LookEnded)
    answers(job, 0)

    assert sent(job, TakeLook) == [(0, TakeLook(1, LOOK)), (2, TakeLook(1, LOOK))]
    assert sent(job, NodeLooked) == [
        (1, NodeLooked(7, answer(2))),
        (1, NodeLooked(7, answer(0))),
    ]
    assert before == []
    assert sent(job, LookEnded) == [(1, LookEnded(7, ()))]


def test_the_only_node_asks_no_other() -> None:
    """It has its own answer."""
    job = running(1)
    job.waits(1.0)
    asks(job, 0)

    assert sent(job, TakeLook) == []
    assert sent(job, LookEnded) == [(0, LookEnded(1, ()))]


def test_nodes_that_do_not_answer_are_named() -> None:
    """After a second or so; a late answer counts no more."""
    job = running(3)
    asks(job, 0)
    answers(job, 1)
    job.waits(SECONDS_TO_ANSWER - 0.1)
    before = sent(job, LookEnded)
    job.waits(0.2)
    answers(job, 2)

    missing = (MissingNode(2, "n2", NO_ANSWER),)
    assert before == []
    assert sent(job, LookEnded) == [(0, LookEnded(1, missing))]
    assert len(sent(job, NodeLooked)) == 1


def test_a_second_answer_is_dropped() -> None:
    """One node, one answer; one of no round is dropped, too."""
    job = running(3)
    asks(job, 0)
    for number, round_ in ((1, 1), (1, 1), (2, 9)):
        answers(job, number, round_)

    assert len(sent(job, NodeLooked)) == 1


def test_lost_and_paused_nodes_are_named_and_not_awaited() -> None:
    """A lost one with how it was lost."""
    job = running(4)
    job.is_paused(2)
    job.goes(3)
    asks(job, 1)
    answers(job, 0)

    [(_, ended)] = sent(job, LookEnded)
    assert isinstance(ended, LookEnded)
    assert [number for number, _ in sent(job, TakeLook)] == [0]
    assert ended.missing == (
        MissingNode(2, "n2", IS_PAUSED),
        MissingNode(3, "n3", "is lost: it is gone"),
    )


def test_looks_are_bounded_however_many_are_asked_for() -> None:
    """A member has some at a time; nodes are asked no more often than they send heartbeats."""
    job = running(6)
    for own in range(2 * MOST_OF_A_MEMBER):
        asks(job, 0, own)
    at_once = len(sent(job, TakeLook))
    job.waits(5 * 1 / MOST_PER_SECOND + 0.001)
    soon = len(sent(job, TakeLook))
    job.waits(10.0)

    assert (at_once, soon) == (5, 10)
    assert len(sent(job, TakeLook)) == 5 * MOST_OF_A_MEMBER
    assert len(sent(job, LookEnded)) == MOST_OF_A_MEMBER


def test_a_look_changes_nothing_else() -> None:
    """After it, nothing is due."""
    job = running(2)
    before = (job.state.phase, job.state.attempt)
    asks(job, 0)
    answers(job, 1)

    assert (job.state.phase, job.state.attempt) == before
    assert job.state.looks.rounds == {}
    assert job.state.looks.next_at < NEVER
