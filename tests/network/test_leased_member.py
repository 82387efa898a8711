"""A member's workers run on a lease: it takes no attempt without one, and renews it by answers."""

import time
from collections.abc import Iterator

import pytest

from tests.network.door import HeartbeatRhythm, events, looks, messages, outcome
from tests.network.nodes import PATIENCE, Played, outside
from tests.plans import world

RHYTHM = HeartbeatRhythm(0.2, 1.2)
LATER = messages.WorldFormed(world(2, attempt=1), "n0")


class Member(Played):
    """A member of a job that may go on without it."""

    def __init__(self) -> None:
        self.leases: list[float | None] = []
        where = outside()._replace(renew_lease=self.leases.append)
        super().__init__(where, rhythm=RHYTHM, spares=1)

    def waits(self, *sent: messages.FromCoordinator) -> list[events.Event]:
        """Let node 0 send the same again and again until the agent learns something."""
        happened: list[events.Event] = []
        deadline = time.monotonic() + PATIENCE
        while not happened and time.monotonic() < deadline:
            happened += self.gets(*sent)
        return happened

    def answer(self, lease: float) -> messages.HeartbeatAnswer:
        """Return the answer to the newest heartbeat."""
        self.hears()
        heartbeats = [it for it in self.heard if isinstance(it, messages.Heartbeat)]
        return messages.HeartbeatAnswer(50.0, heartbeats[-1].at, lease)


@pytest.fixture
def member() -> Iterator[Member]:
    made = Member()
    yield made
    made.close()


@pytest.fixture
def spare(member: Member) -> Member:
    """Return one that waits for a place."""
    member.gets(messages.KeepWaiting("n0"))
    return member


def test_an_attempt_waits_for_a_lease(spare: Member) -> None:
    """A heartbeat asks for it at once; what came after the attempt waits as well."""
    assert spare.gets(LATER, messages.Notice("later")) == []

    [begins] = spare.gets(spare.answer(lease=1.0))

    assert isinstance(begins, events.WorldJoined)
    assert begins.world.attempt == 1
    renewed = spare.leases[-1]
    assert renewed is not None
    assert 0.0 < renewed <= 1.0


def test_an_answer_without_a_lease_begins_nothing(spare: Member) -> None:
    """The coordinator does not hear more than half of the nodes; it says so or is lost."""
    spare.gets(LATER)

    assert spare.gets(spare.answer(lease=0.0)) == []

    [lost] = spare.waits()
    assert isinstance(lost, events.CoordinatorLost)
    assert (lost.node.host, lost.node.how) == ("n0", "has been silent for 1.2 s")


def test_a_verdict_needs_no_lease(spare: Member) -> None:
    """The attempt that would have begun is over."""
    verdict = messages.Verdict(outcome.NodeLost(1, "n1"), "")

    [end] = spare.gets(LATER, verdict)

    assert isinstance(end, events.CoordinatorSent)
    assert end.message == verdict


def test_the_verdict_of_a_job_that_began_meanwhile(member: Member) -> None:
    """A node that was stopped while the others joined finds both: it is no stray message."""
    verdict = messages.Verdict(outcome.NodeLost(1, "n1"), "")

    [end] = member.gets(LATER, verdict)

    assert isinstance(end, events.CoordinatorSent)
    assert end.message == verdict


def test_a_look_after_the_success_asks_nobody(member: Member) -> None:
    """What the workers of this node have left runs, and its user asks for its state."""
    member.gets(messages.WorldFormed(world(2), "n0"), messages.Verdict(outcome.Succeeded(), ""))

    answer = member.node.membership.send(messages.Ask(3, looks.LookAtRanks()))

    [end] = answer
    assert isinstance(end, events.LookOrdered)
    assert end.order == messages.End(3)


def test_a_spare_of_a_silent_node_zero(spare: Member) -> None:
    """It has no workers, and needs no majority for them."""
    [lost] = spare.waits()

    assert isinstance(lost, events.CoordinatorLost)
    assert (lost.node.host, lost.node.how) == ("n0", "has been silent for 1.2 s")


def test_who_speaks_and_gives_no_lease_is_lost(member: Member) -> None:
    """Before the fork server kills the workers, so that the agent can say why."""
    began = time.monotonic()
    [begins] = member.gets(messages.WorldFormed(world(2), "n0"))
    assert isinstance(begins, events.WorldJoined)

    [lost] = member.waits(messages.HeartbeatAnswer(50.0, began, 0.0))

    assert isinstance(lost, events.CoordinatorLost)
    assert lost.node.how == "reaches no more than half of the nodes"
    assert time.monotonic() < began + RHYTHM.timeout


def test_a_slow_name_server_makes_no_lease_longer() -> None:
    """The fork server counts from when it is told, and is told what is left then."""

    def slowly(_host: str, _clock: object) -> bool:
        time.sleep(0.4)
        return True

    told: list[tuple[float, float | None]] = []
    where = outside()._replace(
        renew_lease=lambda seconds: told.append((time.monotonic(), seconds)),
        resolves_for_others=slowly,
    )
    before = time.monotonic()
    member = Played(where, rhythm=RHYTHM, spares=1)
    introduced = time.monotonic()
    member.gets(messages.WorldFormed(world(2), "n0"))

    (at, seconds), *_ = told
    assert seconds is not None
    assert before + RHYTHM.timeout <= at + seconds <= introduced + RHYTHM.timeout
    member.close()
