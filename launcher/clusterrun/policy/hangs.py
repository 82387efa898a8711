"""Whether the job hangs, and what is done about it.

It hangs when no rank of any node has printed or exited for ``--hang-timeout``. Then the stacks of all
ranks are shown on node 0, and ``--on-hang`` may restart or end the job. A hang is reported once, and
again after a rank has moved. If a rank had no stack, its script had perhaps not begun: then after the
same time, too.
"""

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from clusterrun.bounds import as_line, named_ranks
from clusterrun.loop import NEVER
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.members import Members, Node
from clusterrun.policy.messages import Idle
from clusterrun.policy.outcome import MOST_RANKS, Hung
from clusterrun.policy.stacks import (
    StackGroup,
    in_words_exited,
    lacks_stack,
    waited_for,
    who_differs,
)

if TYPE_CHECKING:
    # Few jobs need it.
    from clusterrun.policy.stack_report import StackReport

STACKS_FOLLOW = "the Python stacks of all ranks follow"


class Response(Enum):
    """What is done about a hang now; the value says it."""

    REPORT = "nothing is ended"
    RESTART = "then all workers are restarted (--on-hang)"
    STOP = "then the job is stopped (--on-hang)"


class Hangs:
    """Whether an attempt hangs."""

    def __init__(
        self,
        members: Members,
        programs: Iterable[NumberedProgram] = (),
        *,
        acts: bool,
    ) -> None:
        """Begin with the attempt.

        Args:
            members: has the nodes.
            programs: of a job with services; those wait for nothing.
            acts: ``--on-hang`` does more than report.

        """
        self._programs = tuple(programs)
        self._members = members
        self._acts = acts
        self._runs = True
        self._idle: set[Node] = set()
        """Nodes none of whose workers has printed or exited for ``_timeout``; lost ones excluded."""
        self._timeout = 0.0
        """As they say; 0.0 until the first one does."""
        self._idle_since = NEVER
        """When the last of them was last active."""
        self._hangs_at = NEVER
        """When the job counts as hung, unless a worker is active before; NEVER: it has been told."""
        self._seconds = 0.0
        """How long it has hung, if stacks are collected for that; 0.0: they are not."""

    @property
    def due(self) -> float:
        """When to call ``report``, unless stacks are being collected then."""
        return self._hangs_at

    def lost(self, node: Node) -> None:
        """Expect nothing from a node any more."""
        self._idle.discard(node)

    def idle(self, node: Node, idle: Idle, at: float) -> None:
        """Take note that no worker of a node moves, or that one has moved; ``due`` may be now."""
        if idle.seconds <= 0 or not node.here:
            self._idle.discard(node)
            self._hangs_at = NEVER
            return
        self._idle.add(node)
        if not self._is_hung:
            return
        self._timeout, self._idle_since = idle.seconds, at - idle.seconds
        self._hangs_at = at

    def report(self, response: Response, at: float) -> str:
        """Return why all stacks are to be shown; "": the job does not hang."""
        self._hangs_at = NEVER
        if not self._is_hung:
            return ""
        self._seconds = at - self._idle_since
        return f"{nothing_moves(self._seconds)}: {STACKS_FOLLOW}; {response.value}"

    def collected(self, report: "StackReport", response: Response, at: float) -> Hung | None:
        """Name those for whom the others wait; return that the attempt is to be stopped for the hang.

        ``report`` has the stacks that have come; a user may have asked for them, too.
        """
        seconds, self._seconds = self._seconds, 0.0
        if not seconds or not self._is_hung:
            return None
        known = tuple(self._of_main(report.known()))
        ranks = waited_for(known)[:MOST_RANKS]
        if ranks:
            exited = in_words_exited(known, ranks)
            self._members.note(f"the other ranks wait for {named_ranks(ranks)}{exited}")
        if response is not Response.REPORT:
            return Hung(seconds, ranks, as_line(who_differs(known)))
        if self._acts or any(map(lacks_stack, known)):
            self._hangs_at = at + self._timeout
        return None

    def end_attempt(self) -> None:
        """Find no hang any more: the workers are being stopped."""
        self._runs = False

    @property
    def _is_hung(self) -> bool:
        """Whether no rank of any node moves, and none is being stopped."""
        expected = len(self._members.places) - len(self._members.lost)
        return self._runs and len(self._idle) == expected

    def _of_main(self, groups: Iterable[StackGroup]) -> Iterable[StackGroup]:
        """Yield the stacks of the main program alone."""
        size = self._programs[0].size if self._programs else None
        for group in groups:
            own = tuple(rank for rank in group.ranks if size is None or rank < size)
            if own:
                yield replace(group, ranks=own)


def nothing_moves(seconds: float) -> str:
    """Return what ``--hang-timeout`` has found."""
    return f"no rank has printed or exited for {round(seconds, 1):g} s"
