"""Who follows node 0 if it is lost, and how its agents find each other.

The coordinator lets its agents know who may succeed it. An agent that has lost it turns to the
successors in their order, each for an equal part of its time. A successor that is connected, but has
not lost the coordinator itself, does not answer. An agent claims its place from one successor only,
the first that answers, and from another one only if that one has ended: so a part without a majority
takes no agents from the part that has one. A successor to whom the turn comes gathers the agents
itself: it begins as the lost coordinator would go on between two attempts, and all places are empty
that no agent has claimed.

No two parts of a job may go on: see ``majority``.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.job.values import is_loopback
from clusterrun.policy.majority import Majority, Quorum
from clusterrun.policy.members import Members, Node
from clusterrun.policy.messages import Claim, Place, Progress, Succession, Successor
from clusterrun.policy.outcome import NodeLost

MOST_SUCCESSORS = 3

NO_SUCCESSOR = "no successor of it has gathered more than half of the nodes"
"""Why a node ends that has lost the coordinator of a job that could go on."""


# What the coordinator lets its agents know.


def inform(members: Members, majority: Majority, attempt: int, progress: Progress) -> None:
    """Let all agents of the attempt know who may succeed the coordinator; they confirm it."""
    own, found = members.own, dict(_successors(members))
    others = [
        each
        for each in majority.of_attempt.agents
        if each is not own and each not in found and members.knows(each)
    ]
    majority.unaware = {*found, *others}
    known = Succession(
        attempt=attempt,
        coordinator=own.hello.identity,
        host=own.hello.host,
        node_rank=own.rank or 0,
        agents=len(majority.of_attempt.agents),
        agents_before=len(majority.of_attempt_before.agents),
        successors=tuple(found.values()),
    )
    hellos = (each.hello for each in members.places)
    places = tuple(Place(each.host, each.workers, each.role) for each in hellos)
    members.send(found, replace(known, places=places, progress=progress))
    members.send(others, known)


def _successors(members: Members) -> Iterator[tuple[Node, Successor]]:
    """Yield the first agents by rank that all nodes can reach."""
    others = [each for each in members.places if each is not members.own]
    all_are_here = all(is_loopback(each.address) for each in others)
    count = 0
    for each in others:
        is_reached = all_are_here or not is_loopback(each.address)
        if each.hello.standby is None or not is_reached or count == MOST_SUCCESSORS:
            continue
        count += 1
        port = each.hello.standby.port
        yield each, Successor(each.hello.identity, each.rank or 0, each.address, port)


# How a successor counts the agents of the lost coordinator.


def begin(
    members: Members, majority: Majority, known: Succession, lost: NodeLost, ended: Iterable[int]
) -> None:
    """Begin with places that no agent has claimed; ``ended``: node ranks whose agents have ended."""
    places = []
    for rank, place in enumerate(known.places):
        node = _absent(members.own, place)
        node.rank, node.has_ended = rank, rank in ended
        node.lost = NodeLost(rank, place.host, "has not come to the successor of node 0")
        places.append(node)
    places[lost.node_rank].lost = lost
    unknown = Place("", 1, "")
    waiting = [_absent(members.own, unknown) for _ in range(known.agents - len(places))]
    before = [_absent(members.own, unknown) for _ in range(known.agents_before)]
    if before:
        # The agent of a coordinator was one of the attempt before, too.
        before[0].has_ended = lost.node_rank in ended
    members.places, members.lost = places, list(places)
    majority.of_attempt, majority.of_attempt_before = Quorum([*places, *waiting]), Quorum(before)


def _absent(own: Node, place: Place) -> Node:
    hello = replace(
        own.hello,
        identity="",
        host=place.host,
        rank=None,
        workers=place.workers,
        role=place.role,
        standby=None,
        claim=None,
    )
    return Node(None, hello, here=False)


def take_place(node: Node, claim: Claim, members: Members, majority: Majority, at: float) -> bool:
    """Count an agent that has come; return whether what it claims was free."""
    absent = _claimed(claim, members, majority)
    if absent is None:
        return False
    majority.of_attempt.put(absent, node)
    before = majority.of_attempt_before
    unknown = next((each for each in before.agents if each.is_absent and not each.has_ended), None)
    if claim.since < claim.attempt and unknown is not None:
        before.put(unknown, node)
    members.add(node)
    node.knows_attempts = claim.knows_attempts
    if claim.node_rank is None:
        members.waiting.append(node)
    else:
        node.rank = claim.node_rank
        members.places[claim.node_rank] = node
        members.lost.remove(absent)
    majority.heard_of_the_lost(at - claim.age)
    return True


def _claimed(claim: Claim, members: Members, majority: Majority) -> Node | None:
    """Return the absent agent as which one counts that has come."""
    if claim.node_rank is None:
        absent = [each for each in majority.of_attempt.agents if each.is_absent]
        # One with a place may have been lost before it knew of that: its place stays empty.
        return next((each for each in absent if each.rank is None), absent[-1] if absent else None)
    if claim.node_rank >= len(members.places) or not members.places[claim.node_rank].is_absent:
        return None
    return members.places[claim.node_rank]


# How an agent searches.


class Search(Struct):
    """The search of one agent."""

    own: str
    """Its identity."""
    successors: tuple[Successor, ...]
    began: float
    seconds: float
    """After so long, it has another coordinator or ends."""
    ended: set[int]
    """Node ranks of successors whose agents have ended: their kernels refuse connections."""
    first: int = 0
    """The first of the successors that has not been passed over."""

    @property
    def successor(self) -> Successor | None:
        """Whom to turn to now: connect, and claim the place once it answers. None: nobody is left."""
        return self.successors[self.first] if self.first < len(self.successors) else None

    @property
    def gathers(self) -> bool:
        """Whether to become the coordinator of the agents that come, if they are more than half."""
        return self.successor is not None and self.successor.identity == self.own

    @property
    def due(self) -> float:
        """When to call ``time_passed``."""
        return self.began + self.seconds * (self.first + 1) / (len(self.successors) + 1)

    @property
    def ends(self) -> float:
        return self.began + self.seconds

    def time_passed(self, at: float) -> None:
        """Turn to the next successor if this one has not answered in its time, and none to the last."""
        if at >= self.ends:
            self.first = len(self.successors)
        while self.successor is not None and not self.gathers and at >= self.due:
            self.first += 1

    def has_ended(self) -> None:
        """Turn to the next successor: the kernel has reported that this one has ended."""
        self.ended.add(self.successors[self.first].node_rank)
        self.first += 1
