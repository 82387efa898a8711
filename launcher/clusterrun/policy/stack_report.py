"""The stacks of all ranks that node 0 prints by itself: at SIGQUIT on any node, and for a hang."""

from collections.abc import Iterable

from clusterrun.planning.plan import NumberedProgram, named_workers
from clusterrun.policy.answers import NodeStacks, decoded
from clusterrun.policy.members import Members, Node
from clusterrun.policy.queries import (
    SECONDS_FOR_REPORTS,
    Answer,
    EndOfAnswers,
    MissingNode,
    Query,
    Topic,
)
from clusterrun.policy.stacks import MAX_GROUPS, GroupedStacks, StackGroup, described

QUERY = Query(0, Topic.STACKS, SECONDS_FOR_REPORTS)

MAX_KEPT = 200
"""Different stacks while answers come in; far fewer are shown."""

MAX_NAMED = 20
"""Nodes without an answer, and nodes whose flight records are named."""


class StackReport:
    """Collects the stacks of a round; those of thousands of nodes are grouped as they come."""

    def __init__(self, members: Members, *, is_wanted: bool) -> None:
        self.is_wanted = is_wanted
        """They are to be printed."""
        self.is_whole = False
        """No other answer follows."""
        self._members = members
        self._stacks = GroupedStacks()
        self._records: list[str] = []
        self._missing: list[MissingNode] = []
        self._more = 0
        self._is_on_screen = False

    def take(self, node: Node, answer: Answer) -> bool:
        stacks = decoded(answer, NodeStacks)
        if not isinstance(stacks, NodeStacks):
            self._missing.append(MissingNode(node.rank or 0, node.hello.host, stacks))
            return bool(answer.problem)
        if not all(node.owns(each.ranks) for each in stacks.groups):
            return False
        self._stacks.add(stacks.groups, MAX_KEPT)
        self._is_on_screen = stacks.on_screen and len(self._members.places) == 1
        if stacks.records:
            self._records.append(f"{node.hello.host}: {stacks.records}")
        return True

    def end(self, end: EndOfAnswers) -> None:
        self._missing += end.missing
        self._more = end.more
        self.is_whole = True

    def known(self) -> Iterable[StackGroup]:
        """Return all stacks that came, and the ranks of nodes that gave no answer."""
        places = self._members.places
        silent = (places[each.node_rank] for each in self._missing)
        no_answer = (
            StackGroup(tuple(each.ranks), "no answer", found=False) for each in silent if each.here
        )
        return (*self._stacks.most_common(MAX_KEPT), *no_answer)

    def text(self, programs: Iterable[NumberedProgram]) -> str:
        """Return what node 0 prints; "": the only worker has printed its stack on the screen."""
        if self._is_on_screen:
            return ""
        programs = tuple(programs)
        stacks = described(
            self._stacks.most_common(MAX_GROUPS),
            self._missing[:MAX_NAMED],
            self._more + len(self._missing[MAX_NAMED:]),
            lambda ranks: named_workers(programs, ranks),
        )
        return "\n".join([stacks, *self._records[:MAX_NAMED]])
