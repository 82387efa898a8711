"""Why an attempt ended, and which of several failures caused the others."""

import re
import signal
from collections.abc import Iterator, Sequence
from enum import IntEnum

from msgspec import Struct, field

from clusterrun.loop import NEVER
from clusterrun.policy.members import Node, TimedResult
from clusterrun.policy.outcome import (
    Exited,
    ExternalCause,
    HelperFailed,
    Hung,
    Interrupted,
    Killed,
    NodeLost,
    Reason,
    Succeeded,
    WorkerFailed,
    WorkerResult,
)
from clusterrun.policy.tracebacks import (
    exception_after,
    last_traceback,
    plain_lines,
    without_ignored,
)

SECONDS_OF_TOLERANCE = 1.0
"""Events this close together may be noticed in any order: a worker may notice a dead peer before the
coordinator notices that its node is lost."""

MAX_EXTERNAL_CAUSES = 16

LAST_LINES = 12
"""Lines at the end of standard error that are searched for signs of a lost peer."""

MAX_SEARCHED_CHARACTERS = 2000
"""Characters of a line that are searched: the time grows with the square of the length."""

CONSEQUENCE = (
    r"connection (was )?(closed|reset|aborted) by (the )?(remote )?peer"
    r"|connection reset|connection refused|broken pipe|socket (has been )?closed"
    r"|remote process exited|ncclremoteerror|nccl communicator was aborted"
    r"|failed to recv, got 0 bytes|distnetworkerror|diststoreerror"
    r"|gloo.*(timed out|read error|connectfullmesh failed)"
    r"|remote end closed connection|server disconnected|all connection attempts failed"
    r"|apiconnectionerror|incompleteread|httpx\.(connect|read)error"
)
"""Messages on a rank whose peer is gone: of gloo, NCCL and torch's TCPStore (torch 2.13), and of
http.client, requests, aiohttp, httpx and openai."""

LAUNCHER_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGKILL})

ReasonToStop = WorkerResult | ExternalCause | NodeLost | Hung


class FailureEvidence(Struct):
    """What the coordinator knows about the end of an attempt."""

    first: ReasonToStop | None = None
    """The first failure or other reason to stop all nodes."""
    external: dict[ExternalCause, float] = field(default_factory=dict)
    """External causes, and when the first report of each came."""
    reported: list[Node] = field(default_factory=list)
    """Nodes that have reported the end of the attempt, in this order."""
    succeeded: set[Node] = field(default_factory=set)
    """Nodes whose workers have all exited with 0 and that wait for leftover processes."""
    lost: list[Node] = field(default_factory=list)
    """Nodes that were lost while their workers ran, in this order: they send no report."""
    node_zero_stopped: NodeLost | None = None
    """Node 0 itself, if it was suspended for so long that the other nodes have declared it lost."""
    expired_leases: list[NodeLost] = field(default_factory=list)
    """Nodes that are still members, but whose workers were killed because their lease expired."""
    lost_at: float = NEVER
    """When the first lost node last sent something."""

    @property
    def ended_without_report(self) -> frozenset[Node] | set[Node]:
        """Nodes in ``succeeded``; none once all nodes are to stop, since each then sends a report."""
        return self.succeeded if self.first is None else frozenset()

    @property
    def some_have_ended(self) -> bool:
        """Whether all ranks of a node have ended."""
        return bool(self.reported or self.succeeded)

    def add_external(self, cause: ExternalCause, at: float) -> None:
        """Add a cause once: thousands of nodes may report the same signal of a scheduler."""
        if cause not in self.external and len(self.external) < MAX_EXTERNAL_CAUSES:
            self.external[cause] = at

    def reason(self) -> Reason:
        """Return why the attempt ended.

        An external cause that came before any failure is the reason: nodes that are lost later are lost
        because of it. Otherwise, in this order: a lost node or expired lease, because the failures of
        its peers are consequences; the failed worker that caused the others; a later external cause.
        """
        if isinstance(self.first, ExternalCause):
            return self.first
        if self.node_zero_stopped is not None:
            return self.node_zero_stopped
        cause = choose_cause([result for _, result in self._dated_results()])
        failed_at = self.failed_at(cause)
        if self.lost and not (cause and self._failed_before_the_loss(cause, failed_at)):
            return _loss_of(self.lost[0])
        began_with_it = cause is not None and cause == self.first and not is_consequence(cause)
        if self.expired_leases and not began_with_it:
            return self.expired_leases[0]
        if isinstance(self.first, Hung):
            # Ranks that fail now do so because they are stopped. A worker that survived SIGKILL has
            # no result.
            return self.first
        if cause and not self._is_explained_from_outside(cause, failed_at):
            return WorkerFailed(cause)
        if external_cause := self.external_cause():
            return external_cause
        return WorkerFailed(self.first) if isinstance(self.first, WorkerResult) else Succeeded()

    def failed_at(self, cause: WorkerResult | None) -> float:
        """Return when a worker failed, by the coordinator's clock; NEVER if no node has reported it."""
        return next((at for at, result in self._dated_results() if result == cause), NEVER)

    def external_cause(self) -> ExternalCause | None:
        """Return the first external cause that a node has reported."""
        return next(self._external_causes(), None)

    def _external_causes(self) -> Iterator[ExternalCause]:
        yield from self.external
        reports = (each.report for each in self.reported)
        yield from (each.external_cause for each in reports if each and each.external_cause)

    def _dated_results(self) -> list[TimedResult]:
        """Return all known results in the order in which the workers failed or ended."""
        reports = (each.report for each in self.reported)
        dated = [pair for report in reports if report for pair in report.results]
        dated += [each.failure for each in self.lost if each.failure]
        # The sort is stable: results of one node with equal times stay in the order of the report.
        return sorted(dated, key=lambda each: each[0])

    def _failed_before_the_loss(self, cause: WorkerResult, failed_at: float) -> bool:
        """Return whether a worker failed clearly before a node was lost, or caused the loss.

        It caused the loss if the stop began with its failure and only its own node is lost. If several
        nodes are lost, its failure may be a consequence of another loss.
        """
        if len(self.lost) == 1 and (failure := self.lost[0].failure):
            began_with_it = failure[1] == self.first
            if began_with_it and failure[1].rank == cause.rank:
                return True
        return failed_at < self.lost_at - SECONDS_OF_TOLERANCE

    def _is_explained_from_outside(self, cause: WorkerResult, failed_at: float) -> bool:
        """Return whether an external cause also ended the rank, or the peer that it lost.

        If a rank was killed by the signal that its agent received at that time, the signal is the
        reason; a later signal is the scheduler's reaction to the failure. The time of a lost helper does
        not matter: the kernel kills the ranks together with their fork server, and the failure of a peer
        may be reported first.
        """
        at_that_time = [
            each
            for each in self._external_causes()
            if isinstance(each, HelperFailed)
            or self.external.get(each, failed_at) <= failed_at + SECONDS_OF_TOLERANCE
        ]
        if is_consequence(cause):
            return bool(at_that_time)
        return (
            isinstance(cause.exit_status, Killed)
            and Interrupted(cause.exit_status.number) in at_that_time
        )


