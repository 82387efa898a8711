"""Looks into the running job: a user of one node sees all nodes, by way of the coordinator.

Answers are passed on as they come in, so that the coordinator keeps none. However often users
look, nodes are asked no more often than they send heartbeats in a large job.
"""

from collections import deque

from msgspec import Struct

from clusterrun.domain.bounds import as_line
from clusterrun.policy.event_source import NEVER
from clusterrun.policy.looks import MissingNode
from clusterrun.policy.members import Members, Node
from clusterrun.policy.messages import Looked, LookEnded, NodeLooked, RequestLook, TakeLook
from clusterrun.policy.suspension import Suspension

SECONDS_TO_ANSWER = 1.2
"""For all nodes: a user waits no longer than two seconds."""

MOST_OF_A_MEMBER = 8
"""Looks of one member at a time; it has no more, unless it is no agent of ours."""

MOST_PER_SECOND = 500
"""Members asked: half as many as may send heartbeats."""

MOST_MISSING = 1000
"""Nodes without an answer that are named in one message."""

NO_ANSWER = "does not answer"
IS_PAUSED = "is paused by its user (Ctrl-Z)"


class Round(Struct):
    """The other members were asked, for ``asker``."""

    asker: Node
    request: RequestLook
    deadline: float
    awaited: set[Node]
    """Members that have not answered."""


class Looks:
    """All looks that are going on."""

    def __init__(self, members: Members, suspension: Suspension) -> None:
        self._members = members
        self._suspension = suspension
        self._rounds: dict[int, Round] = {}
        """By number."""
        self._queued: deque[tuple[Node, RequestLook]] = deque()
        """Requests of members, for which it is too early."""
        self._last = 0
        """The number of the last round."""
        self._next_at = 0.0
        """When the next round may begin."""

    @property
    def due(self) -> float:
        """When to call ``time_passed``."""
        deadlines = (each.deadline for each in self._rounds.values())
        return min([self._next_at if self._queued else NEVER, *deadlines])

    def requested(self, asker: Node, request: RequestLook, at: float) -> None:
        """Ask all other members, now or when it is time."""
        open_ones = [each.asker for each in self._rounds.values()]
        open_ones += [each for each, _ in self._queued]
        if open_ones.count(asker) < MOST_OF_A_MEMBER:
            self._queued.append((asker, request))
            self._begin_queued(at)

    def answered(self, node: Node, looked: Looked) -> None:
        """Pass on the answer of a member."""
        current = self._rounds.get(looked.number)
        if current is None or node not in current.awaited:
            return
        current.awaited.discard(node)
        answer = NodeLooked(current.request.number, looked.answer)
        self._members.send([current.asker], answer)
        if not current.awaited:
            self._end(looked.number)

    def time_passed(self, at: float) -> None:
        """End rounds that have waited for long enough, and begin those that had to wait."""
        for number in [n for n, each in self._rounds.items() if at >= each.deadline]:
            self._end(number)
        self._begin_queued(at)

    def _begin_queued(self, at: float) -> None:
        while self._queued and at >= self._next_at:
            asker, request = self._queued.popleft()
            present = self._members.present
            asked = [each for each in present if each is not asker and not each.paused]
            self._last += 1
            self._next_at = at + len(asked) / MOST_PER_SECOND
            deadline = at + SECONDS_TO_ANSWER
            self._rounds[self._last] = Round(asker, request, deadline, set(asked))
            self._members.send(asked, TakeLook(self._last, request.look))
            if not asked:
                self._end(self._last)

    def _end(self, number: int) -> None:
        ended, members = self._rounds.pop(number), self._members
        named = [
            MissingNode(rank, node.hello.host, why)
            for rank, node in enumerate(members.places)
            if (why := _why_missing(node, ended))
        ]
        waiting = tuple(each.hello.host for each in members.waiting[:MOST_MISSING])
        missing = tuple(named[:MOST_MISSING])
        end = LookEnded(ended.request.number, missing, waiting, as_line(self._suspension.awaited))
        members.send([ended.asker], end)


def _why_missing(node: Node, ended: Round) -> str:
    if node.lost is not None:
        return f"is lost: it {node.lost.how}"
    if node.paused and node is not ended.asker:
        return IS_PAUSED
    return NO_ANSWER if node in ended.awaited else ""
