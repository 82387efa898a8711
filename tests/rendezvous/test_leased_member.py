"""A member's workers run on a lease: it takes no attempt without one, and renews it by answers."""

import socket
import time
from collections.abc import Iterator

import pytest

from tests.plans import world
from tests.rendezvous.door import (
    FROM_COORDINATOR,
    FROM_MEMBERS,
    Channel,
    CoordinatorLost,
    CoordinatorSent,
    Event,
    FromCoordinator,
    Heartbeat,
    HeartbeatAnswer,
    HeartbeatRhythm,
    MemberLease,
    NextAttempt,
    NodeLost,
    Notice,
    Peers,
    Verdict,
)
from tests.rendezvous.nodes import PATIENCE, hooks

RHYTHM = HeartbeatRhythm(0.2, 1.2)
NEXT = NextAttempt(world(2, attempt=1), NodeLost(1, "n1"))


class Member:
    """A member whose coordinator is the test."""

    def __init__(self, *, leased: bool) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self.coordinator = Channel(FROM_MEMBERS, theirs)
        self.leases: list[float | None] = []
        lease = MemberLease()
        if leased:
            lease.ends = time.monotonic() + RHYTHM.timeout
        self.peers = Peers(
            world(2),
            "n0",
            Channel(FROM_COORDINATOR, ours),
            early=[],
            server=None,
            rhythm=RHYTHM,
            hooks=hooks()._replace(renew_lease=self.leases.append),
            lives_on=True,
            lease=lease,
        )

    def gets(self, *messages: FromCoordinator) -> list[Event]:
        """Let the coordinator send messages; return what the agent learns."""
        for message in messages:
            self.coordinator.send(message)
        return list(self.peers.events(time.monotonic()))

    def waits(self, *messages: FromCoordinator) -> list[Event]:
        """Let the coordinator send the same again and again until the agent learns something."""
        events: list[Event] = []
        deadline = time.monotonic() + PATIENCE
        while not events and time.monotonic() < deadline:
            time.sleep(0.01)
            events += self.gets(*messages)
        return events

    def answers(self, lease: float) -> HeartbeatAnswer:
        """Return the answer to the newest heartbeat."""
        heartbeats = [it for it in self.coordinator.receive() if isinstance(it, Heartbeat)]
        return HeartbeatAnswer(50.0, heartbeats[-1].at, lease)


@pytest.fixture
def member() -> Iterator[Member]:
    made = Member(leased=False)
    yield made
    made.peers.leave()
    made.coordinator.close()


def test_an_attempt_waits_for_a_lease(member: Member) -> None:
    """A heartbeat asks for it at once; what came after the attempt waits as well."""
    assert member.gets(NEXT, Notice("later")) == []
    answer = member.answers(lease=1.0)

    [begins] = member.gets(answer)

    assert isinstance(begins, CoordinatorSent)
    assert begins.message == NEXT
    assert member.peers.world(1).attempt == 1
    renewed = member.leases[-1]
    assert renewed is not None
    assert 0.0 < renewed <= 1.0


def test_an_answer_without_a_lease_begins_nothing(member: Member) -> None:
    """The coordinator does not hear more than half of the nodes; it says so or is lost."""
    member.gets(NEXT)

    assert member.gets(member.answers(lease=0.0)) == []

    [lost] = member.waits()
    assert isinstance(lost, CoordinatorLost)
    assert lost.how == "has been silent for 1.2 s"


def test_a_verdict_needs_no_lease(member: Member) -> None:
    """The attempt that would have begun is over."""
    verdict = Verdict(NodeLost(1, "n1"), "")

    [end] = member.gets(NEXT, verdict)

    assert isinstance(end, CoordinatorSent)
    assert end.message == verdict


def test_who_speaks_and_gives_no_lease_is_lost() -> None:
    """Before the fork server kills the workers, so that the agent can say why."""
    member = Member(leased=True)
    began = time.monotonic()

    [lost] = member.waits(HeartbeatAnswer(50.0, began, 0.0))

    assert isinstance(lost, CoordinatorLost)
    assert lost.how == "reaches no more than half of the nodes"
    assert time.monotonic() < began + RHYTHM.timeout
    member.peers.leave()
    member.coordinator.close()
