"""Messages about workers, cut to what the reports need and to the size of a frame."""

from msgspec.structs import replace

from clusterrun.coordination.choice_of_cause import may_be_cause
from clusterrun.domain.bounds import as_line, as_name, as_seconds, as_text, as_wall_clock
from clusterrun.domain.messages import (
    AgedFate,
    AgentMessage,
    Done,
    EndedExternally,
    FirstFailure,
    Stacks,
)
from clusterrun.domain.outcome import Ending, ExternalCause, Fate, HelperFailed, NotStarted
from clusterrun.domain.tracebacks import plain_lines, with_beginning

_SPACE = 1 << 17
"""Characters for all tails and error files of one message; each may take four bytes."""

_MOST_OF_ONE = 16 << 10
"""Characters of one tail or error file; no tail has more."""

_MOST_OF_A_STACK = 2 << 10


def bounded(message: AgentMessage) -> AgentMessage:
    """Return ``message`` with as much of its texts as a frame has room for."""
    match message:
        case FirstFailure():
            fate = _fitted(message.fate, _MOST_OF_ONE)
            return replace(message, fate=fate, age=as_seconds(message.age))
        case EndedExternally():
            cause = _fitted_external_cause(message.external_cause)
            return replace(message, external_cause=cause)
        case Done():
            return _fitted_done(message)
        case Stacks(_, _, groups):
            fitted = tuple(replace(group, text=as_text(group.text)) for group in groups)
            return replace(message, groups=fitted)
        case _:
            return message


def _fitted_done(message: Done) -> Done:
    fates = _needed(message.fates)
    most = min(_MOST_OF_ONE, _SPACE // max(1, 2 * len(fates)))
    cause = message.external_cause
    return Done(
        message.attempt,
        tuple(AgedFate(_fitted(aged.fate, most), as_seconds(aged.age)) for aged in fates),
        None if cause is None else _fitted_external_cause(cause),
    )


def _needed(fates: tuple[AgedFate, ...]) -> tuple[AgedFate, ...]:
    """Return those that may be the cause; otherwise, one that shows that not all have succeeded.

    In a large job that stops, most workers are stopped ones: node 0 would decode all their tails.
    """
    failed = tuple(each for each in fates if not each.fate.ending.succeeded)
    return tuple(each for each in failed if may_be_cause(each.fate)) or failed[:1]


def _fitted(fate: Fate, most: int) -> Fate:
    fate = replace(
        fate,
        host=as_name(fate.host),
        ending=_fitted_ending(fate.ending),
        clock=as_wall_clock(fate.clock),
        ran_for=as_seconds(fate.ran_for),
        log=as_line(fate.log),
        out_of_memory=as_line(fate.out_of_memory),
        machine_fault=as_line(fate.machine_fault),
        # Its newest calls come first.
        hung=as_text(fate.hung[:_MOST_OF_A_STACK]),
    )
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


def _fitted_external_cause(external_cause: ExternalCause) -> ExternalCause:
    if isinstance(external_cause, HelperFailed):
        # The last output of its interpreter may have several lines.
        how = as_line(" ".join(external_cause.how.split()))
        return HelperFailed(as_line(external_cause.name), how, external_cause.signal)
    return external_cause