def _loss_of(node: Node) -> NodeLost:
    if node.lost is None:
        raise AssertionError("a node is among the lost ones")
    return node.lost


class Weight(IntEnum):
    """How much a failure looks like the cause: the lowest weight wins, then the earliest failure."""

    OUT_OF_MEMORY = 0
    """The kernel's OOM killer killed it."""

    BY_SIGNAL = 1
    """A signal that the launcher did not send killed it."""

    FAILED = 2
    """It exited by itself, for a reason of its own."""

    FAILED_WHILE_STOPPED = 3
    """It was being stopped, but failed for a reason of its own."""

    CONSEQUENCE = 4
    """It failed because a peer is gone."""


def choose_cause(results: Sequence[WorkerResult]) -> WorkerResult | None:
    """Return the result that caused the others; None if no worker failed for a reason of its own.

    ``results`` must be in the order in which the workers failed or ended.
    """
    weights = [(_weight(result), order) for order, result in enumerate(results)]
    suspects = [(weight, order) for weight, order in weights if weight is not None]
    return results[min(suspects)[1]] if suspects else None


def may_be_cause(result: WorkerResult) -> bool:
    """Return whether ``choose_cause`` could return this result."""
    return _weight(result) is not None


def _weight(result: WorkerResult) -> Weight | None:
    """Return the weight of a failure; None for a success or a stopped worker."""
    if result.exit_status.succeeded:
        return None
    if result.stopped_by_us:
        return _weight_of_stopped(result)
    match result.exit_status:
        case Killed() if result.is_oom_victim:
            return Weight.OUT_OF_MEMORY
        case Killed(signal.SIGABRT) if is_consequence(result):
            return Weight.CONSEQUENCE
        case Killed():
            return Weight.BY_SIGNAL
        case _:
            return Weight.CONSEQUENCE if is_consequence(result) else Weight.FAILED


def _weight_of_stopped(result: WorkerResult) -> Weight | None:
    match result.exit_status:
        case Killed(signal.SIGKILL) if result.killed_by_others:
            # The kernel takes time to end a large process, and its peers fail meanwhile.
            return Weight.FAILED_WHILE_STOPPED
        case Killed(number) if number not in LAUNCHER_SIGNALS and not is_consequence(result):
            return Weight.FAILED_WHILE_STOPPED
        case Exited() if _has_traceback(result) and not is_consequence(result):
            return Weight.FAILED_WHILE_STOPPED
        case _:
            return None


def is_consequence(result: WorkerResult) -> bool:
    """Return whether the last lines of a failed worker say that a peer is gone."""
    lines = without_ignored(result.tail.splitlines())
    return any(
        re.search(CONSEQUENCE, line[:MAX_SEARCHED_CHARACTERS], re.IGNORECASE)
        for line in lines[-LAST_LINES:]
    )


def _has_traceback(result: WorkerResult) -> bool:
    return any("Traceback" in line for line in without_ignored(result.tail.splitlines()))


def ends_in_exception(tail: str) -> bool:
    """Return whether a worker printed an uncaught exception last."""
    lines = [line for line in without_ignored(plain_lines(tail)) if line]
    header = last_traceback(lines)
    # A script that prints something after a traceback has continued.
    return header is not None and exception_after(lines, header) == len(lines) - 1
