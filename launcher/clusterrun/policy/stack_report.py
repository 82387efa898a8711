"""The stacks of all ranks, which node 0 prints after SIGQUIT to any agent, and for a hang."""

from collections.abc import Iterable

from clusterrun.planning.plan import NumberedProgram, named_workers
from clusterrun.policy.answers import NodeStacks, decode_answer
from clusterrun.policy.members import Members, Node
from clusterrun.policy.queries import (
    SECONDS_FOR_REPORTS,
    Answer,
    EndOfAnswers,
    MissingNode,
    Query,
    Topic,
)
from clusterrun.policy.stacks import MAX_GROUPS, GroupedStacks, StackGroup, stacks_text

QUERY = Query(0, Topic.STACKS, SECONDS_FOR_REPORTS)

MAX_KEPT = 200
"""Different stacks that are kept while answers arrive; fewer are printed."""

MAX_NAMED = 20
"""Nodes without an answer, and nodes with flight records, that are named."""


class StackReport:
    """Collects the stacks of all nodes; equal stacks are merged as they arrive."""

    def __init__(self, members: Members, *, should_print: bool) -> None:
        self.should_print = should_print
        self.is_complete = False
        """All nodes have answered, or their time is over."""
        self._members = members
        self._stacks = GroupedStacks()
        self._records: list[str] = []
        self._missing: list[MissingNode] = []
        self._more = 0
        self._is_on_screen = False

    def add_answer(self, node: Node, answer: Answer) -> bool:
        stacks = decode_answer(answer, NodeStacks)
        if not isinstance(stacks, NodeStacks):
            self._missing.append(MissingNode(node.rank or 0, node.hello.host, stacks))
            return bool(answer.problem)
        if not all(node.owns(each.ranks) for each in stacks.groups):
            return False
        self._stacks.add(stacks.groups, MAX_KEPT)
        self._is_on_screen = stacks.on_screen and len(self._members.participants) == 1
        if stacks.records:
            self._records.append(f"{node.hello.host}: {stacks.records}")
        return True

    def end(self, end: EndOfAnswers) -> None:
        self._missing += end.missing
        self._more = end.more
        self.is_complete = True

    def groups(self) -> Iterable[StackGroup]:
        """Return the stacks, and a group without a stack for each node that has not answered."""
        participants = self._members.participants
        silent = (participants[each.node_rank] for each in self._missing)
        no_answer = (
            StackGroup(tuple(each.ranks), "no answer", found=False)
            for each in silent
            if each.is_present
        )
        return (*self._stacks.most_common(MAX_KEPT), *no_answer)

    def text(self, programs: Iterable[NumberedProgram]) -> str:
        """Return what node 0 prints; "" if the only node has its stacks on the screen already."""
        if self._is_on_screen:
            return ""
        programs = tuple(programs)
        stacks = stacks_text(
            self._stacks.most_common(MAX_GROUPS),
            self._missing[:MAX_NAMED],
            self._more + len(self._missing[MAX_NAMED:]),
            lambda ranks: named_workers(programs, ranks),
        )
        return "\n".join([stacks, *self._records[:MAX_NAMED]])
