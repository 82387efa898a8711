"""Rounds of looks into the running job: an agent asks, the other nodes answer, by way of the coordinator.

Answers are passed on as they come in, so that the coordinator keeps none. However often users
look, nodes are asked no more often than they send heartbeats in a large job.

One round at a time is for node 0's terminal: the stacks of all ranks, which SIGQUIT on any node or a
hang asks for. It does not wait for others, and its answers are grouped here: those of thousands of
nodes at once would be too much for node 0's agent.
"""

from collections import deque

from msgspec import Struct, field

from clusterrun.bounds import as_line
from clusterrun.loop import NEVER
from clusterrun.policy.looks import LookAtStacks, MissingNode, NodeStacks
from clusterrun.policy.members import Members, Node
from clusterrun.policy.messages import ON_NODE_ZERO, Ask, End, Part
from clusterrun.policy.stacks import MOST_GROUPS, GroupedStacks
from clusterrun.policy.suspension import Suspension

MOST_OF_A_MEMBER = 8
"""Looks of one member at a time; it has no more, unless it is no agent of ours."""

MOST_PER_SECOND = 500
"""Members asked: half as many as may send heartbeats."""

MOST_MISSING = 1000
"""Nodes without an answer that are named in one message."""

MOST_KEPT = 200
"""Different stacks while answers come in; far fewer are shown."""

NO_ANSWER = "does not answer"
IS_PAUSED = "is paused by its user (Ctrl-Z)"


class Round(Struct):
    """Members were asked, for ``asker``."""

    number: int
    asker: Node
    ask: Ask
    deadline: float
    awaited: set[Node]
    """Members that have not answered."""
    stacks: GroupedStacks = field(default_factory=GroupedStacks)
    """Those that have come for node 0's terminal."""

    @property
    def is_for_node_zero(self) -> bool:
        return self.ask.number == ON_NODE_ZERO


class LookRounds:
    """All rounds that are going on."""

    def __init__(self, members: Members, suspension: Suspension) -> None:
        self._members = members
        self._suspension = suspension
        self._rounds: dict[int, Round] = {}
        """By number."""
        self._queued: deque[tuple[Node, Ask]] = deque()
        """Requests of members, for which it is too early."""
        self._last = 0
        """The number of the last round."""
        self._next_at = 0.0
        """When the next round may begin."""
        self.for_node_zero: Round | None = None
        """The round that is for node 0's terminal; None: there is none now. The caller ends it."""

    @property
    def due(self) -> float:
        """When to call ``time_passed``."""
        deadlines = (each.deadline for each in self._rounds.values())
        return min([self._next_at if self._queued else NEVER, *deadlines])

    def asked(self, asker: Node, ask: Ask, at: float) -> None:
        """Ask the other members, now or when it is time."""
        open_ones = [each.asker for each in self._rounds.values() if not each.is_for_node_zero]
        open_ones += [each for each, _ in self._queued]
        if open_ones.count(asker) < MOST_OF_A_MEMBER:
            self._queued.append((asker, ask))
            self._begin_queued(at)

    def show_stacks(self, why: str, at: float) -> None:
        """Ask all members for what node 0 shows, and print ``why`` there, unless that goes on already."""
        if self.for_node_zero is None:
            if why:
                self._members.note(why)
            ask = Ask(ON_NODE_ZERO, LookAtStacks(patient=True))
            members = self._members
            self.for_node_zero = self._begin(members.own, ask, members.present, at)

    def answered(self, node: Node, part: Part) -> Round | None:
        """Pass on the answer of a member, or keep it for node 0; return that round after the last one."""
        current = self._rounds.get(part.number)
        if current is None or node not in current.awaited:
            return None
        current.awaited.discard(node)
        if current.is_for_node_zero:
            groups = part.answer.groups if isinstance(part.answer, NodeStacks) else ()
            current.stacks.add(groups, MOST_KEPT)
            return None if current.awaited else current
        self._members.send([current.asker], Part(current.ask.number, part.answer))
        if not current.awaited:
            self.end(current)
        return None

    def lost(self, node: Node) -> None:
        """Expect no answer of a node any more."""
        for each in self._rounds.values():
            each.awaited.discard(node)

    def time_passed(self, at: float) -> None:
        """End rounds that have waited for long enough, and begin those that had to wait."""
        for each in list(self._rounds.values()):
            if at >= each.deadline and not each.is_for_node_zero:
                self.end(each)
        self._begin_queued(at)

    def drop(self, ended: Round) -> None:
        """Forget a round: the asker gets no answer any more."""
        del self._rounds[ended.number]
        if ended.is_for_node_zero:
            self.for_node_zero = None

    def end(self, ended: Round) -> None:
        """Give the asker what is kept for it, and name the members that have not answered."""
        self.drop(ended)
        members = self._members
        missing = [
            MissingNode(rank, each.hello.host, why)
            for rank, each in enumerate(members.places)
            if (why := _why_missing(each, ended))
        ]
        end = End(
            ended.ask.number,
            tuple(missing[:MOST_MISSING]),
            len(missing[MOST_MISSING:]),
            tuple(each.hello.host for each in members.waiting[:MOST_MISSING]),
            as_line(self._suspension.awaited),
            ended.stacks.most_common(MOST_GROUPS),
        )
        members.send([ended.asker], end)

    def _begin_queued(self, at: float) -> None:
        while self._queued and at >= self._next_at:
            asker, ask = self._queued.popleft()
            here = (each for each in self._members.places if each.here)
            asked = [each for each in here if each is not asker and not each.paused]
            self._next_at = at + len(asked) / MOST_PER_SECOND
            begun = self._begin(asker, ask, asked, at)
            if not asked:
                self.end(begun)

    def _begin(self, asker: Node, ask: Ask, asked: list[Node], at: float) -> Round:
        self._last += 1
        begun = Round(self._last, asker, ask, at + ask.look.seconds, set(asked))
        self._rounds[self._last] = begun
        self._members.send(asked, Ask(self._last, ask.look))
        return begun


def _why_missing(node: Node, ended: Round) -> str:
    if not ended.is_for_node_zero:
        if node.lost is not None:
            return f"is lost: it {node.lost.how}"
        if node.paused and node is not ended.asker:
            return IS_PAUSED
    return NO_ANSWER if node in ended.awaited else ""
