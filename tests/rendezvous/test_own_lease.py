"""Node 0's own workers run on only while more than half of the agents are heard of."""

from msgspec.structs import replace

from tests.rendezvous.door import (
    HeartbeatRhythm,
    OwnLease,
    ReformRules,
    SilenceWatch,
)
from tests.rendezvous.nodes import TERMS

RHYTHM = HeartbeatRhythm(1.0, 15.0)


class Node:
    """Node 0, with the agents 1 to 4, and the leases that it has given its workers."""

    def __init__(self, *, fails_over: bool = True) -> None:
        terms = replace(TERMS, rhythm=RHYTHM, reforming=ReformRules(fails_over=fails_over))
        self.watch = SilenceWatch(RHYTHM, 0.0)
        self.leases: list[float] = []
        self.lease = OwnLease(terms, self.watch, self.leases.append)
        for number in range(1, 5):
            self.watch.received(number, 0.0)

    def receives(self, *numbers: int, at: float) -> None:
        """Agents send something."""
        for number in numbers:
            self.watch.received(number, at)
            self.lease.message_received(at)

    def forgets(self, number: int) -> None:
        self.watch.forget(number)
        self.lease.member_forgotten()


def test_renewed_while_more_than_half_send() -> None:
    """Itself included; and not with each message."""
    node = Node()
    for second in range(1, 9):
        node.receives(1, 2, at=float(second))

    assert node.leases == 8 * [15.0]


def test_not_renewed_if_half_are_silent() -> None:
    """Another part of the job may go on."""
    node = Node()
    for second in range(1, 9):
        node.receives(1, at=float(second))

    # The others have sent something within two intervals at first.
    assert node.leases == 2 * [15.0]


def test_without_other_agents_there_is_no_lease() -> None:
    """They have ended, or are paused by their users: none can go on without this node."""
    node = Node()
    for number in (1, 2, 3):
        node.forgets(number)
    assert node.leases == []

    node.forgets(4)

    assert node.leases == [0.0]


def test_a_job_without_failover_needs_none() -> None:
    """Its other nodes end."""
    node = Node(fails_over=False)
    node.receives(1, 2, 3, 4, at=1.0)
    for number in range(1, 5):
        node.forgets(number)

    assert node.leases == []
