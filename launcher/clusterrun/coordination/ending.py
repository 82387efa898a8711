"""The end of an attempt on all its nodes: one stop, one verdict."""

from typing import assert_never

from msgspec.structs import replace

from clusterrun.coordination import notices, restarting
from clusterrun.coordination.actions import Action, Disconnect, PreparePort, Send
from clusterrun.coordination.messages import Done, EndedExternally, Failing, Notice, Stop, Verdict
from clusterrun.coordination.state import NEVER, Phase, Report, State
from clusterrun.coordination.verdict import reached_reason, reported_external_causes
from clusterrun.domain.bounds import as_line
from clusterrun.domain.outcome import (
    ExternalCause,
    Fate,
    HelperFailed,
    Interrupted,
    NodeLost,
    Reason,
    WorkerFailed,
)

SECONDS_BETWEEN_STOP_NOTICES = 60.0
"""On nodes whose workers have ended, while others run."""

MOST_EXTERNAL_CAUSES = 16
"""Different ones that are kept; most often only the first matters."""


def message_received(
    state: State, connection: int, message: Failing | EndedExternally | Done, at: float
) -> tuple[Action, ...]:
    """Take note of a member's report, while the job runs."""
    if connection in state.lost:
        # It went on after it had been given up: the others end without it.
        return ()
    match message:
        case EndedExternally(_, external_cause):
            # Also from a node that has reported: its user may not want to wait for the others.
            external_cause = _with_host(state, connection, external_cause)
            notice = _no_restart(state, connection, external_cause)
            _keep(state, external_cause, at)
            return (*notice, *_stop(state, connection, external_cause))
        case _ if connection in state.attempt.reports:
            # Its report was its last message in this attempt.
            return (Disconnect((connection,)),)
        case Failing(_, fate, age):
            state.attempt.announced[connection] = fate, at - max(0.0, age)
            return _stop(state, connection, fate)
        case Done():
            return _report_received(state, connection, message, at)
        case _:
            assert_never(message)


def member_gone(
    state: State, connection: int, at: float, *, unreachable: bool
) -> tuple[Action, ...]:
    """Take note that the connection to a member of the running job is closed."""
    if connection in state.lost:
        return ()
    return _absent(state, connection, at, is_silent=unreachable)


def member_silent(state: State, connection: int, at: float) -> tuple[Action, ...]:
    """Take note that a member of the running job is silent for too long.

    It may be frozen, and continue later: then it finds all that was sent to the others.
    """
    if connection in state.lost:
        return ()
    state.silent.add(connection)
    return _absent(state, connection, at, is_silent=True)


def _absent(state: State, connection: int, at: float, *, is_silent: bool) -> tuple[Action, ...]:
    rhythm = state.terms.rhythm
    node = NodeLost(state.ranks[connection], state.members.hellos[connection].host)
    if is_silent:
        node = replace(node, how=rhythm.silence)
    state.mark_absent(connection)
    if connection in state.attempt.reports:
        state.left[connection] = node
        return ()
    state.lost[connection] = node
    state.lost_at = min(state.lost_at, at - (rhythm.timeout if is_silent else 0.0))
    stop = _stop(state, connection, node)
    return (*stop, *_end_if_all_have_reported(state, at))


def _no_restart(state: State, connection: int, external_cause: ExternalCause) -> tuple[Action, ...]:
    """Print where a signal came that it prevents the restart for which all nodes are stopping."""
    attempt = state.attempt
    if not isinstance(external_cause, Interrupted) or external_cause in attempt.external_causes:
        return ()
    if not isinstance(attempt.reason_to_stop, Fate) or not restarting.is_possible(state):
        return ()
    return (Send((connection,), Notice(notices.no_restart(external_cause.number))),)


def _keep(state: State, external_cause: ExternalCause, at: float) -> None:
    """Keep each different one: a scheduler signals thousands of nodes at once, and all report it."""
    kept = state.attempt.external_causes
    if external_cause not in kept and len(kept) < MOST_EXTERNAL_CAUSES:
        kept[external_cause] = at


def _report_received(state: State, connection: int, done: Done, at: float) -> tuple[Action, ...]:
    external_cause = done.external_cause and _with_host(state, connection, done.external_cause)
    state.attempt.reports[connection] = Report(
        fates=tuple(each.fate for each in done.fates),
        ends=tuple(at - max(0.0, each.age) for each in done.fates),
        external_cause=external_cause,
    )
    failed = next((each.fate for each in done.fates if not each.fate.ending.succeeded), None)
    cause = external_cause or failed
    stop = _stop(state, connection, cause) if cause else ()
    return (*stop, *_end_if_all_have_reported(state, at))


def _stop(
    state: State, connection: int, cause: Fate | ExternalCause | NodeLost
) -> tuple[Action, ...]:
    """Stop the workers of all nodes, unless that was done already."""
    if state.attempt.reason_to_stop is not None:
        return ()
    state.attempt.reason_to_stop = cause
    why = _why(cause, state.members.hellos[connection].host)
    external_cause = None if isinstance(cause, Fate | NodeLost) else cause
    return (Send(_reachable(state), Stop(state.attempt.number, why, external_cause)),)


def _why(cause: Fate | ExternalCause | NodeLost, host: str) -> str:
    match cause:
        case Fate():
            return f"rank {cause.rank} on {host} failed"
        case NodeLost():
            return notices.lost(cause)
        case _:
            return notices.external_cause(host, cause)


def _with_host(state: State, connection: int, external_cause: ExternalCause) -> ExternalCause:
    """Add the member's host to what other nodes would otherwise take for their own."""
    if isinstance(external_cause, HelperFailed) and len(state.ranks) > 1:
        host = state.members.hellos[connection].host
        # The name may be as long as a line already.
        return replace(external_cause, name=as_line(f"{external_cause.name} on {host}"))
    return external_cause


def _reachable(state: State) -> tuple[int, ...]:
    return tuple(each for each in state.ranks if not state.is_absent(each) or each in state.silent)


def _end_if_all_have_reported(state: State, at: float) -> tuple[Action, ...]:
    reports = state.attempt.reports
    if len(reports) + len(state.lost) < len(state.ranks):
        next_notice = min(state.next_notice, at + SECONDS_BETWEEN_STOP_NOTICES)
        state.next_notice = next_notice if reports else NEVER
        return ()
    why = reached_reason(state)
    if not isinstance(why, WorkerFailed) or not restarting.is_possible(state):
        return _over(state, why, "")
    if external_cause := next(reported_external_causes(state), None):
        # It came when all nodes were stopping already, and keeps them from going on.
        return _over(state, external_cause, "")
    if no_restart := restarting.why_no_restart(state, why):
        return _over(state, why, no_restart)
    state.phase = Phase.RESTARTING
    state.previous = why
    state.next_notice = NEVER
    return (PreparePort(),)


def _over(state: State, why: Reason, no_restart: str) -> tuple[Action, ...]:
    state.phase = Phase.OVER
    state.next_notice = NEVER
    verdict = Send(_reachable(state), Verdict(why, no_restart))
    # The other members disconnect once they have the verdict.
    return (verdict, Disconnect(tuple(state.silent))) if state.silent else (verdict,)
