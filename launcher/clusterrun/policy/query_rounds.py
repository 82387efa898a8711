"""Queries about the running job: a member or the coordinator asks, and the other nodes answer.

The coordinator forwards answers to a member as they arrive, encoded, and keeps none. However often users
query, nodes get no more queries than they send heartbeats in a large job.
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

MAX_OPEN_PER_MEMBER = 8
"""Open queries of one member; further ones are dropped. No agent of ours has more."""

MAX_PER_SECOND = 500
"""Queries sent to nodes for members."""

MAX_MISSING = 1000
"""Nodes without an answer that one message names."""

NO_ANSWER = "does not answer"
IS_PAUSED = "is paused by its user (Ctrl-Z)"


class Requester(Protocol):
    """Receives the answers of a round."""

    def add_answer(self, node: Node, answer: Answer) -> bool:
        """Handle an answer; return False if no correct agent would send it."""

    def end(self, end: EndOfAnswers) -> None:
        """Handle the end of the round."""


class MemberRequester:
    """Forwards each answer at once to the member that asked, with that member's number."""

    def __init__(self, members: Members, node: Node, number: int) -> None:
        self._members = members
        self.node = node
        self._number = number

    def add_answer(self, node: Node, answer: Answer) -> bool:
        # The node does not choose which rank and host the answer comes from.
        named = replace(answer, number=self._number, node_rank=node.rank or 0, host=node.hello.host)
        self._members.send([self.node], named)
        return True

    def end(self, end: EndOfAnswers) -> None:
        self._members.send([self.node], replace(end, number=self._number))


class QueryRound(Struct):
    """Members were asked, for ``requester``."""

    requester: Requester
    query: Query
    deadline: float
    awaited: set[Node]
    """Members that have not answered."""


class QueryRounds:
    """All rounds in progress."""

    def __init__(self, members: Members, suspension: Suspension) -> None:
        self._members = members
        self._suspension = suspension
        self._rounds: dict[int, QueryRound] = {}
        """By number."""
        self._queued: deque[tuple[MemberRequester, Query]] = deque()
        """Queries of members that must wait because of ``MAX_PER_SECOND``."""
        self._last = 0
        """The number of the last round."""
        self._next_at = 0.0
        """When the next round for a member may begin."""

    @property
    def due(self) -> float:
        """When to call ``time_passed``."""
        deadlines = (each.deadline for each in self._rounds.values())
        return min([self._next_at if self._queued else NEVER, *deadlines])

    def ask_for_member(self, node: Node, query: Query, at: float) -> None:
        """Ask the other members for one of them, now or once ``MAX_PER_SECOND`` allows it."""
        requesters = [each.requester for each in self._rounds.values()]
        requesters += [each for each, _ in self._queued]
        own = [
            each for each in requesters if isinstance(each, MemberRequester) and each.node is node
        ]
        if len(own) < MAX_OPEN_PER_MEMBER:
            self._queued.append((MemberRequester(self._members, node, query.number), query))
            self._begin_queued(at)

    def ask(self, requester: Requester, query: Query, at: float) -> None:
        """Ask all members that a query concerns, at once: for rare queries of the coordinator."""
        self._begin(requester, query, self._concerned(query), at)

    def add_answer(self, node: Node, answer: Answer) -> bool:
        """Handle the answer of a member; return False if no correct agent would send it."""
        current = self._rounds.get(answer.number)
        if current is None or node not in current.awaited:
            # It is late, or was not asked for.
            return True
        current.awaited.discard(node)
        is_valid = current.requester.add_answer(node, answer)
        if not current.awaited:
            self._end(answer.number)
        return is_valid

    def node_lost(self, node: Node) -> None:
        """Stop expecting answers of a lost node."""
        for each in self._rounds.values():
            each.awaited.discard(node)

    def time_passed(self, at: float) -> None:
        """End rounds whose time is up, and begin queued ones."""
        for number, each in list(self._rounds.items()):
            if at >= each.deadline:
                self._end(number)
        self._begin_queued(at)

    def _concerned(self, query: Query) -> list[Node]:
        """Return the members to ask."""
        return [
            each
            for each in self._members.participants
            if _concerns(query, each) and each.is_present and not each.paused
        ]

    def _begin_queued(self, at: float) -> None:
        while self._queued and at >= self._next_at:
            requester, query = self._queued.popleft()
            asked = [each for each in self._concerned(query) if each is not requester.node]
            self._next_at = at + len(asked) / MAX_PER_SECOND
            self._begin(requester, query, asked, at)

    def _begin(self, requester: Requester, query: Query, asked: list[Node], at: float) -> None:
        self._last += 1
        self._rounds[self._last] = QueryRound(requester, query, at + query.seconds, set(asked))
        self._members.send(asked, replace(query, number=self._last))
        if not asked:
            self._end(self._last)

    def _end(self, number: int) -> None:
        """End a round, with the members that have not answered."""
        ended = self._rounds.pop(number)
        missing = [*self._missing(ended)]
        ended.requester.end(
            EndOfAnswers(
                number,
                tuple(missing[:MAX_MISSING]),
                len(missing[MAX_MISSING:]),
                tuple(each.hello.host for each in self._members.waiting[:MAX_MISSING]),
                as_line(self._suspension.awaited),
            )
        )

    def _missing(self, ended: QueryRound) -> Iterable[MissingNode]:
        own = ended.requester.node if isinstance(ended.requester, MemberRequester) else None
        for rank, node in enumerate(self._members.participants):
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
