"""The end of an attempt on all its nodes: one stop, one verdict."""

from typing import assert_never

from msgspec.structs import replace

from clusterrun.coordination import job_notices
from clusterrun.coordination.coordinator_actions import Actions, Disconnect, Send
from clusterrun.coordination.coordinator_events import MemberGone
from clusterrun.coordination.job_end import end_job, reachable
from clusterrun.coordination.job_state import JobState, ReasonToRestart, ReasonToStop, Report
from clusterrun.coordination.members import OWN
from clusterrun.coordination.next_attempt import restarting
from clusterrun.coordination.verdict import reached_reason, reported_external_causes
from clusterrun.domain.bounds import as_line
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import Done, EndedExternally, FirstFailure, Notice, Stop
from clusterrun.domain.outcome import (
    ExternalCause,
    Fate,
    HelperFailed,
    Hung,
    Interrupted,
    NodeLost,
    NodesJoined,
    NotSuspended,
    Reason,
    Suspended,
    WorkerFailed,
)
from clusterrun.job.options import OnHang

SECONDS_BETWEEN_STOP_NOTICES = 60.0
"""On nodes whose workers have ended, while others run."""

MOST_EXTERNAL_CAUSES = 16
"""Different ones that are kept; most often only the first matters."""


def message_received(
    state: JobState, connection: int, message: FirstFailure | EndedExternally | Done, at: float
) -> Actions:
    """Take note of a member's report, while the job runs."""
    if connection in state.lost_before_report:
        # It went on after it had been given up: the others end without it.
        return ()
    match message:
        case EndedExternally(_, external_cause, at_once):
            # Also from a node that has reported: its user may not want to wait for the others.
            external_cause = _with_host(state, connection, external_cause)
            notice = _no_restart(state, connection, external_cause)
            _keep(state, external_cause, at)
            stop = _kill_all if at_once else _stop
            return (*notice, *stop(state, connection, external_cause))
        case _ if connection in state.attempt.reports:
            # Its report was its last message in this attempt.
            return (Disconnect((connection,)),)
        case FirstFailure(_, fate, age):
            state.attempt.announced[connection] = fate, at - max(0.0, age)
            return _stop(state, connection, fate)
        case Done():
            return _report_received(state, connection, message, at)
        case _:
            assert_never(message)


def member_gone(state: JobState, gone: MemberGone) -> Actions:
    """Take note that the connection to a member of the running job is closed."""
    if gone.has_ended:
        state.departed.add(gone.connection)
    if gone.connection in state.lost_before_report:
        return ()
    return _absent(state, gone.connection, gone.at, is_silent=gone.unreachable)


def member_silent(state: JobState, connection: int, at: float) -> Actions:
    """Take note that a member of the running job is silent for too long.

    It may be frozen, and continue later: then it finds all that was sent to the others.
    """
    if connection in state.lost_before_report:
        return ()
    state.silent.add(connection)
    return _absent(state, connection, at, is_silent=True)


def _absent(state: JobState, connection: int, at: float, *, is_silent: bool) -> Actions:
    node = restarting.lost_node(state, connection, at, is_silent=is_silent)
    if connection in state.attempt.reports:
        state.lost_after_report[connection] = node
        return ()
    if connection not in state.departed:
        # Its agent may live: no attempt begins while its workers may run.
        state.leases_end = max(state.leases_end, state.lease.given_until(connection))
    state.lost_before_report[connection] = node
    last_sent = at - (state.terms.patience.timeout if is_silent else 0.0)
    state.lost_at = min(state.lost_at, last_sent)
    stop = _stop(state, connection, node)
    return (*stop, *_end_if_all_have_reported(state, at))


def _no_restart(state: JobState, connection: int, external_cause: ExternalCause) -> Actions:
    """Print where a signal came that it prevents the restart for which all nodes are stopping."""
    attempt = state.attempt
    if not isinstance(external_cause, Interrupted) or external_cause in attempt.external_causes:
        return ()
    first = attempt.reason_to_stop
    if not isinstance(first, Fate) or not restarting.is_possible(state, WorkerFailed(first)):
        return ()
    return (Send((connection,), Notice(job_notices.no_restart(external_cause.number))),)


