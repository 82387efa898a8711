"""Messages about workers, cut to what the reports need and to the size of a frame."""

from collections.abc import Sequence

from msgspec.structs import replace

from clusterrun.coordination.messages import AgedFate, Done, EndedExternally, Failing, Stacks
from clusterrun.domain.bounds import as_line, as_name, as_seconds, as_text, as_wall_clock
from clusterrun.domain.outcome import Ending, ExternalCause, Fate, HelperFailed, NotStarted, Reason
from clusterrun.domain.stacks import StackGroup
from clusterrun.domain.tracebacks import plain_lines, with_beginning

_SPACE = 1 << 17
"""Characters for all tails and error files of one message; each may take four bytes."""

_MOST_OF_ONE = 16 << 10
"""Characters of one tail or error file; no tail has more."""


def failing(attempt: int, fate: Fate, age: float) -> Failing:
    """Return the message that a worker failed ``age`` seconds ago."""
    return Failing(attempt, _fitted(fate, _MOST_OF_ONE), as_seconds(age))


def ended_externally(attempt: int, external_cause: ExternalCause) -> EndedExternally:
    """Return the message that something other than a worker ends the job."""
    return EndedExternally(attempt, _fitted_external_cause(external_cause))


def done(attempt: int, fates: Sequence[Fate], now: float, external_cause: Reason | None) -> Done:
    """Return the message that all workers ended; ``now`` is the time by the clock of the fates."""
    failures = sum(not fate.ending.succeeded for fate in fates)
    most = min(_MOST_OF_ONE, _SPACE // max(1, 2 * failures))
    return Done(
        attempt,
        tuple(AgedFate(_fitted(fate, most), as_seconds(now - fate.clock)) for fate in fates),
        _from_outside(external_cause),
    )


def stacks(attempt: int, number: int, groups: Sequence[StackGroup]) -> Stacks:
    """Return the answer to ``SendStacks`` with this ``number``."""
    return Stacks(
        attempt, number, tuple(replace(group, text=as_text(group.text)) for group in groups)
    )


def _fitted(fate: Fate, most: int) -> Fate:
    fate = replace(
        fate,
        host=as_name(fate.host),
        ending=_fitted_ending(fate.ending),
        clock=as_wall_clock(fate.clock),
        ran_for=as_seconds(fate.ran_for),
        log=as_line(fate.log),
        out_of_memory=as_line(fate.out_of_memory),
    )
    if fate.ending.succeeded:
        # Its output is not reported.
        return replace(fate, tail="", error="")
    # A part of a JSON text cannot be read.
    error = fate.error if len(fate.error) <= most else ""
    return replace(fate, tail=as_text(_shortened_tail(fate.tail, most)), error=as_text(error))


def _fitted_ending(ending: Ending) -> Ending:
    if isinstance(ending, NotStarted):
        return NotStarted(as_name(ending.step), as_line(ending.error))
    return ending


def _shortened_tail(tail: str, most: int) -> str:
    """Return at most ``most`` characters: the end, and the beginning of its traceback."""
    if len(tail) <= most:
        return tail
    half = tail[-most // 2 :].partition("\n")[2]
    before, end = plain_lines(tail[: len(tail) - len(half)]), half.split("\n")
    kept = with_beginning(before, end)
    shortened = "\n".join(kept)
    has_beginning = len(kept) > len(end) and len(shortened) <= most
    return shortened if has_beginning else tail[-most:]


def _from_outside(reason: Reason | None) -> ExternalCause | None:
    if isinstance(reason, ExternalCause):
        return _fitted_external_cause(reason)
    return None


def _fitted_external_cause(external_cause: ExternalCause) -> ExternalCause:
    if isinstance(external_cause, HelperFailed):
        # The last output of its interpreter may have several lines.
        how = as_line(" ".join(external_cause.how.split()))
        return HelperFailed(as_line(external_cause.name), how, external_cause.signal)
    return external_cause
