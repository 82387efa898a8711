"""Detection of hangs, and what is done about them.

There are three signs of a hang (``HangSign``). A sign must last for ``--hang-timeout``:

    SILENT  no rank of any node has printed or exited
    STILL   ranks print, for example from a thread that logs metrics, but no main thread of any node has
            run, and the stacks show one that waits inside torch. Otherwise ranks may work in other
            threads, and nothing is printed until a main thread has run again
    BEHIND  main threads run, as they do while they wait for NCCL, but NCCL has launched fewer collectives
            on some ranks than on others, and none on any rank since then

Node 0 then prints the stacks of all ranks and what NCCL reports, and ``--on-hang`` may restart or stop
the job. A hang is reported once, and again after a rank has made progress. If a rank had no stack, its
script had perhaps not begun, so the hang is also reported again after the same time.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from clusterrun.bounds import as_line, named_ranks
from clusterrun.job.job import Job
from clusterrun.job.options import OnHang
from clusterrun.loop import NEVER
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.members import Members, Node
from clusterrun.policy.messages import Idle, PrintStacks
from clusterrun.policy.outcome import MAX_RANKS, HangSign, Hung
from clusterrun.policy.query_rounds import QueryRounds
from clusterrun.policy.stacks import (
    StackGroup,
    describe_differences,
    exited_clause,
    runs_without_stack,
    stragglers,
    waits_in_torch,
)

if TYPE_CHECKING:
    # Few jobs need them.
    from clusterrun.policy.nccl import NcclState
    from clusterrun.policy.nccl_query import NcclQuery
    from clusterrun.policy.stack_report import StackReport

STACKS_FOLLOW = "the Python stacks of all ranks follow"

STILL_DELAY = 0.125
"""Fraction of the timeout: all ranks may be about to count as silent too, which is reported instead."""

NCCL_QUERIES_PER_TIMEOUT = 3
MIN_SECONDS_BETWEEN_NCCL_QUERIES = 2.0

IN_WORDS = {
    HangSign.SILENT: "no rank has printed or exited",
    HangSign.STILL: "ranks print, but no main thread has run",
    HangSign.BEHIND: "ranks print, but some are behind in NCCL, and none has made progress",
}


class HangResponse(Enum):
    """What is done about a hang; the value is the end of its notice."""

    REPORT = "the job keeps running"
    RESTART = "then all workers are restarted (--on-hang)"
    STOP = "then the job is stopped (--on-hang)"


class IdleNodes:
    """How long the workers of each node have been idle, for one meaning of idle."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._since: dict[Node, float] = {}

    def update(self, node: Node, seconds: float, at: float) -> None:
        """Record that a node has been idle for some seconds; 0: it is not idle."""
        if seconds > 0 and node.is_present:
            self._since.setdefault(node, at - seconds)
        else:
            self.lost(node)

    def lost(self, node: Node) -> None:
        self._since.pop(node, None)

    @property
    def since(self) -> float:
        """When the last present node became idle; NEVER if one is not idle."""
        expected = len(self._members.participants) - len(self._members.lost)
        are_idle = len(self._since) == expected and expected > 0
        return max(self._since.values()) if are_idle else NEVER