def _no_restart_left(state: JobState, why: Reason) -> str:
    """Return why a hang ends a job that should restart; a failed worker's report says it all."""
    asked = isinstance(why, Hung) and state.terms.on_hang is OnHang.RESTART
    return job_notices.no_restart_left(state.terms.restarts.limit) if asked else ""


def _keep(state: JobState, external_cause: ExternalCause, at: float) -> None:
    """Keep each different one: a scheduler signals thousands of nodes at once, and all report it."""
    kept = state.attempt.external_causes
    if external_cause not in kept and len(kept) < MOST_EXTERNAL_CAUSES:
        kept[external_cause] = at


def _report_received(state: JobState, connection: int, done: Done, at: float) -> Actions:
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


def stop_all(state: JobState, end: Suspended | NotSuspended) -> Actions:
    """Stop the workers of all nodes at the end of a suspension."""
    return _stop(state, OWN, end)


def stop_to_grow(state: JobState, newcomers: NodesJoined) -> Actions:
    """Stop the workers of all nodes, for an attempt with more nodes."""
    return _stop(state, OWN, newcomers)


def stop_hung(state: JobState, hang: Hung) -> Actions:
    """Stop the workers of all nodes, as ``--on-hang`` says."""
    return _stop(state, OWN, hang)


def _stop(state: JobState, connection: int, cause: ReasonToStop) -> Actions:
    """Stop the workers of all nodes, unless that was done already."""
    if state.attempt.reason_to_stop is not None:
        return ()
    state.attempt.reason_to_stop = cause
    why = _why(cause, state.members.hellos[connection].host)
    external_cause = cause if isinstance(cause, ExternalCause) else None
    return (Send(reachable(state), Stop(state.attempt.number, why, external_cause)),)


def _kill_all(state: JobState, connection: int, external_cause: ExternalCause) -> Actions:
    """Have the workers of all nodes killed, also if they are being stopped."""
    state.attempt.reason_to_stop = state.attempt.reason_to_stop or external_cause
    why = _why(external_cause, state.members.hellos[connection].host)
    order = Stop(state.attempt.number, why, external_cause, at_once=True)
    return (Send(reachable(state), order),)


def _why(cause: ReasonToStop, host: str) -> str:
    match cause:
        case Fate():
            return f"rank {cause.rank} on {host} failed"
        case NodeLost():
            return job_notices.lost(cause)
        case NodesJoined(hosts):
            return f"{hosts} joined"
        case Hung(seconds):
            return job_notices.nothing_moves(seconds)
        case _:
            return job_notices.external_cause(host, cause)


def _with_host(state: JobState, connection: int, external_cause: ExternalCause) -> ExternalCause:
    """Add the member's host to what other nodes would otherwise take for their own."""
    if isinstance(external_cause, HelperFailed) and len(state.ranks) > 1:
        host = state.members.hellos[connection].host
        # The name may be as long as a line already.
        return replace(external_cause, name=as_line(f"{external_cause.name} on {host}"))
    return external_cause


def _end_if_all_have_reported(state: JobState, at: float) -> Actions:
    reports = state.attempt.reports
    if len(reports) + len(state.lost_before_report) < len(state.ranks):
        next_notice = min(state.next_notice, at + SECONDS_BETWEEN_STOP_NOTICES)
        state.next_notice = next_notice if reports else NEVER
        return ()
    why = reached_reason(state)
    if not isinstance(why, ReasonToRestart) or not restarting.is_possible(state, why):
        return end_job(state, why, _no_restart_left(state, why))
    if external_cause := next(reported_external_causes(state), None):
        # It came when all nodes were stopping already, and keeps them from going on.
        return end_job(state, external_cause, "")
    return restarting.prepare(state, why, at)
