"""To whom an agent turns that has lost its coordinator, and when it gives up. Pure.

It turns to the successors in their order, each for an equal part of its time. A successor that is
connected, but has not lost the coordinator itself, does not answer. An agent claims its place from
one successor only, the first that answers, and from another one only if that one has ended: else two
successors could count it. A successor to whom the turn comes gathers the agents itself.
"""

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.domain.succession import Successor


class Search(Struct, frozen=True):
    """The search of one agent."""

    own: str
    """Its identity."""
    successors: tuple[Successor, ...]
    began: float
    seconds: float
    """After so long, it has another coordinator or ends."""
    first: int = 0
    """The first of the successors that has not been passed over."""
    ended: frozenset[int] = frozenset()
    """Node ranks of those whose agents have ended: their kernels refuse connections."""
    claimed: bool = False
    """It has claimed its place from the first one."""


class Call(Struct, frozen=True):
    """Connect to this successor; claim the place once it answers."""

    successor: Successor


class Gather(Struct, frozen=True):
    """Become the coordinator of the agents that come, if they are more than half."""


class GiveUp(Struct, frozen=True):
    """End."""


Step = Call | Gather | GiveUp


def step(search: Search) -> Step:
    """Return what to do now."""
    if search.first >= len(search.successors):
        return GiveUp()
    successor = search.successors[search.first]
    return Gather() if successor.identity == search.own else Call(successor)


def due(search: Search) -> float:
    """Return when to call ``time_passed``."""
    if search.claimed:
        return ends(search)
    return search.began + search.seconds * (search.first + 1) / (len(search.successors) + 1)


def ends(search: Search) -> float:
    return search.began + search.seconds


def time_passed(search: Search, at: float) -> Search:
    """Turn to the next successor if this one has not answered in its time, and none to the last."""
    while search.first < len(search.successors) and at >= due(search):
        if step(search) == Gather() and at < ends(search):
            return search
        search = replace(search, first=search.first + 1, claimed=False)
        if at >= ends(search):
            search = replace(search, first=len(search.successors))
    return search


def has_ended(search: Search) -> Search:
    """Turn to the next successor: the kernel has reported that this one has ended."""
    ended = search.ended | {search.successors[search.first].node_rank}
    return replace(search, first=search.first + 1, ended=ended, claimed=False)


def answered(search: Search) -> Search:
    """Stay with this successor: it has answered, and gets the claim."""
    return replace(search, claimed=True)
