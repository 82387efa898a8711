"""The step at which all ranks save: how the coordinator agrees on it with the members. Pure.

    a request -> Holding: each agent holds its ranks, and reports their highest mark
              -> Saving: all are to save at the mark after the highest of all
              -> Over: all have saved, not all have in time, or a rank has ended

A rank writes its mark before it looks at the agent's word, and the agent sets that word some time
before it reads the marks. So no rank has passed, or will pass, a mark above the highest reported
one before it learns the agreed one. Nothing waits for a rank to arrive: no collective can deadlock.
There is one agreement for each attempt.
"""

from collections.abc import Iterable
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.domain.event_source import NEVER
from clusterrun.domain.suspension import SECONDS_TO_NAME, SaveProgress

SECONDS_FOR_FIRST_CALLS = 5.0
"""Ranks that have never called when all others have saved are not waited for any longer."""


class NotWanted(Struct, frozen=True):
    """Nothing has asked for a suspension."""


class Holding(Struct, frozen=True):
    """The members hold their ranks."""

    members: frozenset[int]
    awaited: frozenset[int]
    """Members that have not reported a mark."""
    mark: int
    """The highest that was reported; 0: no rank has called yet."""
    deadline: float


class Saving(Struct, frozen=True):
    """The ranks save at ``mark``."""

    mark: int
    grace: float
    awaited: frozenset[int]
    """Members that have not reported their progress."""
    nodes: tuple[tuple[int, SaveProgress], ...] = ()
    """The progress of the others."""
    grace_ends: float = NEVER
    """Not before the first rank has called."""
    silence_ends: float = NEVER
    """When silent ranks are not waited for any longer, all others having saved."""
    named_at: float = NEVER
    """When the ranks that have not saved are named; NEVER: they were."""

    @property
    def saved_at(self) -> int:
        """The highest mark at which a rank has saved; 0: none has."""
        return max((progress.mark for _, progress in self.nodes), default=0)

    @property
    def unsaved(self) -> tuple[int, ...]:
        return tuple(sorted(rank for _, progress in self.nodes for rank in progress.unsaved))

    @property
    def silent(self) -> tuple[int, ...]:
        return tuple(sorted(rank for _, progress in self.nodes for rank in progress.silent))

    @property
    def is_saved(self) -> bool:
        """Whether all ranks that have called have saved, and at least one has."""
        return not self.awaited and not self.unsaved and self.saved_at > 0


class Over(Struct, frozen=True):
    """The agreement is over: by its end, or because the attempt ends otherwise."""


Agreement = NotWanted | Holding | Saving | Over


class Hold(Struct, frozen=True):
    """Have all members hold their ranks."""


class Agree(Struct, frozen=True):
    """Have all ranks save at ``mark``."""

    mark: int


class Cancel(Struct, frozen=True):
    """Let all ranks go on."""


class Succeed(Struct, frozen=True):
    """All ranks have saved, apart from the ``silent`` ones: end the job."""

    mark: int
    silent: tuple[int, ...]


class GiveUp(Struct, frozen=True):
    """The time is over, or a person does not wait for it: end the job."""

    mark: int
    unsaved: tuple[int, ...]
    silent: tuple[int, ...]
    by_request: bool = False


class NameAwaited(Struct, frozen=True):
    """Say which ranks have not saved."""


Decision = Hold | Agree | Cancel | Succeed | GiveUp | NameAwaited

Decided = tuple[Agreement, tuple[Decision, ...]]


def wanted(agreement: Agreement, members: Iterable[int], at: float, grace: float) -> Decided:
    """Begin, unless the attempt has an agreement already: a second request is the same one."""
    match agreement:
        case NotWanted():
            all_members = frozenset(members)
            return Holding(all_members, all_members, 0, at + grace), (Hold(),)
        case Over():
            return agreement, (Cancel(),)
        case Holding() | Saving():
            return agreement, ()
        case _:
            assert_never(agreement)


def held(agreement: Agreement, member: int, mark: int, at: float, grace: float) -> Decided:
    """Take the highest mark of a member's ranks; agree once all have reported."""
    if not isinstance(agreement, Holding) or member not in agreement.awaited:
        return agreement, ()
    awaited, highest = agreement.awaited - {member}, max(agreement.mark, mark)
    if awaited:
        return replace(agreement, awaited=awaited, mark=highest), ()
    grace_ends = at + grace if highest else NEVER
    saving = Saving(
        highest + 1,
        grace,
        agreement.members,
        grace_ends=grace_ends,
        named_at=at + SECONDS_TO_NAME,
    )
    return saving, (Agree(saving.mark),)


def asked_again(agreement: Agreement) -> Decided:
    """Go on without the ranks that were named, unless no rank has called yet."""
    if not isinstance(agreement, Saving) or agreement.named_at != NEVER:
        return agreement, ()
    has_begun = agreement.unsaved or agreement.saved_at
    return (Over(), (_end(agreement, by_request=True),)) if has_begun else (agreement, ())


def progressed(agreement: Agreement, member: int, progress: SaveProgress, at: float) -> Decided:
    """Take the progress of a member's ranks; succeed once all have saved."""
    if not isinstance(agreement, Saving):
        return agreement, ()
    others = tuple(each for each in agreement.nodes if each[0] != member)
    saving = replace(
        agreement, awaited=agreement.awaited - {member}, nodes=(*others, (member, progress))
    )
    if saving.is_saved and not saving.silent:
        return Over(), (Succeed(saving.saved_at, ()),)
    has_asked = saving.unsaved or saving.saved_at
    starts = saving.grace_ends == NEVER and has_asked
    grace_ends = at + saving.grace if starts else saving.grace_ends
    silence_ends = at + SECONDS_FOR_FIRST_CALLS if saving.is_saved else NEVER
    return replace(saving, grace_ends=grace_ends, silence_ends=silence_ends), ()


def rank_left(agreement: Agreement) -> Decided:
    """Cancel the suspension: a rank has ended with 0 before all had saved."""
    if isinstance(agreement, Holding | Saving):
        return Over(), (Cancel(),)
    return agreement, ()


def due(agreement: Agreement) -> float:
    """Return when ``time_passed`` is to be called."""
    match agreement:
        case Holding():
            return agreement.deadline
        case Saving():
            return min(agreement.grace_ends, agreement.silence_ends, agreement.named_at)
        case NotWanted() | Over():
            return NEVER
        case _:
            assert_never(agreement)


def time_passed(agreement: Agreement, at: float) -> Decided:
    """Name ranks that take long, and end an agreement that has taken too long."""
    if at < due(agreement):
        return agreement, ()
    match agreement:
        case Saving() if at >= min(agreement.grace_ends, agreement.silence_ends):
            return Over(), (_end(agreement),)
        case Saving():
            return replace(agreement, named_at=NEVER), (NameAwaited(),)
        case Holding():
            return Over(), (GiveUp(agreement.mark + 1, (), ()),)
        case NotWanted() | Over():
            return agreement, ()
        case _:
            assert_never(agreement)


def _end(saving: Saving, *, by_request: bool = False) -> Succeed | GiveUp:
    """Return how it ends without the others; silent ranks alone do not make it fail."""
    if saving.is_saved:
        return Succeed(saving.saved_at, saving.silent)
    return GiveUp(saving.mark, saving.unsaved, saving.silent, by_request)
