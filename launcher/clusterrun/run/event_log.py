"""``--events``: the events of the job and of this node's workers as lines of JSON.

The module is imported only for that option. The relay writes the lines.
"""

from collections.abc import Callable
from typing import assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import LocalRank
from clusterrun.planning.plan import NodePlan, WorkerPlan
from clusterrun.policy.messages import GivenUp
from clusterrun.policy.node import Attempt, EndedWorker
from clusterrun.policy.outcome import (
    EndedEarly,
    Exited,
    ExitStatus,
    HelperFailed,
    Hung,
    Interrupted,
    Killed,
    NodeLost,
    NotReady,
    NotStarted,
    NotSuspended,
    Outcome,
    OutputGone,
    Reason,
    Replacement,
    Succeeded,
    Suspended,
    WorkerFailed,
)
from clusterrun.report.excerpt import exception_of

REASON_NAMES: dict[type[Reason], str] = {
    Succeeded: "succeeded",
    WorkerFailed: "worker failed",
    Interrupted: "interrupted",
    OutputGone: "output gone",
    HelperFailed: "helper failed",
    NodeLost: "node lost",
    Hung: "hung",
    Suspended: "suspended",
    NotSuspended: "not suspended",
}


class Cause(Struct, frozen=True, omit_defaults=True):
    """The worker on any node that caused the end of an attempt."""

    rank: int
    host: str
    pid: int
    code: int | None = None
    signal: int | None = None
    exception: str = ""
    """The last line of the traceback, for example "ValueError: boom"."""


class Record(Struct, frozen=True, omit_defaults=True):
    """One line; fields with their default value are omitted."""

    event: str
    """joined, started, ready, exited, failed, saving, lost, replaced, restarted or ended."""
    time: float
    """When the agent noticed it, by this node's wall clock, in seconds since the epoch."""
    run_id: str
    attempt: int
    node_rank: int
    """Of this node; for "lost" and "replaced", of the lost node."""
    host: str
    """The name of that node's host."""
    nodes: int | None = None
    workers: int | None = None
    """On this node."""
    rank: int | None = None
    """The worker's number in the job, which a worker of a service has, too."""
    local_rank: int | None = None
    service: str = ""
    """The worker's service."""
    service_rank: int | None = None
    pid: int | None = None
    code: int | None = None
    """Exit code of a worker; in "ended", that of the job."""
    signal: int | None = None
    """The signal that ended the worker."""
    stopped: bool = False
    """The launcher stopped the worker."""
    step: str = ""
    """The step of the worker's start that failed."""
    error: str = ""
    """Why the worker could not start or was not ready."""
    age: float | None = None
    """Seconds between the failure and ``time``, if the failure is known to be earlier."""
    ran_for: float | None = None
    """Seconds from the worker's start to its end."""
    what: str = ""
    """What was lost: "node" or "fork server"."""
    how: str = ""
    """How it was lost."""
    reason: str = ""
    """Why the previous attempt or the job ended: "succeeded", "worker failed", ..."""
    cause: Cause | None = None
    """The worker that caused that end: rank, host, pid, code, signal and exception."""
    not_restarted: str = ""
    """Why there is no restart although one would be allowed."""
    survivors: tuple[str, ...] = ()
    """Processes that SIGKILL did not end."""
    save_step: int | None = None
    """The step at which all ranks save."""
    by: str = ""
    """What requested the suspension; in "replaced", the host that replaces the lost node."""
    seconds: float | None = None
    """From the request until all ranks had saved; or the time limit, if they had not."""
    unsaved: tuple[int, ...] = ()
    """Ranks that had not saved in time."""
    silent: tuple[int, ...] = ()
    """Ranks that had never called ``suspend.requested``."""


