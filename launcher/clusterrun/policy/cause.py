"""Why an attempt ended, and which of several failures is the cause: the others are consequences."""

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
"""Events so close together may be noticed in any order: workers may notice a dead peer sooner than
the coordinator notices that its node is lost."""

MAX_EXTERNAL_CAUSES = 16
"""Different ones that are kept; most often only the first matters."""

LAST_LINES = 12
"""The last lines of standard error in which a consequence is recognized."""

LONGEST_SEARCHED = 2000
"""Characters of each of these: the time that a search takes grows with the square of it."""

CONSEQUENCE = (
    r"connection (was )?(closed|reset|aborted) by (the )?(remote )?peer"
    r"|connection reset|connection refused|broken pipe|socket (has been )?closed"
    r"|remote process exited|ncclremoteerror|nccl communicator was aborted"
    r"|failed to recv, got 0 bytes|distnetworkerror|diststoreerror"
    r"|gloo.*(timed out|read error|connectfullmesh failed)"
    r"|remote end closed connection|server disconnected|all connection attempts failed"
    r"|apiconnectionerror|incompleteread|httpx\.(connect|read)error"
)
"""What gloo, NCCL and torch's TCPStore print on a rank whose peer is gone (seen in torch 2.13); then
what http.client, requests, aiohttp, httpx and openai print where a service is gone."""

LAUNCHER_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGKILL})

ReasonToStop = WorkerResult | ExternalCause | NodeLost | Hung