class HangDetector:
    """Decides whether an attempt hangs."""

    def __init__(
        self, members: Members, programs: Iterable[NumberedProgram], *, timeout: float, acts: bool
    ) -> None:
        """Begin an attempt.

        Args:
            members: the nodes.
            programs: the programs of a job with services; services do not wait for ranks.
            timeout: ``--hang-timeout``; a node cannot shorten it.
            acts: ``--on-hang`` does more than report.

        """
        self._programs = tuple(programs)
        self._members = members
        self._acts = acts
        self._is_active = True
        self._silent = IdleNodes(members)
        self._still = IdleNodes(members)
        self._nccl: NcclState | None = None
        """The first state with these counts, if some ranks are behind."""
        self._behind_since = NEVER
        self._min_timeout = timeout
        self._timeout = 0.0
        """By the first message about idle workers; 0.0 until then."""
        self._next_report: dict[HangSign, float] = {}
        """A sign is not reported again before this time."""
        self._suspected: HangSign | None = None
        self.due = NEVER
        """When to call ``report``, unless stacks are being collected then."""
        self._collecting_for: HangSign | None = None
        """The sign for which stacks are being collected."""
        self._seconds = 0.0
        """How long it had lasted when the stacks were requested."""
        self._reported: HangSign | None = None
        """The sign that was reported and still lasts; no other is reported meanwhile."""

    def lost(self, node: Node) -> None:
        self._silent.lost(node)
        self._still.lost(node)

    def idle(self, node: Node, idle: Idle, at: float) -> None:
        """Record whether the workers of a node are idle; ``due`` may be now."""
        silent, still = self._since(HangSign.SILENT), self._since(HangSign.STILL)
        self._silent.update(node, idle.seconds, at)
        self._still.update(node, idle.still, at)
        self._timeout = self._timeout or max(self._min_timeout, idle.seconds or idle.still)
        self._forget_ended_signs(at)
        if silent == NEVER != self._since(HangSign.SILENT) and (
            self._reported is None or self._acts
        ):
            self._suspect(HangSign.SILENT, at)
        elif still == NEVER and self._lasts(HangSign.STILL) and self._reported is None:
            self._suspect(HangSign.STILL, at + idle.still * STILL_DELAY)

    def nccl(self, state: "NcclState", timeout: float, at: float) -> None:
        """Record the counts of NCCL; ``due`` may be now."""
        same = self._nccl is not None and self._nccl.counts == state.counts
        if not same:
            self._nccl = state if state.behind else None
            self._behind_since = at if state.behind else NEVER
            self._forget_ended_signs(at)
        elif at - self._behind_since >= timeout and self._reported is self._suspected is None:
            self._timeout = self._timeout or timeout
            self._suspect(HangSign.BEHIND, at)

    def report(self, response: HangResponse, at: float) -> HangSign | None:
        """Print the notice of a hang; return its sign if stacks must be collected.

        STILL has no notice yet, because it is a hang only if the stacks show it.
        """
        sign, self._suspected, self.due = self._suspected, None, NEVER
        if sign is None or not self._lasts(sign):
            return None
        self._collecting_for, self._seconds = sign, at - self._since(sign)
        self._next_report[sign] = at + self._timeout
        if sign is not HangSign.STILL:
            self._note(sign, response)
        return sign

    def collected(self, report: "StackReport", response: HangResponse, at: float) -> Hung | None:
        """Print which ranks the others wait for; return the hang if the attempt must be stopped.

        The stacks in ``report`` may have been collected for a user.
        """
        sign, self._collecting_for = self._collecting_for, None
        if sign is None or not self._lasts(sign):
            return None
        known = tuple(self._of_main(report.groups()))
        if sign is HangSign.STILL:
            if not any(map(waits_in_torch, known)):
                return None
            report.should_print = True
            self._note(sign, response)
        ranks = stragglers(known)[:MAX_RANKS]
        if ranks:
            exited = exited_clause(known, ranks)
            self._members.note(f"the other ranks wait for {named_ranks(ranks)}{exited}")
        if response is not HangResponse.REPORT:
            return Hung(self._seconds, ranks, as_line(describe_differences(known)), sign)
        if self._acts or (sign is HangSign.SILENT and any(map(runs_without_stack, known))):
            self._suspect(sign, at + self._timeout)
        return None

    def confirmed(self, hung: Hung, response: HangResponse, at: float) -> Hung | None:
        """Return a hang if it still lasts and is to be acted on: NCCL may take seconds to answer."""
        if not self._lasts(hung.sign):
            return None
        if response is HangResponse.REPORT:
            self._suspect(hung.sign, at + self._timeout)
            return None
        return hung

    def end_attempt(self) -> None:
        """Find no more hangs: the workers are being stopped."""
        self._is_active = False

    # Signs.

    def _since(self, sign: HangSign) -> float:
        """Return since when there is a sign; NEVER if there is none."""
        if sign is HangSign.BEHIND:
            return self._behind_since
        return (self._silent if sign is HangSign.SILENT else self._still).since

    def _lasts(self, sign: HangSign) -> bool:
        """Return whether there is a sign, and no worker is being stopped.

        While all ranks are SILENT, the other signs do not count.
        """
        is_silent = sign is HangSign.SILENT or self._since(HangSign.SILENT) == NEVER
        return self._is_active and is_silent and self._since(sign) != NEVER

    def _suspect(self, sign: HangSign, due: float) -> None:
        self._suspected, self.due = sign, max(due, self._next_report.get(sign, 0.0))

    def _forget_ended_signs(self, at: float) -> None:
        if self._suspected is not None and self._since(self._suspected) == NEVER:
            self._suspected, self.due = None, NEVER
        if self._reported is not None and self._since(self._reported) == NEVER:
            self._reported = None
            if self._since(HangSign.SILENT) != NEVER:
                # The ranks have printed until now.
                self._suspect(HangSign.SILENT, at + self._timeout)

    def _note(self, sign: HangSign, response: HangResponse) -> None:
        self._reported = sign
        headline = hang_headline(self._seconds, sign)
        self._members.note(f"{headline}: {STACKS_FOLLOW}; {response.value}")

    def _of_main(self, groups: Iterable[StackGroup]) -> Iterable[StackGroup]:
        """Yield the stacks of the main program."""
        size = self._programs[0].size if self._programs else None
        for group in groups:
            own = tuple(rank for rank in group.ranks if size is None or rank < size)
            if own:
                yield replace(group, ranks=own)


