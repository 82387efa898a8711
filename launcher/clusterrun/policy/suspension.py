"""How the coordinator agrees with the nodes on the step at which all ranks save.

    a request -> Holding: each agent holds its ranks and reports their highest step count (1 + step)
              -> Saving: all ranks are to save at the step count after the highest of all
              -> Settled: all have saved, some have not in time, or a rank has exited

A rank writes its step count before it reads the agent's word, and the agent sets that word some time
before it reads the step counts. So no rank passes a step count above the highest reported one before it
reads the agreed one. Nothing waits for a rank to arrive, so no collective can deadlock. Each attempt has
at most one agreement, which ends with the attempt.
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
    HoldRanks,
    HoldReport,
    RankCallsSuspend,
    RankExitedEarly,
    SaveAt,
    SaveReport,
    SuspensionMessage,
    SuspensionPossible,
)
from clusterrun.policy.outcome import MAX_RANKS, NotSuspended, Suspended

SECONDS_TO_NAME = 5.0
"""After this long, a line names the nodes that have not answered, or the ranks that have not saved."""

SECONDS_FOR_FIRST_CALLS = 5.0
"""How long ranks that have never called are waited for once all others have saved."""


class SuspensionRequest(Struct):
    """A request to suspend the job, which stays in force when the attempt ends."""

    by: str
    """What requested it, for messages."""
    at: float


class Holding(Struct):
    """The nodes hold their ranks."""

    request: SuspensionRequest
    nodes: list[Node]
    awaited: set[Node]
    """Nodes that have not reported a step count."""
    deadline: float
    named_at: float
    """When a line names the nodes that have not; NEVER: it was printed."""
    step_count: int = 0
    """The highest step count reported; 0: no rank has called yet."""

    @property
    def awaited_ranks(self) -> tuple[int, ...]:
        """The ranks of the main program on the awaited nodes."""
        return _lowest(rank for each in self.awaited for rank in each.ranks[: each.hello.workers])


class Saving(Struct):
    """The ranks save at ``step_count``."""

    request: SuspensionRequest
    step_count: int
    awaited: set[Node]
    """Nodes that have not reported their progress."""
    grace_ends: float
    """NEVER until the first rank has called."""
    named_at: float
    """When a line names the ranks that have not saved; NEVER: it was printed."""
    expects_calls_until: float
    """The end of ``--suspend-grace``, if a rank calls at once."""
    silence_ends: float = NEVER
    """When the wait for silent ranks ends; NEVER until all others have saved."""
    late: dict[Node, SaveReport] = field(default_factory=dict)
    """The reports of nodes with ranks that have not saved or have never called."""
    unsaved_on: set[Node] = field(default_factory=set)
    """Nodes with ranks that have called but not saved."""
    saved_at: int = 0
    """The highest step count at which a rank has saved; 0: none has."""

    def add_report(self, node: Node, progress: SaveReport) -> None:
        self.awaited.discard(node)
        self.late.pop(node, None)
        self.unsaved_on.discard(node)
        if progress.unsaved or progress.silent:
            self.late[node] = progress
        if progress.unsaved:
            self.unsaved_on.add(node)
        self.saved_at = max(self.saved_at, progress.step_count)

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
        return _lowest(rank for each in self.late.values() for rank in each.unsaved)

    @property
    def silent(self) -> tuple[int, ...]:
        return _lowest(rank for each in self.late.values() for rank in each.silent)


def _lowest(ranks: Iterable[int]) -> tuple[int, ...]:
    """Return the lowest ranks, as many as one message may have."""
    return tuple(sorted(ranks)[:MAX_RANKS])


class Settled(Struct, frozen=True):
    """The agreement is over; a later request is cancelled at once."""


SuspensionEnd = Suspended | NotSuspended


class Suspension:
    """The request to suspend the job, and the agreement of the current attempt.

    Methods that return a ``SuspensionEnd`` return how the suspension ends the attempt; None: it does
    not end it now.
    """

    def __init__(self, members: Members, options: Suspending) -> None:
        self._members = members
        self._options = options
        self._attempt = 0
        self._agreement: Holding | Saving | Settled | None = None
        self._request: SuspensionRequest | None = None
        self.is_possible = False
        """A rank has called ``suspend.requested``, in this attempt or an earlier one."""

    def begin_attempt(self, attempt: int) -> None:
        self._attempt, self._agreement = attempt, None

    @property
    def is_active(self) -> bool:
        """Whether ranks are held or saving."""
        return isinstance(self._agreement, Holding | Saving)

    def has_limit(self, at: float) -> bool:
        """Return whether the agreement ends the attempt in time; it does not if no rank ever calls."""
        match self._agreement:
            case Saving() as saving:
                return saving.has_begun or at < saving.expects_calls_until
            case _:
                return self.is_active

    @property
    def due(self) -> float:
        """When to call ``time_passed``."""
        match self._agreement:
            case Holding(deadline=deadline, named_at=named_at):
                return min(deadline, named_at)
            case Saving() as saving:
                return min(saving.grace_ends, saving.silence_ends, saving.named_at)
            case None | Settled():
                return NEVER
            case _:
                assert_never(self._agreement)

    def add_request(self, by: str, node: Node, at: float) -> bool:
        """Keep the first request until the job is suspended or ends; later ones change nothing.

        Returns:
            Whether a person requests it with ``clusterrun suspend`` after an earlier request: a
            scheduler's signals may repeat, but a person no longer waits for late ranks.

        """
        if self._request is not None:
            return by == SUSPEND_COMMAND
        host = "" if len(self._members.participants) == 1 else f" on {node.hello.host}"
        self._request = SuspensionRequest(as_line(by + host), at)
        return False

    def begin(self, at: float, *, some_have_ended: bool) -> None:
        """Hold all ranks if a suspension was requested, unless the attempt has an agreement.

        ``some_have_ended``: all workers of a node have exited with 0, so the job is about to end.
        """
        if self._request is None:
            return
        if isinstance(self._agreement, Settled) or (self._agreement is None and some_have_ended):
            self._cancel(self._request, "workers have")
        elif self._agreement is None:
            # Nodes that run services only have no ranks to hold.
            nodes = [each for each in self._members.present if each.hello.workers]
            self._agreement = Holding(
                self._request,
                nodes,
                set(nodes),
                deadline=at + self._options.suspend_grace,
                named_at=at + SECONDS_TO_NAME,
            )
            self._members.send(nodes, HoldRanks(self._attempt))

    def stop_waiting(self, at: float) -> SuspensionEnd | None:
        """End without the late ranks, if they were named and any rank has called."""
        saving = self._agreement
        if not isinstance(saving, Saving) or saving.named_at != NEVER or not saving.has_begun:
            return None
        return self._end(saving, at, was_cut_short=True)

    def received(self, node: Node, message: SuspensionMessage, at: float) -> SuspensionEnd | None:
        match message, self._agreement:
            case RankCallsSuspend(), _ if not self.is_possible:
                # From now on SIGTERM requests a suspension.
                self.is_possible = True
                receivers = [*self._members.present, *self._members.waiting]
                self._members.send(receivers, SuspensionPossible())
            case HoldReport(_, step_count), Holding() as holding if node in holding.awaited:
                holding.awaited.discard(node)
                holding.step_count = max(holding.step_count, step_count)
                if not holding.awaited:
                    self._agree(holding, at)
            case SaveReport() as progress, Saving() as saving:
                return self._progressed(saving, node, progress, at)
            case RankExitedEarly(_, rank), Holding(request) | Saving(request):
                self._cancel(request, f"rank {rank} has")
        return None

    def time_passed(self, at: float) -> SuspensionEnd | None:
        """Name late ranks, and end an agreement that has taken too long."""
        match self._agreement:
            case Saving() as saving if at >= min(saving.grace_ends, saving.silence_ends):
                return self._end(saving, at)
            case Holding() as holding if at >= holding.deadline:
                self._agreement = Settled()
                grace = self._options.suspend_grace
                return NotSuspended(holding.request.by, None, grace, holding.awaited_ranks)
            case Holding() | Saving() as agreement if at >= agreement.named_at:
                agreement.named_at = NEVER
                self._members.note(self.awaited)
        return None

    @property
    def awaited(self) -> str:
        """Which ranks have not saved, and how to end the wait for them; "" if there is no agreement."""
        saving = self._agreement
        if isinstance(saving, Holding):
            ranks = named_ranks(saving.awaited_ranks)
            return f"{saving.request.by}: waiting for an answer from the nodes of {ranks}"
        if not isinstance(saving, Saving):
            return ""
        unsaved, silent = saving.unsaved, saving.silent
        late = [f"{named_ranks(unsaved)} to save"] if unsaved else []
        if silent:
            late.append(f"{named_ranks(silent)} to call suspend.requested() for the first time")
        again = f"; run {SUSPEND_COMMAND} again to end the job without waiting" if unsaved else ""
        whom = " and for ".join(late) or "an answer from the nodes"
        return f"{saving.request.by}: waiting for {whom}{again}"

    def _agree(self, holding: Holding, at: float) -> None:
        step = holding.step_count
        self._agreement = Saving(
            holding.request,
            step + 1,
            set(holding.nodes),
            grace_ends=at + self._options.suspend_grace if step else NEVER,
            named_at=at + SECONDS_TO_NAME,
            expects_calls_until=at + self._options.suspend_grace,
        )
        when = f"at step {step}" if step else "at their first call of suspend.requested()"
        grace = f"--suspend-grace {self._options.suspend_grace:g} s"
        self._members.note(f"{holding.request.by}: all ranks save {when} and end ({grace})")
        self._members.send(
            self._members.present, SaveAt(self._attempt, min(step + 1, MAX_STEP_COUNT))
        )

    def _progressed(
        self, saving: Saving, node: Node, progress: SaveReport, at: float
    ) -> SuspensionEnd | None:
        saving.add_report(node, progress)
        if saving.is_saved and not saving.late:
            return self._end(saving, at)
        if saving.grace_ends == NEVER and saving.has_begun:
            saving.grace_ends = at + self._options.suspend_grace
        saving.silence_ends = at + SECONDS_FOR_FIRST_CALLS if saving.is_saved else NEVER
        return None

    def _cancel(self, request: SuspensionRequest, who: str) -> None:
        """Release all ranks: a rank has exited with 0 before all had saved."""
        self._members.note(f"{request.by}: not suspended, since {who} exited already")
        self._members.send(self._members.present, CancelSuspension(self._attempt))
        self._agreement, self._request = Settled(), None

    def _end(self, saving: Saving, at: float, *, was_cut_short: bool = False) -> SuspensionEnd:
        """Return how the suspension ends now; silent ranks alone do not make it fail."""
        request, options = saving.request, self._options
        self._agreement = Settled()
        if saving.is_saved:
            step, seconds = saving.saved_at - 1, at - request.at
            return Suspended(request.by, step, seconds, options.suspend_exit_code, saving.silent)
        step = saving.step_count - 1
        return NotSuspended(
            request.by, step, options.suspend_grace, saving.unsaved, saving.silent, was_cut_short
        )
