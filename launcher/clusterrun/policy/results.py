"""The results of an attempt's workers, its outcome, and messages cut to the size of a frame. Pure."""

import signal
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterrun.bounds import LocalRank, as_line, as_name, as_seconds, as_text, as_wall_clock
from clusterrun.policy.cause import choose_cause, ends_in_exception, may_be_cause
from clusterrun.policy.messages import (
    AgentMessage,
    DatedResult,
    Done,
    EndedExternally,
    FirstFailure,
    NextAttempt,
    RanksExited,
    Verdict,
)
from clusterrun.policy.node import Attempt, EndedWorker
from clusterrun.policy.outcome import (
    Exited,
    ExitStatus,
    ExternalCause,
    HelperFailed,
    Interrupted,
    Killed,
    NotReady,
    NotStarted,
    Outcome,
    Reason,
    WorkerResult,
)
from clusterrun.policy.tracebacks import plain_lines, with_beginning

_SPACE = 1 << 17
"""Characters of all tails and error files in one message; a character may take four bytes."""

_MAX_TAIL = 16 << 10
"""Characters of one tail or error file."""

_MAX_STACK = 2 << 10


def results_of(
    attempt: Attempt,
    out_of_memory: Mapping[LocalRank, str],
    logs: Mapping[LocalRank, str],
    epoch: float,
) -> tuple[WorkerResult, ...]:
    """Return the results of the workers that have ended, in the order in which they ended.

    Workers whose exit status does not count (``Attempt.ignored``) have no result.

    Args:
        attempt: the attempt on this node.
        out_of_memory: evidence of the OOM killer when a worker failed, in words.
        logs: the files with the workers' standard error.
        epoch: the wall-clock time at which the agent's monotonic clock was 0, in seconds.

    """
    results = []
    for local_rank, ended in attempt.ended.items():
        if local_rank in attempt.ignored:
            continue
        worker = attempt.plan.workers[local_rank]
        output = attempt.outputs.get(local_rank)
        tail, error_file = (output.tail, output.error_file) if output else ("", "")
        late = attempt.late_exits.get(local_rank)
        result = WorkerResult(
            rank=worker.rank,
            local_rank=local_rank,
            host=attempt.plan.host,
            pid=ended.ran.pid,
            exit_status=_own_exit_status(ended, tail),
            stopped_by_us=ended.stopped_by_us,
            killed_by_others=ended.killed_by_others,
            clock=epoch + ended.failed_at,
            ran_for=ended.at - ended.ran.since,
            tail=tail,
            log=logs.get(local_rank, ""),
            error=error_file,
            out_of_memory=out_of_memory.get(local_rank, ""),
            hung=late.hung if late is not None else "",
            service=worker.service.name if worker.service else "",
            rank_in_service=worker.rank_in_program if worker.service else 0,
        )
        results.append(result)
    return tuple(results)


def _own_exit_status(ended: EndedWorker, tail: str) -> ExitStatus:
    """Return the exit status, or the one that the worker had without the launcher's SIGTERM.

    While a failed worker runs its exit handlers, its peers may fail first, so all are stopped.
    """
    was_asked = ended.stopped_by_us and ended.exit_status == Killed(signal.SIGTERM)
    return Exited(1) if was_asked and ends_in_exception(tail) else ended.exit_status


def conclude(attempt: Attempt, results: tuple[WorkerResult, ...]) -> Outcome:
    """Return how an attempt ended: by the coordinator's answer, or else by an external cause."""
    answer = attempt.answer
    if isinstance(answer, Verdict | NextAttempt):
        reason: Reason | None = answer.reason
    else:
        reason = attempt.external_cause
    if reason is None:
        raise AssertionError("an attempt ends by a verdict or for an external cause")
    by_rank = tuple(sorted(results, key=lambda result: result.rank))
    failure = _earlier_failure(reason, results)
    return Outcome(
        reason,
        attempt.plan.world.attempt,
        by_rank,
        attempt.survivors,
        answer.no_restart if isinstance(answer, Verdict) else "",
        failure,
        answer.progress if isinstance(answer, NextAttempt) else None,
    )


def _earlier_failure(reason: Reason, results: Iterable[WorkerResult]) -> WorkerResult | None:
    """Return the worker of this node that failed before a signal ended the job."""
    if not isinstance(reason, Interrupted):
        return None
    own = [
        result
        for result in results
        if not result.stopped_by_us and result.exit_status != Killed(reason.number)
    ]
    return choose_cause(sorted(own, key=lambda result: result.clock))


def bounded(message: AgentMessage) -> AgentMessage:
    """Return the message with its texts cut so it fits into a frame, and its values in bounds."""
    match message:
        case FirstFailure():
            result = _fitted(message.result, _MAX_TAIL)
            return replace(message, result=result, at=_as_date(message.at))
        case RanksExited():
            exits = (replace(each, at=_as_date(each.at)) for each in message.exits)
            return replace(message, exits=tuple(exits))
        case EndedExternally():
            cause = _fitted_external_cause(message.external_cause)
            return replace(message, external_cause=cause)
        case Done(external_cause=cause):
            results = _needed(message.results)
            most = min(_MAX_TAIL, _SPACE // max(1, 2 * len(results)))
            dated = (DatedResult(_fitted(it.result, most), _as_date(it.at)) for it in results)
            cause = None if cause is None else _fitted_external_cause(cause)
            return replace(message, results=tuple(dated), external_cause=cause)
        case _:
            return message


def _as_date(at: float | None) -> float | None:
    return None if at is None else as_seconds(at)


def _needed(results: tuple[DatedResult, ...]) -> tuple[DatedResult, ...]:
    """Return the results that may be the cause; if none may be, one that is not a success.

    Most workers of a large job that fails were only stopped, and node 0 does not need their tails.
    """
    failed = tuple(each for each in results if not each.result.exit_status.succeeded)
    return tuple(each for each in failed if may_be_cause(each.result)) or failed[:1]


def _fitted(result: WorkerResult, most: int) -> WorkerResult:
    result = replace(
        result,
        host=as_name(result.host),
        exit_status=_fitted_exit_status(result.exit_status),
        clock=as_wall_clock(result.clock),
        ran_for=as_seconds(result.ran_for),
        log=as_line(result.log),
        out_of_memory=as_line(result.out_of_memory),
        # The newest calls come first.
        hung=as_text(result.hung[:_MAX_STACK]),
    )
    # Truncated JSON cannot be decoded.
    error = result.error if len(result.error) <= most else ""
    return replace(result, tail=as_text(_shortened_tail(result.tail, most)), error=as_text(error))


def _fitted_exit_status(exit_status: ExitStatus) -> ExitStatus:
    if isinstance(exit_status, NotStarted):
        return NotStarted(as_name(exit_status.step), as_line(exit_status.error))
    if isinstance(exit_status, NotReady):
        return NotReady(as_seconds(exit_status.seconds), as_line(exit_status.why))
    return exit_status


def _shortened_tail(tail: str, most: int) -> str:
    """Return at most ``most`` characters: the last ones, and the beginning of their traceback."""
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
        # It may contain lines that an interpreter printed.
        how = as_line(" ".join(external_cause.how.split()))
        return HelperFailed(as_line(external_cause.name), how, external_cause.signal)
    return external_cause