class FailureEvidence(Struct):
    """What is known of why an attempt ends."""

    first: ReasonToStop | None = None
    """The first thing that went wrong: all nodes stop; None while nothing has."""
    external: dict[ExternalCause, float] = field(default_factory=dict)
    """What nodes have reported at once, and when the first report of each came."""
    reported: list[Node] = field(default_factory=list)
    """The nodes whose workers have all ended, in that order."""
    succeeded: set[Node] = field(default_factory=set)
    """Those that have not reported, all of whose workers have exited with 0: what these have left runs."""
    lost: list[Node] = field(default_factory=list)
    """The nodes that were lost while their workers ran, in that order: no report of them will come."""
    stopped: NodeLost | None = None
    """Node 0 itself, if it was stopped for so long that others have given it up."""
    expired_leases: list[NodeLost] = field(default_factory=list)
    """Those whose workers were ended by their lease, and that are members still."""
    lost_at: float = NEVER
    """When the first of these last sent something."""

    @property
    def done_well(self) -> frozenset[Node] | set[Node]:
        """Those that have succeeded, unless all are to stop: then each reports when nothing is left."""
        return self.succeeded if self.first is None else frozenset()

    @property
    def some_have_ended(self) -> bool:
        """Whether no rank of some node runs any more."""
        return bool(self.reported or self.succeeded)

    def keep(self, cause: ExternalCause, at: float) -> None:
        """Keep each different one: a scheduler signals thousands of nodes at once, and all report it."""
        if cause not in self.external and len(self.external) < MAX_EXTERNAL_CAUSES:
            self.external[cause] = at

    def reason(self) -> Reason:
        """Return why the attempt ended.

        An external cause that came before anything failed is first: nodes that are lost while they end
        are lost because of it. Then a lost node, or one whose lease was over, since the failures of its
        peers are consequences; the failed worker that caused the others; and an external cause that came
        later.
        """
        if isinstance(self.first, ExternalCause):
            return self.first
        if self.stopped is not None:
            return self.stopped
        dated = self._dated_results()
        cause = choose_cause([result for _, result in dated])
        failed_at = next((at for at, result in dated if result == cause), NEVER)
        if self.lost and not (cause and self._failed_before_the_loss(cause, failed_at)):
            return _loss_of(self.lost[0])
        began_with_it = cause is not None and cause == self.first and not is_consequence(cause)
        if self.expired_leases and not began_with_it:
            return self.expired_leases[0]
        if isinstance(self.first, Hung):
            # Ranks that fail when they are stopped have no other reason for it. A worker that even
            # SIGKILL did not end has no result.
            return self.first
        if cause and not self._is_explained_from_outside(cause, failed_at):
            return WorkerFailed(cause)
        if external_cause := self.external_cause():
            return external_cause
        return WorkerFailed(self.first) if isinstance(self.first, WorkerResult) else Succeeded()

    def failed_at(self, cause: WorkerResult) -> float:
        """Return when a worker failed, by the coordinator's clock; NEVER if no node has reported it."""
        return next((at for at, result in self._dated_results() if result == cause), NEVER)

    def external_cause(self) -> ExternalCause | None:
        """Return what ended the workers of a node from outside, as far as any has reported it."""
        return next(self._external_causes(), None)

    def _external_causes(self) -> Iterator[ExternalCause]:
        yield from self.external
        reports = (each.report for each in self.reported)
        yield from (each.external_cause for each in reports if each and each.external_cause)

    def _dated_results(self) -> list[TimedResult]:
        """Return all results that are known, in the order of their ends or failures."""
        reports = (each.report for each in self.reported)
        dated = [pair for report in reports if report for pair in report.results]
        dated += [each.failure for each in self.lost if each.failure]
        # Those of one node are in the order of their ends, however close these are.
        return sorted(dated, key=lambda each: each[0])

    def _failed_before_the_loss(self, cause: WorkerResult, failed_at: float) -> bool:
        """Return whether a worker failed clearly before a node was lost, or was the reason for it.

        The latter is so if the stop began with this failure, and the one lost node is its own. If more
        nodes are lost, a failure reported by one of them may be a consequence of another's loss.
        """
        if len(self.lost) == 1 and (failure := self.lost[0].failure):
            began_with_it = failure[1] == self.first
            if began_with_it and failure[1].rank == cause.rank:
                return True
        return failed_at < self.lost_at - SECONDS_OF_TOLERANCE

    def _is_explained_from_outside(self, cause: WorkerResult, failed_at: float) -> bool:
        """Return whether the rank, or a peer that it lost, was ended together with an agent or a helper.

        A signal that ended a rank, and that an agent got at that time, ends the job; one that comes later
        is a scheduler's answer to the failure. A helper that is lost answers nothing: the kernel kills the
        ranks of a fork server with it, and a peer may fail, and be heard of, before their agent has spoken.
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
    """How much a failure looks like the cause; the lowest wins, then the earliest."""

    OUT_OF_MEMORY = 0
    """Killed by the kernel for memory."""

    BY_SIGNAL = 1
    """Ended by a signal that the launcher did not send."""

    FAILED = 2
    """Exited by itself, for a reason of its own."""

    FAILED_WHILE_STOPPED = 3
    """Was stopped by the launcher, but failed for a reason of its own."""

    CONSEQUENCE = 4
    """Failed because a peer is gone."""


def choose_cause(results: Sequence[WorkerResult]) -> WorkerResult | None:
    """Return the result that caused the others; None if all failed workers were stopped.

    ``results`` are in the order in which the workers failed, or ended.
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
        case Killed() if result.out_of_memory:
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
            # While the kernel takes a large process apart, its peers fail, and all are being stopped.
            return Weight.FAILED_WHILE_STOPPED
        case Killed(number) if number not in LAUNCHER_SIGNALS and not is_consequence(result):
            return Weight.FAILED_WHILE_STOPPED
        case Exited() if _has_traceback(result) and not is_consequence(result):
            return Weight.FAILED_WHILE_STOPPED
        case _:
            return None


def is_consequence(result: WorkerResult) -> bool:
    """Return whether the last lines of a failed worker are about a peer that is gone."""
    lines = without_ignored(result.tail.splitlines())
    return any(
        re.search(CONSEQUENCE, line[:LONGEST_SEARCHED], re.IGNORECASE)
        for line in lines[-LAST_LINES:]
    )


def _has_traceback(result: WorkerResult) -> bool:
    return any("Traceback" in line for line in without_ignored(result.tail.splitlines()))


def ends_in_exception(tail: str) -> bool:
    """Return whether a worker printed an uncaught exception last."""
    lines = [line for line in without_ignored(plain_lines(tail)) if line]
    header = last_traceback(lines)
    # A script that prints something after a traceback went on.
    return header is not None and exception_after(lines, header) == len(lines) - 1
