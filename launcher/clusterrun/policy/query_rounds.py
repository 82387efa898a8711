"""Rounds of queries about the running job: a member or the coordinator asks, and other nodes answer.

Answers are passed on as they come, encoded, so the coordinator keeps none of a member's round. However
often users ask, nodes are asked no more often than they send heartbeats in a large job.
"""

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import as_line
from clusterrun.loop import NEVER
from clusterrun.policy.members import Members, Node
from clusterrun.policy.queries import Answer, EndOfAnswers, MissingNode, Query
from clusterrun.policy.suspension import Suspension

MAX_OF_A_MEMBER = 8
"""Open queries of one member; it has no more, unless it is not an agent of ours."""

MAX_PER_SECOND = 500
"""Members asked: half as many as may send heartbeats."""

MAX_MISSING = 1000
"""Nodes without an answer that are named in one message."""

NO_ANSWER = "does not answer"
IS_PAUSED = "is paused by its user (Ctrl-Z)"


class Requester(Protocol):
    """Who gets the answers of a round."""

    def take(self, node: Node, answer: Answer) -> bool:
        """Take an answer; return False for one that no agent of ours would give."""

    def end(self, end: EndOfAnswers) -> None:
        """Take note that no other answer follows."""


class MemberRequester:
    """A member has asked: it gets each answer at once, under its own number."""

    def __init__(self, members: Members, node: Node, number: int) -> None:
        self._members = members
        self.node = node
        self._number = number

    def take(self, node: Node, answer: Answer) -> bool:
        # Whose it is the coordinator knows itself.
        own = replace(answer, number=self._number, node_rank=node.rank or 0, host=node.hello.host)
        self._members.send([self.node], own)
        return True

    def end(self, end: EndOfAnswers) -> None:
        self._members.send([self.node], replace(end, number=self._number))


class Round(Struct):
    """Members were asked, for ``asker``."""

    asker: Requester
    query: Query
    deadline: float
    awaited: set[Node]
    """Members that have not answered."""


class QueryRounds:
    """All rounds that are going on."""

    def __init__(self, members: Members, suspension: Suspension) -> None:
        self._members = members
        self._suspension = suspension
        self._rounds: dict[int, Round] = {}
        """By number."""
        self._queued: deque[tuple[MemberRequester, Query]] = deque()
        """Queries of members, for which it is too early."""
        self._last = 0
        """The number of the last round."""
        self._next_at = 0.0
        """When the next round of a member may begin."""

    @property
    def due(self) -> float:
        """When to call ``time_passed``."""
        deadlines = (each.deadline for each in self._rounds.values())
        return min([self._next_at if self._queued else NEVER, *deadlines])

    def asked(self, node: Node, query: Query, at: float) -> None:
        """Ask the other members for one of them, now or when it is time."""
        askers = [each.asker for each in self._rounds.values()]
        askers += [each for each, _ in self._queued]
        own = [each for each in askers if isinstance(each, MemberRequester) and each.node is node]
        if len(own) < MAX_OF_A_MEMBER:
            self._queued.append((MemberRequester(self._members, node, query.number), query))
            self._begin_queued(at)

    def ask(self, asker: Requester, query: Query, at: float) -> None:
        """Ask all members that a query concerns, at once; it must be asked seldom."""
        self._begin(asker, query, self._concerned(query), at)

    def answered(self, node: Node, answer: Answer) -> bool:
        """Pass on the answer of a member; return False for one that no agent of ours would give."""
        current = self._rounds.get(answer.number)
        if current is None or node not in current.awaited:
            # Late, or never asked for.
            return True
        current.awaited.discard(node)
        is_ours = current.asker.take(node, answer)
        if not current.awaited:
            self._end(answer.number)
        return is_ours

    def lost(self, node: Node) -> None:
        """Expect no answer of a node any more."""
        for each in self._rounds.values():
            each.awaited.discard(node)

    def time_passed(self, at: float) -> None:
        """End rounds that have waited for long enough, and begin those that had to wait."""
        for number, each in list(self._rounds.items()):
            if at >= each.deadline:
                self._end(number)
        self._begin_queued(at)

    def _concerned(self, query: Query) -> list[Node]:
        """Return the members to ask."""
        return [
            each
            for each in self._members.places
            if _concerns(query, each) and each.here and not each.paused
        ]

    def _begin_queued(self, at: float) -> None:
        while self._queued and at >= self._next_at:
            asker, query = self._queued.popleft()
            asked = [each for each in self._concerned(query) if each is not asker.node]
            self._next_at = at + len(asked) / MAX_PER_SECOND
            self._begin(asker, query, asked, at)

    def _begin(self, asker: Requester, query: Query, asked: list[Node], at: float) -> None:
        self._last += 1
        self._rounds[self._last] = Round(asker, query, at + query.seconds, set(asked))
        self._members.send(asked, replace(query, number=self._last))
        if not asked:
            self._end(self._last)

    def _end(self, number: int) -> None:
        """Name the members that have not answered."""
        ended = self._rounds.pop(number)
        missing = [*self._missing(ended)]
        ended.asker.end(
            EndOfAnswers(
                number,
                tuple(missing[:MAX_MISSING]),
                len(missing[MAX_MISSING:]),
                tuple(each.hello.host for each in self._members.waiting[:MAX_MISSING]),
                as_line(self._suspension.awaited),
            )
        )

    def _missing(self, ended: Round) -> Iterable[MissingNode]:
        own = ended.asker.node if isinstance(ended.asker, MemberRequester) else None
        for rank, node in enumerate(self._members.places):
            if not _concerns(ended.query, node):
                continue
            if node.lost is not None:
                yield MissingNode(rank, node.hello.host, as_line(f"is lost: it {node.lost.how}"))
            elif node.paused and node is not own:
                yield MissingNode(rank, node.hello.host, IS_PAUSED)
            elif node in ended.awaited:
                yield MissingNode(rank, node.hello.host, NO_ANSWER)


def _concerns(query: Query, node: Node) -> bool:
    return query.rank is None or node.owns([query.rank])
