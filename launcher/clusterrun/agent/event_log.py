"""``--events``: what happened to this node's workers and to the job, as lines of JSON.

Imported only with that option; the relay writes the lines.
"""

from collections.abc import Callable, Iterator
from typing import assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from clusterrun.agent.state import Ended, State
from clusterrun.domain.outcome import (
    Ending,
    Exited,
    HelperFailed,
    Interrupted,
    Killed,
    NodeLost,
    NotStarted,
    Outcome,
    OutputGone,
    Reason,
    Succeeded,
    WorkerFailed,
)
from clusterrun.domain.plan import NodePlan
from clusterrun.domain.ranks import LocalRank
from clusterrun.errors import LauncherError


class Cause(Struct, frozen=True, omit_defaults=True):
    """The worker that caused the end of an attempt, wherever it ran."""

    rank: int
    host: str
    pid: int
    code: int | None = None
    signal: int | None = None


class Record(Struct, frozen=True, omit_defaults=True):
    """One line; fields with their default value are left out."""

    event: str
    """joined, started, exited, failed, lost, restarted or ended."""
    time: float
    """When the agent noticed it, by this node's wall clock, in seconds since the epoch."""
    run_id: str
    attempt: int
    node_rank: int
    host: str
    """This node; if a node is lost, that one."""
    nodes: int | None = None
    workers: int | None = None
    """Of this node."""
    rank: int | None = None
    local_rank: int | None = None
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

    def begins(self, plan: NodePlan) -> None:
        """Record the beginning of an attempt: this node has joined, or all nodes restart."""
        self._plan, self._node_rank = plan, plan.world.node_rank
        self._keep(joined(plan) if self._ended is None else restarted(plan, self._ended))

    def notes(self, before: State, after: State, at: float) -> None:
        """Record what has changed in the state."""
        if self._plan is not None:
            for record in records(before, after, self._plan, at):
                self._keep(record, at)

    def restarts(self, outcome: Outcome) -> None:
        """Remember how an attempt ended that is followed by another."""
        self._ended = outcome

    def ends(self, outcome: Outcome) -> None:
        """Record the end of the job."""
        if self._plan is not None:
            self._keep(ended(self._plan, outcome))

    def breaks_off(self, error: LauncherError) -> None:
        """Record that the launcher itself failed."""
        if self._plan is not None:
            failure = {
                "code": error.exit_code,
                "reason": "error",
                "error": encodable(error.message),
            }
            self._keep(replace(_record("ended", self._plan), **failure))

    def _keep(self, record: Record, at: float | None = None) -> None:
        now = self._clock() if at is None else at
        dated = replace(record, time=round(self._epoch + now, 3))
        self._write(self._node_rank, line_of(dated))


def line_of(record: Record) -> str:
    """Return a record as JSON, without a newline."""
    return msgspec.json.encode(record).decode()


def joined(plan: NodePlan) -> Record:
    """Return the record of a node that has joined."""
    return replace(_record("joined", plan), nodes=plan.world.nodes, workers=len(plan.workers))


def restarted(plan: NodePlan, outcome: Outcome) -> Record:
    """Return the record of an attempt that follows another, which ended as ``outcome``."""
    return replace(
        _record("restarted", plan),
        reason=name_of(outcome.reason),
        cause=_cause(outcome.reason),
    )


def ended(plan: NodePlan, outcome: Outcome) -> Record:
    """Return the record of the end of the job."""
    return replace(
        _record("ended", plan),
        code=outcome.exit_code,
        reason=name_of(outcome.reason),
        cause=_cause(outcome.reason),
    )


def records(before: State, after: State, plan: NodePlan, at: float) -> Iterator[Record]:
    """Yield what is new in ``after``, which became of ``before`` at ``at``."""
    ranks = {worker.local_rank: worker.rank for worker in plan.workers}
    if after.lost_helper is not None and before.lost_helper is None:
        yield replace(_record("lost", plan), what=after.lost_helper.name, how=after.lost_helper.how)
    for local_rank, running in after.running.items():
        if local_rank not in before.running:
            new = replace(_record("started", plan), local_rank=local_rank, pid=running.pid)
            yield replace(new, rank=ranks[local_rank])
    for local_rank, end in after.ended.items():
        if local_rank not in before.ended:
            yield replace(_end_of_worker(plan, local_rank, end, at), rank=ranks[local_rank])
    node = _lost_node(after)
    if node is not None and _lost_node(before) is None:
        lost = replace(_record("lost", plan), what="node", how=encodable(node.how))
        yield replace(lost, node_rank=node.node_rank, host=encodable(node.host))


def _lost_node(state: State) -> NodeLost | None:
    reasons = (state.verdict, state.node_zero_lost)
    return next((reason for reason in reasons if isinstance(reason, NodeLost)), None)


def _end_of_worker(plan: NodePlan, local_rank: LocalRank, end: Ended, at: float) -> Record:
    failed = not end.ending.succeeded and not end.stopped_by_us
    age = round(at - end.failed_at, 3)
    known = {**_fields(end.ending), "local_rank": local_rank, "stopped": end.stopped_by_us}
    return replace(
        _record("failed" if failed else "exited", plan),
        **known,
        pid=end.pid or None,
        age=age if age > 0 else None,
        ran_for=round(end.at - end.since, 3) if end.pid else None,
    )


def _fields(ending: Ending) -> dict[str, int | str]:
    match ending:
        case Exited(code):
            return {"code": code}
        case Killed(number):
            return {"signal": number}
        case NotStarted(step, error):
            return {"step": encodable(step), "error": encodable(error)}
        case _:
            assert_never(ending)


def name_of(reason: Reason) -> str:
    """Return the name of a reason in records."""
    match reason:
        case Succeeded():
            return "succeeded"
        case WorkerFailed():
            return "worker failed"
        case Interrupted():
            return "interrupted"
        case OutputGone():
            return "output gone"
        case HelperFailed():
            return "helper failed"
        case NodeLost():
            return "node lost"
        case _:
            assert_never(reason)


def _cause(reason: Reason) -> Cause | None:
    if not isinstance(reason, WorkerFailed):
        return None
    fate = reason.cause
    code = fate.ending.code if isinstance(fate.ending, Exited) else None
    number = fate.ending.number if isinstance(fate.ending, Killed) else None
    return Cause(fate.rank, encodable(fate.host), fate.pid, code, number)


def _record(event: str, plan: NodePlan) -> Record:
    world = plan.world
    return Record(event, 0.0, world.run_id, world.attempt, world.node_rank, plan.host)


def encodable(text: str) -> str:
    """Return ``text`` without bytes that are no UTF-8, which paths and errors may have."""
    return text.encode(errors="replace").decode()
