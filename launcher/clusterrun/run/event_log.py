"""``--events``: what happened to this node's workers and to the job, as lines of JSON.

Imported only with that option; the relay writes the lines.
"""

from collections.abc import Callable
from typing import assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import LocalRank
from clusterrun.errors import LauncherError
from clusterrun.planning.plan import NodePlan, WorkerPlan
from clusterrun.policy.messages import GivenUp
from clusterrun.policy.node import Attempt, EndedWorker
from clusterrun.policy.outcome import (
    EndedEarly,
    Ending,
    Exited,
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
    """The worker that caused the end of an attempt, wherever it ran."""

    rank: int
    host: str
    pid: int
    code: int | None = None
    signal: int | None = None
    exception: str = ""
    """The line that ended it, "ValueError: boom"."""


class Record(Struct, frozen=True, omit_defaults=True):
    """One line; fields with their default value are left out."""

    event: str
    """joined, started, ready, exited, failed, saving, lost, replaced, restarted or ended."""
    time: float
    """When the agent noticed it, by this node's wall clock, in seconds since the epoch."""
    run_id: str
    attempt: int
    node_rank: int
    host: str
    """This node; if a node is lost or replaced, that one."""
    nodes: int | None = None
    workers: int | None = None
    """Of this node."""
    rank: int | None = None
    """Of a worker of a service, its number in the job."""
    local_rank: int | None = None
    service: str = ""
    service_rank: int | None = None
    pid: int | None = None
    code: int | None = None
    """Of a worker; in "ended", the job's."""
    signal: int | None = None
    stopped: bool = False
    """The launcher stopped the worker."""
    step: str = ""
    """The step of its start that failed."""
    error: str = ""
    age: float | None = None
    """Seconds between the failure and ``time``, if the failure is known to be earlier."""
    ran_for: float | None = None
    """Seconds from the worker's start to its end."""
    what: str = ""
    """What is lost: "node" or "fork server"."""
    how: str = ""
    reason: str = ""
    """Why the attempt before, or the job, ended: "succeeded", "worker failed", ..."""
    cause: Cause | None = None
    not_restarted: str = ""
    """Why no restart follows although one would be allowed."""
    survivors: tuple[str, ...] = ()
    """Processes that even SIGKILL did not end."""
    save_step: int | None = None
    """The step at which all ranks save."""
    by: str = ""
    """Who asked for the suspension; the host that has the place of a lost node."""
    seconds: float | None = None
    """From that until all had saved, or the time that they had."""
    unsaved: tuple[int, ...] = ()
    """Ranks that had not saved in time."""
    silent: tuple[int, ...] = ()
    """Ranks that had never called ``suspend.requested``."""


class EventLog:
    """Writes the records of one node."""

    def __init__(
        self, write: Callable[[int, str], object], clock: Callable[[], float], epoch: float
    ) -> None:
        """Begin without a record.

        Args:
            write: takes this node's rank, and a line.
            clock: monotonic seconds.
            epoch: wall-clock time at which that clock was 0.

        """
        self._write = write
        self._clock = clock
        self._epoch = epoch
        self._plan: NodePlan | None = None
        self._node_rank = 0
        self._ended: Outcome | None = None
        self._recorded: set[tuple[str, int]] = set()
        """What the records have of the attempt: see ``_is_new``."""

    def begins(self, plan: NodePlan) -> None:
        """Record the beginning of an attempt: this node has joined, or all nodes restart."""
        self._plan, self._node_rank = plan, plan.world.node_rank
        self._recorded.clear()
        if self._ended is None:
            size = {"nodes": plan.world.nodes, "workers": len(plan.workers)}
            self._keep(_record("joined", plan, **size))
        else:
            for replacement in self._ended.progress.replacements if self._ended.progress else ():
                self._keep(_replaced(replacement, plan))
            self._keep(_record("restarted", plan, **_why(self._ended)))

    def notes(self, attempt: Attempt, at: float) -> None:
        """Record what is new in an attempt with an event at ``at``."""
        plan = attempt.plan
        if (helper := attempt.lost_helper) and self._is_new("helper"):
            self._keep(_record("lost", plan, what=helper.name, how=helper.how), at)
        for local_rank, end in attempt.ends_before.items():
            self._note_end(attempt, local_rank, end, attempt.restarts[local_rank] - 1, at)
        for local_rank, running in attempt.running.items():
            # The worker of a service may start again alone.
            count = attempt.restarts.get(local_rank, 0)
            if self._is_new(f"start {count}", local_rank):
                worker = _worker_fields(plan.workers[local_rank])
                event = "restarted" if count else "started"
                self._keep(_record(event, plan, **worker, pid=running.pid), at)
            if local_rank in attempt.ready and self._is_new(f"ready {count}", local_rank):
                worker = _worker_fields(plan.workers[local_rank])
                self._keep(_record("ready", plan, **worker, pid=running.pid), at)
        for local_rank, end in attempt.ended.items():
            self._note_end(attempt, local_rank, end, attempt.restarts.get(local_rank, 0), at)
        if (mark := attempt.suspending.mark) and self._is_new("suspension"):
            self._keep(_record("saving", plan, save_step=mark - 1), at)
        reason = None if isinstance(attempt.answer, GivenUp | None) else attempt.answer.reason
        if isinstance(reason, NodeLost) and self._is_new("node"):
            lost = {"node_rank": reason.node_rank, "host": _encodable(reason.host)}
            self._keep(_record("lost", plan, what="node", how=_encodable(reason.how), **lost), at)

    def _note_end(
        self, attempt: Attempt, local_rank: LocalRank, end: EndedWorker, count: int, at: float
    ) -> None:
        """Record the end of a worker that had started again ``count`` times, once."""
        if self._is_new(f"end {count}", local_rank):
            failed = not end.ending.succeeded and not end.stopped_by_us
            worker = _worker_fields(attempt.plan.workers[local_rank])
            event = "failed" if failed else "exited"
            self._keep(_record(event, attempt.plan, **worker, **_fields(end, at)), at)

    def _is_new(self, what: str, local_rank: int = 0) -> bool:
        """Return, once for each in an attempt, that there is no record of it yet."""
        is_new = (what, local_rank) not in self._recorded
        self._recorded.add((what, local_rank))
        return is_new

    def restarts(self, outcome: Outcome) -> None:
        """Remember how an attempt ended that is followed by another."""
        self._ended = outcome

    def ends(self, outcome: Outcome) -> None:
        """Record the end of the job."""
        if self._plan is not None:
            self._keep(_record("ended", self._plan, code=outcome.exit_code, **_why(outcome)))

    def launcher_failed(self, error: LauncherError) -> None:
        """Record that the launcher itself failed."""
        if self._plan is not None:
            message = _encodable(error.message)
            failure = {"code": error.exit_code, "reason": "error", "error": message}
            self._keep(_record("ended", self._plan, **failure))

    def _keep(self, record: Record, at: float | None = None) -> None:
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
        **_exit_status_fields(end.ending),
        "stopped": end.stopped_by_us,
        "pid": end.ran.pid or None,
        "age": age if age > 0 else None,
        "ran_for": round(end.at - end.ran.since, 3) if end.ran.pid else None,
    }


def _exit_status_fields(ending: Ending) -> dict[str, int | str]:
    match ending:
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
            assert_never(ending)


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
    code = result.ending.code if isinstance(result.ending, Exited) else None
    number = result.ending.number if isinstance(result.ending, Killed) else None
    exception = _encodable(exception_of(result))
    return Cause(result.rank, _encodable(result.host), result.pid, code, number, exception)


def _record(event: str, plan: NodePlan, **fields: object) -> Record:
    world = plan.world
    node = Record(event, 0.0, world.run_id, world.attempt, world.node_rank, plan.host)
    return replace(node, **fields)


def _encodable(text: str) -> str:
    """Replace what is not UTF-8, which paths and errors may have."""
    return text.encode(errors="replace").decode()