class HangWatch:
    """Watches an attempt for hangs, and collects the stacks that node 0 prints."""

    def __init__(
        self,
        members: Members,
        queries: QueryRounds,
        job: Job,
        programs: Iterable[NumberedProgram],
        respond: Callable[[float], HangResponse],
    ) -> None:
        """Begin an attempt.

        Args:
            members: the nodes.
            queries: sends queries to the nodes.
            job: has ``--hang-timeout`` and ``--on-hang``.
            programs: the programs of a job with services.
            respond: returns what to do about a hang that is found at this time.

        """
        self._members = members
        self._queries = queries
        self._timeout = job.active_hang_timeout
        self._programs = tuple(programs)
        self._respond = respond
        acts = job.failures.on_hang is not OnHang.REPORT
        self._detector = HangDetector(members, self._programs, timeout=self._timeout, acts=acts)
        self._report: StackReport | None = None
        """The stacks that are being collected."""
        self._nccl: NcclQuery | None = None
        """The open query to NCCL."""
        self._next_nccl_query = NEVER

    @property
    def due(self) -> float:
        """When to call ``time_passed``."""
        hang = self._detector.due if self._report is None else NEVER
        return min(hang, self._next_nccl_query if self._nccl is None else NEVER)

    def watch_nccl(self, at: float) -> None:
        """Schedule the next query to NCCL, if hangs are watched for."""
        if self._timeout:
            seconds = self._timeout / NCCL_QUERIES_PER_TIMEOUT
            self._next_nccl_query = at + max(seconds, MIN_SECONDS_BETWEEN_NCCL_QUERIES)

    def idle(self, node: Node, idle: Idle, at: float) -> None:
        """Record whether the workers of a node are idle."""
        self._detector.idle(node, idle, at)
        self._report_hang(at)

    def lost(self, node: Node) -> None:
        self._detector.lost(node)

    def end_attempt(self) -> None:
        """Find no more hangs: the workers are being stopped."""
        self._detector.end_attempt()

    def time_passed(self, at: float) -> bool:
        """Do what is due; return whether the detector was."""
        if self._report_hang(at):
            return True
        if self._nccl is None and at >= self._next_nccl_query:
            self.watch_nccl(at)
            self._query_nccl(at, is_watch=True)
        return False

    @property
    def prints_stacks(self) -> bool:
        """Whether stacks that will be printed are being collected."""
        return self._report is not None and self._report.should_print

    def collect(self, at: float, *, should_print: bool = True) -> None:
        """Request the stacks of all nodes, unless they are being collected already."""
        # Few jobs need it.
        from clusterrun.policy.stack_report import QUERY, StackReport

        if self._report is None:
            self._report = StackReport(self._members, should_print=should_print)
            self._queries.ask(self._report, QUERY, at)
        self._report.should_print |= should_print

    def answered(self, at: float) -> Hung | None:
        """Handle complete answers; return a hang for which the attempt must be stopped."""
        if self._report is not None and self._report.is_complete:
            report, self._report = self._report, None
            hung = self._detector.collected(report, self._respond(at), at)
            if report.should_print:
                self._print(report.text(self._programs))
                self._query_nccl(at, hung)
        if self._nccl is not None and self._nccl.is_answered:
            # Few jobs watch for hangs.
            from clusterrun.policy.nccl import in_words

            query, self._nccl = self._nccl, None
            if not query.is_watch:
                self._print(in_words(query.state))
                return query.hung and self._detector.confirmed(query.hung, self._respond(at), at)
            self._detector.nccl(query.state, self._timeout, at)
            self._report_hang(at)
        return None

    def _report_hang(self, at: float) -> bool:
        """Report a hang if it is time to; return whether it is."""
        if self._report is not None or at < self._detector.due:
            return False
        sign = self._detector.report(self._respond(at), at)
        if sign is not None:
            self.collect(at, should_print=sign is not HangSign.STILL)
        return True

    def _query_nccl(self, at: float, hung: Hung | None = None, *, is_watch: bool = False) -> None:
        """Ask which collectives NCCL has launched."""
        # Few jobs watch for hangs.
        from clusterrun.policy.nccl_query import QUERY, NcclQuery

        if self._nccl is not None:
            # A node answers one query to NCCL at a time.
            self._nccl.hung, self._nccl.is_watch = hung or self._nccl.hung, is_watch
            return
        self._nccl = NcclQuery(hung, is_watch=is_watch)
        self._queries.ask(self._nccl, QUERY, at)

    def _print(self, text: str) -> None:
        """Print lines on node 0, if there are any."""
        if text:
            self._members.send([self._members.own], PrintStacks(text))


def hang_headline(seconds: float, sign: HangSign) -> str:
    """Return "no rank has printed or exited for 600 s"."""
    return f"{IN_WORDS[sign]} for {round(seconds, 1):g} s"
