"""Looks into the running job: a user of one node sees all nodes, by way of the coordinator.

Answers are passed on as they come in, so that the coordinator keeps none. However often users
look, nodes are asked no more often than they send heartbeats in a large job.
"""

from collections import deque
from collections.abc import Callable, Mapping

from msgspec import Struct, field

from clusterrun.coordination.coordinator_actions import Actions, Send
from clusterrun.domain.bounds import as_line
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.looks import MissingNode
from clusterrun.domain.messages import Looked, LookEnded, NodeLooked, RequestLook, TakeLook
from clusterrun.domain.outcome import NodeLost

SECONDS_TO_ANSWER = 1.2
"""For all nodes: a user waits no longer than two seconds."""

MOST_OF_A_MEMBER = 8
"""Looks of one member at a time; it has no more, unless it is no agent of ours."""

MOST_PER_SECOND = 500
"""Members asked, as for heartbeats."""

MOST_MISSING = 1000
"""Nodes without an answer that are named in one message."""

NO_ANSWER = "does not answer"
IS_PAUSED = "is paused by its user (Ctrl-Z)"


class LookRound(Struct):
    """The other members were asked, for ``asker``."""

    asker: int
    request: RequestLook
    deadline: float
    awaited: set[int]
    """Members that have not answered."""


class LookRounds(Struct):
    """All looks that are going on."""

    rounds: dict[int, LookRound] = field(default_factory=dict)
    """By number."""
    queued: deque[tuple[int, RequestLook]] = field(default_factory=deque)
    """Requests of members, for which it is too early."""
    last: int = 0
    """The number of the last round."""
    next_at: float = 0.0
    """When the next round may begin."""


class LookedAt(Struct, frozen=True):
    """The members of the job at one moment."""

    ranks: Mapping[int, int]
    """Node rank by connection."""
    hosts: dict[int, str]
    """By connection, those that wait for a place included."""
    present: tuple[int, ...]
    """Those with a place that are not lost."""
    lost: dict[int, NodeLost]
    paused: frozenset[int]
    waiting: tuple[int, ...]
    suspension: str = ""
    """Which ranks have not saved, in words."""


Nodes = Callable[[], LookedAt]
"""Called once for each round: it takes a look at each member."""


def requested(
    looks: LookRounds, asker: int, request: RequestLook, nodes: Nodes, at: float
) -> Actions:
    """Ask all other members, now or when it is time."""
    open_ones = [each.asker for each in looks.rounds.values()]
    open_ones += [each for each, _ in looks.queued]
    if open_ones.count(asker) >= MOST_OF_A_MEMBER:
        return ()
    looks.queued.append((asker, request))
    return _begin_queued(looks, nodes, at)


def answered(looks: LookRounds, connection: int, looked: Looked, nodes: Nodes) -> Actions:
    """Pass on the answer of a member."""
    current = looks.rounds.get(looked.number)
    if current is None or connection not in current.awaited:
        return ()
    current.awaited.discard(connection)
    answer = Send((current.asker,), NodeLooked(current.request.number, looked.answer))
    return (answer, *(() if current.awaited else _end(looks, looked.number, nodes)))


def due(looks: LookRounds) -> float:
    """Return when ``time_passed`` is to be called."""
    deadlines = (each.deadline for each in looks.rounds.values())
    return min([looks.next_at if looks.queued else NEVER, *deadlines])


def time_passed(looks: LookRounds, nodes: Nodes, at: float) -> Actions:
    """End rounds that have waited for long enough, and begin those that had to wait."""
    over = [number for number, each in looks.rounds.items() if at >= each.deadline]
    ends = [action for number in over for action in _end(looks, number, nodes)]
    return (*ends, *_begin_queued(looks, nodes, at))


def _begin_queued(looks: LookRounds, nodes: Nodes, at: float) -> Actions:
    actions: list[Send] = []
    while looks.queued and at >= looks.next_at:
        asker, request = looks.queued.popleft()
        known = nodes()
        asked = tuple(each for each in known.present if each not in {asker, *known.paused})
        looks.last += 1
        looks.next_at = at + len(asked) / MOST_PER_SECOND
        deadline = at + SECONDS_TO_ANSWER
        looks.rounds[looks.last] = LookRound(asker, request, deadline, set(asked))
        if asked:
            actions.append(Send(asked, TakeLook(looks.last, request.look)))
        else:
            actions += _end(looks, looks.last, nodes)
    return tuple(actions)


def _end(looks: LookRounds, number: int, nodes: Nodes) -> tuple[Send, ...]:
    ended, known = looks.rounds.pop(number), nodes()
    missing = dict.fromkeys(ended.awaited, NO_ANSWER)
    missing |= dict.fromkeys(known.paused - {ended.asker}, IS_PAUSED)
    missing |= {each: f"is lost: it {lost.how}" for each, lost in known.lost.items()}
    named = [
        MissingNode(known.ranks[each], known.hosts[each], why)
        for each, why in missing.items()
        if each in known.ranks
    ]
    named.sort(key=lambda each: each.node_rank)
    waiting = tuple(known.hosts[each] for each in known.waiting[:MOST_MISSING])
    end = LookEnded(
        ended.request.number, tuple(named[:MOST_MISSING]), waiting, as_line(known.suspension)
    )
    return (Send((ended.asker,), end),)
