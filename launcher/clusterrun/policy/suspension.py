"""The step at which all ranks save: how the coordinator agrees on it with the nodes.

    a request -> Holding: each agent holds its ranks, and reports their highest mark
              -> Saving: all are to save at the mark after the highest of all
              -> Settled: all have saved, not all have in time, or a rank has ended

A rank writes its mark before it looks at the agent's word, and the agent sets that word some time
before it reads the marks. So no rank has passed, or will pass, a mark above the highest reported
one before it learns the agreed one. Nothing waits for a rank to arrive: no collective can deadlock.
There is one agreement for each attempt; what else ends the attempt ends the agreement.
"""

from collections.abc import Iterable
from typing import assert_never

from msgspec import Struct, field

from clusterrun.bounds import as_line, named_ranks
from clusterrun.job.options import Suspending
from clusterrun.loop import NEVER
from clusterrun.policy.members import Members, Node
from clusterrun.policy.messages import (
    MAX_STEP_COUNT,
    SUSPEND_COMMAND,
    CancelSuspension,
    Held,
    HoldRanks,
    RankCallsSuspend,
    RankExitedEarly,
    SaveAt,
    Saves,
    SuspensionMessage,
    SuspensionPossible,
)
from clusterrun.policy.outcome import MAX_RANKS, NotSuspended, Suspended

SECONDS_TO_NAME = 5.0
"""Ranks that have not saved by then are named."""

SECONDS_FOR_FIRST_CALLS = 5.0
"""Ranks that have never called when all others have saved are not waited for any longer."""


class SuspensionRequest(Struct):
    """A suspension is wanted ``by`` whom, since ``at``; it outlives an attempt."""

    by: str
    at: float
    is_typed: bool = False
    """A person has typed the request, or typed it too."""


class Holding(Struct):
    """The nodes hold their ranks."""

    nodes: list[Node]
    awaited: set[Node]
    """Those that have not reported a mark."""
    deadline: float
    mark: int = 0
    """The highest that was reported; 0: no rank has called yet."""


class Saving(Struct):
    """The ranks save at ``mark``."""

    mark: int
    awaited: set[Node]
    """Nodes that have not reported their progress."""
    grace_ends: float
    """Not before the first rank has called."""
    named_at: float
    """When the ranks that have not saved are named; NEVER: they were."""
    silence_ends: float = NEVER
    """When silent ranks are not waited for any longer, all others having saved."""
    late: dict[Node, Saves] = field(default_factory=dict)
    """Of nodes with ranks that have not saved, or have never called."""
    unsaved_on: set[Node] = field(default_factory=set)
    """Those of them with ranks that have called and not saved."""
    saved_at: int = 0
    """The highest mark at which a rank has saved; 0: none has."""

    def take(self, node: Node, progress: Saves) -> None:
        self.awaited.discard(node)
        self.late.pop(node, None)
        self.unsaved_on.discard(node)
        if progress.unsaved or progress.silent:
            self.late[node] = progress
        if progress.unsaved:
            self.unsaved_on.add(node)
        self.saved_at = max(self.saved_at, progress.mark)

    @property
    def is_saved(self) -> bool:
        """Whether all ranks that have called have saved, and at least one has."""
        return not self.awaited and not self.unsaved_on and self.saved_at > 0

    @property
    def has_begun(self) -> bool:
        """Whether a rank has called."""
        return bool(self.unsaved_on) or self.saved_at > 0

    @property
    def unsaved(self) -> tuple[int, ...]:
        return _first(rank for each in self.late.values() for rank in each.unsaved)

    @property
    def silent(self) -> tuple[int, ...]:
        return _first(rank for each in self.late.values() for rank in each.silent)


def _first(ranks: Iterable[int]) -> tuple[int, ...]:
    """Return as many ranks of all nodes as one message may name."""
    return tuple(sorted(ranks)[:MAX_RANKS])


class Settled(Struct, frozen=True):
    """The agreement is over; a later request is cancelled at once."""


Agreement = Holding | Saving | Settled | None

End = Suspended | NotSuspended