class EventLog:
    """Writes one node's records."""

    def __init__(
        self, write: Callable[[int, str], object], clock: Callable[[], float], epoch: float
    ) -> None:
        """Start without a record.

        Args:
            write: takes this node's rank, and a line.
            clock: returns monotonic seconds.
            epoch: the wall-clock time at which ``clock`` was 0.

        """
        self._write = write
        self._clock = clock
        self._epoch = epoch
        self._plan: NodePlan | None = None
        self._node_rank = 0
        self._failed_outcome: Outcome | None = None
        self._recorded: set[tuple[str, int]] = set()
        """What was recorded of the attempt: see ``_is_new``."""

    def attempt_started(self, plan: NodePlan) -> None:
        """Record the start of an attempt: this node has joined, or all nodes restart."""
        self._plan, self._node_rank = plan, plan.world.node_rank
        self._recorded.clear()
        # A node that rejoins starts an attempt without the failure of one before.
        failed, self._failed_outcome = self._failed_outcome, None
        if failed is None:
            size = {"nodes": plan.world.nodes, "workers": len(plan.workers)}
            self._write_record(_record("joined", plan, **size))
        else:
            for replacement in failed.progress.replacements if failed.progress else ():
                self._write_record(_replaced(replacement, plan))
            self._write_record(_record("restarted", plan, **_why(failed)))

    def record_changes(self, attempt: Attempt, at: float) -> None:
        """Record what an event at ``at`` has changed in the attempt."""
        plan = attempt.plan
        if (helper := attempt.lost_helper) and self._is_new("helper"):
            self._write_record(_record("lost", plan, what=helper.name, how=helper.how), at)
        for local_rank, end in attempt.ends_before.items():
            self._record_end(attempt, local_rank, end, attempt.restarts[local_rank] - 1, at)
        for local_rank, running in attempt.running.items():
            # The worker of a service may restart alone.
            count = attempt.restarts.get(local_rank, 0)
            if self._is_new(f"start {count}", local_rank):
                worker = _worker_fields(plan.workers[local_rank])
                event = "restarted" if count else "started"
                self._write_record(_record(event, plan, **worker, pid=running.pid), at)
            if local_rank in attempt.services.ready and self._is_new(f"ready {count}", local_rank):
                worker = _worker_fields(plan.workers[local_rank])
                self._write_record(_record("ready", plan, **worker, pid=running.pid), at)
        for local_rank, end in attempt.ended.items():
            self._record_end(attempt, local_rank, end, attempt.restarts.get(local_rank, 0), at)
        if (mark := attempt.suspending.step_count) and self._is_new("suspension"):
            self._write_record(_record("saving", plan, save_step=mark - 1), at)
        reason = None if isinstance(attempt.answer, GivenUp | None) else attempt.answer.reason
        if isinstance(reason, NodeLost) and self._is_new("node"):
            lost = {"node_rank": reason.node_rank, "host": _encodable(reason.host)}
            self._write_record(
                _record("lost", plan, what="node", how=_encodable(reason.how), **lost), at
            )

    def _record_end(
        self, attempt: Attempt, local_rank: LocalRank, end: EndedWorker, count: int, at: float
    ) -> None:
        """Record the end of a worker after ``count`` restarts, unless that was done before."""
        if self._is_new(f"end {count}", local_rank):
            failed = not end.exit_status.succeeded and not end.stopped_by_us
            worker = _worker_fields(attempt.plan.workers[local_rank])
            event = "failed" if failed else "exited"
            self._write_record(_record(event, attempt.plan, **worker, **_fields(end, at)), at)

    def _is_new(self, what: str, local_rank: int = 0) -> bool:
        """Return whether this is the first call with these arguments in the attempt."""
        is_new = (what, local_rank) not in self._recorded
        self._recorded.add((what, local_rank))
        return is_new

    def attempt_failed(self, outcome: Outcome) -> None:
        """Keep the outcome of an attempt for the record of the restart."""
        self._failed_outcome = outcome

    def job_ended(self, outcome: Outcome) -> None:
        """Record the end of the job."""
        if self._plan is not None:
            self._write_record(
                _record("ended", self._plan, code=outcome.exit_code, **_why(outcome))
            )

    def _write_record(self, record: Record, at: float | None = None) -> None:
        now = self._clock() if at is None else at
        dated = replace(record, time=round(self._epoch + now, 3))
        self._write(self._node_rank, msgspec.json.encode(dated).decode())


def _replaced(replacement: Replacement, plan: NodePlan) -> Record:
    lost = replacement.lost
    node = {"node_rank": lost.node_rank, "host": _encodable(lost.host)}
    why = {"how": _encodable(lost.how), "by": _encodable(replacement.host)}
    return _record("replaced", plan, what="node", **why, **node)


def _worker_fields(worker: WorkerPlan) -> dict[str, object]:
    found: dict[str, object] = {"rank": worker.rank, "local_rank": worker.local_rank}
    if worker.service is None:
        return found
    return {**found, "service": worker.service.name, "service_rank": worker.rank_in_program}


def _fields(end: EndedWorker, at: float) -> dict[str, object]:
    age = round(at - end.failed_at, 3)
    return {
        **_exit_status_fields(end.exit_status),
        "stopped": end.stopped_by_us,
        "pid": end.ran.pid or None,
        "age": age if age > 0 else None,
        "ran_for": round(end.at - end.ran.since, 3) if end.ran.pid else None,
    }


def _exit_status_fields(exit_status: ExitStatus) -> dict[str, int | str]:
    match exit_status:
        case Exited(code):
            return {"code": code}
        case Killed(number):
            return {"signal": number}
        case NotStarted(step, error):
            return {"step": _encodable(step), "error": _encodable(error)}
        case EndedEarly():
            return {"code": 0}
        case NotReady(_, why):
            return {"error": _encodable(why)}
        case _:
            assert_never(exit_status)


def _why(outcome: Outcome) -> dict[str, object]:
    reason = outcome.reason
    return {
        "reason": REASON_NAMES[type(reason)],
        "cause": _cause(reason),
        "not_restarted": _encodable(outcome.no_restart),
        "survivors": tuple(map(_encodable, outcome.survivors)),
        **_suspension(reason),
    }


def _suspension(reason: Reason) -> dict[str, object]:
    match reason:
        case Suspended(by, step, seconds, _, silent):
            seconds, unsaved = round(seconds, 3), ()
        case NotSuspended(by, step, seconds, unsaved, silent):
            pass
        case _:
            return {}
    known = {"by": _encodable(by), "save_step": step, "seconds": seconds}
    return {**known, "unsaved": unsaved, "silent": silent}


def _cause(reason: Reason) -> Cause | None:
    if not isinstance(reason, WorkerFailed):
        return None
    result = reason.cause
    code = result.exit_status.code if isinstance(result.exit_status, Exited) else None
    number = result.exit_status.number if isinstance(result.exit_status, Killed) else None
    exception = _encodable(exception_of(result))
    return Cause(result.rank, _encodable(result.host), result.pid, code, number, exception)


def _record(event: str, plan: NodePlan, **fields: object) -> Record:
    world = plan.world
    node = Record(event, 0.0, world.run_id, world.attempt, world.node_rank, plan.host)
    return replace(node, **fields)


def _encodable(text: str) -> str:
    """Replace surrogates, which paths and error messages may contain."""
    return text.encode(errors="replace").decode()
