"""Rounds that collect the stacks of all ranks: a user asks for one, or the job hangs.

It hangs when no rank of any node has printed or exited for ``--hang-timeout``. Then the stacks are
printed, and ``--on-hang`` may restart or end the job. A hang is reported once, and again after a rank
has moved. If a rank had no stack, its script had perhaps not begun: then after the same time, too.
"""

from enum import Enum

from msgspec import Struct, field

from clusterrun.domain.bounds import as_line
from clusterrun.policy.event_source import NEVER
from clusterrun.policy.members import Members, Node
from clusterrun.policy.messages import AllStacks, Idle, SendStacks, Stacks
from clusterrun.policy.outcome import MOST_RANKS, Hung
from clusterrun.policy.stacks import (
    MOST_GROUPS,
    GroupedStacks,
    StackGroup,
    lacks_stack,
    named,
    waited_for,
    who_differs,
)

SECONDS_TO_ANSWER = 4.0
"""For all nodes; each gives its workers 2 s."""

MOST_KEPT = 200
"""Different stacks while answers come in; far fewer are shown."""

MOST_MISSING = 20
"""Nodes without an answer that are named."""


_FOLLOW = "the Python stacks of all ranks follow"


class Response(Enum):
    """What is done about a hang now; the value says it."""

    REPORT = "nothing is ended"
    RESTART = "then all workers are restarted (--on-hang)"
    STOP = "then the job is stopped (--on-hang)"


class Round(Struct):
    """The nodes were asked for their workers' stacks."""

    hang: Hung | None
    """Why: the job hangs; None: a user asked."""
    deadline: float
    awaited: set[Node]
    """Nodes that have not answered."""
    groups: GroupedStacks = field(default_factory=GroupedStacks)


class Hangs:
    """The rounds of all attempts, and whether the attempt that runs hangs.

    Methods that return a ``Hung`` return that the attempt is to be stopped for it.
    """

    def __init__(self, members: Members, *, acts: bool) -> None:
        """Begin without an attempt; ``acts``: ``--on-hang`` does more than report."""
        self._members = members
        self._acts = acts
        self._round: Round | None = None
        self._number = 0
        """Of the last round."""
        self.begin_attempt()

    def begin_attempt(self) -> None:
        self._runs = True
        self._round = None
        self._idle: set[Node] = set()
        """Nodes none of whose workers has printed or exited for ``_timeout``; lost ones excluded."""
        self._timeout = 0.0
        """As they say; 0.0 until the first one does."""
        self._idle_since = NEVER
        """When the last of them was last active."""
        self._hangs_at = NEVER
        """When the job counts as hung, unless a worker is active before; NEVER: it has been told."""

    @property
    def due(self) -> float:
        """When to call ``time_passed``."""
        return self._hangs_at if self._round is None else self._round.deadline

    def lost(self, node: Node) -> None:
        """Expect nothing from a node any more."""
        self._idle.discard(node)
        if self._round is not None:
            self._round.awaited.discard(node)

    def asked(self, node: Node, attempt: int, at: float) -> None:
        """Collect stacks for the user of a node, who has sent its agent SIGQUIT."""
        # A user of node 0 sees that agent's notice.
        host = "" if node is self._members.own else node.hello.host
        self._begin(attempt, f"SIGQUIT on {host}: {_FOLLOW}; nothing is ended" if host else "", at)

    def answered(self, node: Node, stacks: Stacks, response: Response, at: float) -> Hung | None:
        """Take a node's stacks; show all once the last have come."""
        current = self._round
        if current is None or self._number != stacks.number or node not in current.awaited:
            return None
        current.awaited.discard(node)
        current.groups.add(stacks.groups, MOST_KEPT)
        return None if current.awaited else self._finish(current, response, at)

    def idle(self, node: Node, idle: Idle, response: Response, at: float) -> None:
        """Take note that no worker of a node moves, or that one has moved."""
        if idle.seconds <= 0 or not node.here:
            self._idle.discard(node)
            self._hangs_at = NEVER
            return
        self._idle.add(node)
        if not self._is_hung:
            return
        self._timeout, self._idle_since = idle.seconds, at - idle.seconds
        self._hangs_at = at
        # Not in the midst of another round.
        if self._round is None:
            self._report(idle.attempt, response, at)

    def time_passed(self, attempt: int, response: Response, at: float) -> Hung | None:
        """Show the answers of the round that goes on; or begin one, as the job hangs."""
        if self._round is not None:
            return self._finish(self._round, response, at)
        self._report(attempt, response, at)
        return None

    def end_attempt(self) -> None:
        """Find no hang any more: the workers are being stopped."""
        self._runs = False

    @property
    def _is_hung(self) -> bool:
        """Whether no rank of any node moves, and none is being stopped."""
        expected = len(self._members.places) - len(self._members.lost)
        return self._runs and len(self._idle) == expected

    def _report(self, attempt: int, response: Response, at: float) -> None:
        self._hangs_at = NEVER
        if self._is_hung:
            hang = Hung(at - self._idle_since, (), "")
            why = f"{nothing_moves(hang.seconds)}: {_FOLLOW}; {response.value}"
            self._begin(attempt, why, at, hang)

    def _begin(self, attempt: int, why: str, at: float, hang: Hung | None = None) -> None:
        """Ask all nodes for their stacks, and print ``why`` on node 0."""
        if self._round is not None:
            return
        present = self._members.present
        self._number += 1
        self._round = Round(hang, at + SECONDS_TO_ANSWER, set(present))
        if why:
            self._members.note(why)
        self._members.send(present, SendStacks(attempt, self._number))

    def _finish(self, current: Round, response: Response, at: float) -> Hung | None:
        """Show the answers, and which nodes gave none; act if the job hangs."""
        self._round = None
        silent = [each for each in self._members.places if each in current.awaited]
        missing = [f"node {each.rank} ({each.hello.host})" for each in silent[:MOST_MISSING]]
        if len(silent) > MOST_MISSING:
            missing.append(f"{len(silent) - MOST_MISSING} more nodes")
        shown = AllStacks(current.groups.most_common(MOST_GROUPS), tuple(missing))
        hang = current.hang if self._is_hung else None
        known = () if hang is None else _known(current, silent)
        ranks = waited_for(known)[:MOST_RANKS]
        if ranks:
            self._members.note(f"the other ranks wait for {named(ranks)}")
        self._members.send([self._members.own], shown)
        if hang is None:
            return None
        if response is not Response.REPORT:
            return Hung(hang.seconds, ranks, as_line(who_differs(known)))
        if self._acts or any(map(lacks_stack, known)):
            self._hangs_at = at + self._timeout
        return None


def nothing_moves(seconds: float) -> str:
    """Return what ``--hang-timeout`` has found."""
    return f"no rank has printed or exited for {round(seconds, 1):g} s"


def _known(current: Round, silent: list[Node]) -> tuple[StackGroup, ...]:
    """Return all stacks that came, and the ranks of nodes that gave no answer."""
    no_answer = (StackGroup(tuple(each.ranks), "no answer", found=False) for each in silent)
    return (*current.groups.most_common(MOST_KEPT), *no_answer)