class Suspension:
    """What is wanted, in all attempts, and the agreement of the one that runs.

    Methods that return an ``End`` return how the suspension ends the attempt; None: not now.
    """

    def __init__(self, members: Members, options: Suspending) -> None:
        self._members = members
        self._options = options
        self._attempt = 0
        self._now: Agreement = None
        self.request: SuspensionRequest | None = None
        """None: nothing asks for one."""
        self.is_possible = False
        """A rank has called ``suspend.requested``, in this attempt or an earlier one."""

    def begin_attempt(self, attempt: int) -> None:
        self._attempt, self._now = attempt, None

    @property
    def goes_on(self) -> bool:
        """Whether ranks are held, or save."""
        return isinstance(self._now, Holding | Saving)

    @property
    def due(self) -> float:
        """When to call ``time_passed``."""
        match self._now:
            case Holding(deadline=deadline):
                return deadline
            case Saving() as saving:
                return min(saving.grace_ends, saving.silence_ends, saving.named_at)
            case None | Settled():
                return NEVER
            case _:
                assert_never(self._now)

    def wanted(self, by: str, node: Node, at: float) -> bool:
        """Keep the first request until the job is suspended or over; a second one is the same.

        Returns:
            Whether a person has typed it again, who has read which ranks are late.

        """
        known, is_typed = self.request, by == SUSPEND_COMMAND
        if known is None:
            host = "" if len(self._members.places) == 1 else f" on {node.hello.host}"
            self.request = SuspensionRequest(as_line(by + host), at, is_typed)
            return False
        again = known.is_typed and is_typed
        known.is_typed = known.is_typed or is_typed
        return again

    def begin(self, at: float, *, some_have_ended: bool) -> None:
        """Hold all ranks if a suspension is wanted, unless the attempt has an agreement.

        ``some_have_ended``: all workers of a node have ended with 0, and so does the job.
        """
        if self.request is None:
            return
        if isinstance(self._now, Settled) or (self._now is None and some_have_ended):
            self._cancel("workers have")
        elif self._now is None:
            # Others have services alone.
            nodes = [each for each in self._members.present if each.hello.workers]
            self._now = Holding(nodes, set(nodes), at + self._options.suspend_grace)
            self._members.send(nodes, HoldRanks(self._attempt))

    def asked_again(self, at: float) -> End | None:
        """Go on without the ranks that were named, unless no rank has called yet."""
        saving = self._now
        if not isinstance(saving, Saving) or saving.named_at != NEVER or not saving.has_begun:
            return None
        return self._end(saving, at, is_given_up=True)

    def received(self, node: Node, message: SuspensionMessage, at: float) -> End | None:
        match message, self._now:
            case RankCallsSuspend(), _ if not self.is_possible:
                # SIGTERM is a request from now on.
                self.is_possible = True
                receivers = [*self._members.present, *self._members.waiting]
                self._members.send(receivers, SuspensionPossible())
            case Held(_, mark), Holding() as holding if node in holding.awaited:
                holding.awaited.discard(node)
                holding.mark = max(holding.mark, mark)
                if not holding.awaited:
                    self._agree(holding, at)
            case Saves() as progress, Saving() as saving:
                return self._progressed(saving, node, progress, at)
            case RankExitedEarly(_, rank), Holding() | Saving():
                self._cancel(f"rank {rank} has")
        return None

    def time_passed(self, at: float) -> End | None:
        """Name ranks that take long, and end an agreement that has taken too long."""
        match self._now:
            case Saving() as saving if at >= min(saving.grace_ends, saving.silence_ends):
                return self._end(saving, at)
            case Saving() as saving if at >= saving.named_at:
                saving.named_at = NEVER
                self._members.note(self.awaited)
            case Holding() as holding if at >= holding.deadline:
                self._now = Settled()
                silent = (each for each in holding.nodes if each in holding.awaited)
                ranks = tuple(rank for each in silent for rank in each.ranks[: each.hello.workers])[
                    :MAX_RANKS
                ]
                return NotSuspended(self._by, holding.mark, self._options.suspend_grace, ranks)
        return None

    @property
    def awaited(self) -> str:
        """Which ranks have not saved, and how to go on without them; "" if no step is agreed on."""
        saving = self._now
        if not isinstance(saving, Saving):
            return ""
        unsaved, silent = saving.unsaved, saving.silent
        late = [f"{named_ranks(unsaved)} to save"] if unsaved else []
        if silent:
            late.append(f"{named_ranks(silent)} to call suspend.requested() for the first time")
        again = f"; {SUSPEND_COMMAND}, typed again, ends the job without waiting" if unsaved else ""
        whom = " and for ".join(late) or "an answer of the nodes"
        return f"{self._by}: waits for {whom}{again}"

    @property
    def _known_request(self) -> SuspensionRequest:
        if self.request is None:
            raise AssertionError("an agreement follows a request")
        return self.request

    @property
    def _by(self) -> str:
        return self._known_request.by

    def _agree(self, holding: Holding, at: float) -> None:
        step = holding.mark
        self._now = Saving(
            step + 1,
            set(holding.nodes),
            grace_ends=at + self._options.suspend_grace if step else NEVER,
            named_at=at + SECONDS_TO_NAME,
        )
        when = f"at step {step}" if step else "at their first call of suspend.requested()"
        grace = f"--suspend-grace {self._options.suspend_grace:g} s"
        self._members.note(f"{self._by}: all ranks save {when} and end ({grace})")
        self._members.send(
            self._members.present, SaveAt(self._attempt, min(step + 1, MAX_STEP_COUNT))
        )

    def _progressed(self, saving: Saving, node: Node, progress: Saves, at: float) -> End | None:
        saving.take(node, progress)
        if saving.is_saved and not saving.late:
            return self._end(saving, at)
        if saving.grace_ends == NEVER and saving.has_begun:
            saving.grace_ends = at + self._options.suspend_grace
        saving.silence_ends = at + SECONDS_FOR_FIRST_CALLS if saving.is_saved else NEVER
        return None

    def _cancel(self, who: str) -> None:
        """Let all ranks go on: a rank has ended with 0 before all had saved."""
        self._members.note(f"{self._by}: not suspended, since {who} exited already")
        self._members.send(self._members.present, CancelSuspension(self._attempt))
        self._now, self.request = Settled(), None

    def _end(self, saving: Saving, at: float, *, is_given_up: bool = False) -> End:
        """Return how it ends now; silent ranks alone do not make it fail."""
        request, options = self._known_request, self._options
        self._now = Settled()
        if saving.is_saved:
            step, seconds = saving.saved_at - 1, at - request.at
            return Suspended(request.by, step, seconds, options.suspend_exit_code, saving.silent)
        step = saving.mark - 1
        return NotSuspended(
            request.by, step, options.suspend_grace, saving.unsaved, saving.silent, is_given_up
        )
