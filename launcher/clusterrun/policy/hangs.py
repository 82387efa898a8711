"""Whether the job hangs, and what is done about it.

There are three signs (``HangSign``). Each must last for ``--hang-timeout``:

    SILENT  no rank of any node has printed or exited
    STILL   ranks print, as a thread that logs metrics does, but no main thread of any node has run; and
            one of them waits inside torch, as the stacks show. If none does, ranks may work in other
            threads: nothing is shown until a main thread has run
    BEHIND  main threads run, as those that wait for NCCL do, but NCCL has launched fewer collectives on
            some ranks than on others, and none on any rank since

Then the stacks of all ranks are shown on node 0, with what NCCL says, and ``--on-hang`` may restart or
end the job. A hang is reported once, and again after a rank has moved. If a rank had no stack, its
script had perhaps not begun: then after the same time, too.
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

PATIENCE = 0.125
"""Of the timeout: all ranks may be about to count as silent, too, and then that is what is said."""

NCCL_QUERIES_PER_TIMEOUT = 3
"""In the timeout."""

MIN_SECONDS_BETWEEN_NCCL_QUERIES = 2.0
"""Seconds between two questions to NCCL."""

IN_WORDS = {
    HangSign.SILENT: "no rank has printed or exited",
    HangSign.STILL: "ranks print, but no main thread has run",
    HangSign.BEHIND: "ranks print, but some are behind in NCCL, and none has made progress",
}


class HangResponse(Enum):
    """What is done about a hang now; the value says it."""

    REPORT = "the job keeps running"
    RESTART = "then all workers are restarted (--on-hang)"
    STOP = "then the job is stopped (--on-hang)"


class IdleNodes:
    """Since when the workers of each node do nothing, in one respect."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._since: dict[Node, float] = {}

    def note(self, node: Node, seconds: float, at: float) -> None:
        """Take note that a node has rested for some seconds; 0: it does not."""
        if seconds > 0 and node.here:
            self._since.setdefault(node, at - seconds)
        else:
            self.lost(node)

    def lost(self, node: Node) -> None:
        self._since.pop(node, None)

    @property
    def since(self) -> float:
        """Since when all nodes that are not lost rest; NEVER: they do not."""
        expected = len(self._members.places) - len(self._members.lost)
        rest = len(self._since) == expected and expected > 0
        return max(self._since.values()) if rest else NEVER


class Hangs:
    """Whether an attempt hangs."""

    def __init__(
        self,
        members: Members,
        programs: Iterable[NumberedProgram] = (),
        *,
        timeout: float,
        acts: bool,
    ) -> None:
        """Begin with the attempt.

        Args:
            members: has the nodes.
            programs: of a job with services; those wait for nothing.
            timeout: ``--hang-timeout``; no node may say that it is shorter.
            acts: ``--on-hang`` does more than report.

        """
        self._programs = tuple(programs)
        self._members = members
        self._acts = acts
        self._runs = True
        self._silent = IdleNodes(members)
        self._still = IdleNodes(members)
        self._nccl: NcclState | None = None
        """The first one of those in which the same ranks are behind; None: none is."""
        self._behind_since = NEVER
        self._least = timeout
        self._timeout = 0.0
        """As the first message about idle workers says; 0.0 until then."""
        self._again_at: dict[HangSign, float] = {}
        """Before that, a sign does not count again: no rank can have moved, and rested for so long."""
        self._suspected: HangSign | None = None
        self._due = NEVER
        self._collects: HangSign | None = None
        """What stacks are being collected for; None: for no hang."""
        self._seconds = 0.0
        """For how long that had lasted when they were asked for."""
        self._told: HangSign | None = None
        """The sign that was reported, and lasts; no other is reported meanwhile."""

    @property
    def due(self) -> float:
        """When to call ``report``, unless stacks are being collected then."""
        return self._due

    def lost(self, node: Node) -> None:
        """Expect nothing from a node any more."""
        self._silent.lost(node)
        self._still.lost(node)

    def idle(self, node: Node, idle: Idle, at: float) -> None:
        """Take note of what a node's workers do not do, or do again; ``due`` may be now."""
        silent, still = self._since(HangSign.SILENT), self._since(HangSign.STILL)
        self._silent.note(node, idle.seconds, at)
        self._still.note(node, idle.still, at)
        self._timeout = self._timeout or max(self._least, idle.seconds or idle.still)
        self._forget_what_has_ended(at)
        if silent == NEVER != self._since(HangSign.SILENT) and (self._told is None or self._acts):
            self._suspect(HangSign.SILENT, at)
        elif still == NEVER and self._lasts(HangSign.STILL) and self._told is None:
            self._suspect(HangSign.STILL, at + idle.still * PATIENCE)

    def nccl(self, state: "NcclState", timeout: float, at: float) -> None:
        """Take what NCCL says of the ranks; ``due`` may be now."""
        same = self._nccl is not None and self._nccl.counts == state.counts
        if not same:
            self._nccl = state if state.behind else None
            self._behind_since = at if state.behind else NEVER
            self._forget_what_has_ended(at)
        elif at - self._behind_since >= timeout and self._told is self._suspected is None:
            self._timeout = self._timeout or timeout
            self._suspect(HangSign.BEHIND, at)

    def report(self, response: HangResponse, at: float) -> str | None:
        """Return why all stacks are to be collected; "": not to be said yet. None: they are not."""
        sign, self._suspected, self._due = self._suspected, None, NEVER
        if sign is None or not self._lasts(sign):
            return None
        self._collects, self._seconds = sign, at - self._since(sign)
        self._again_at[sign] = at + self._timeout
        if sign is HangSign.STILL:
            return ""
        self._told = sign
        return self._headline(sign, response)

    def collected(self, report: "StackReport", response: HangResponse, at: float) -> Hung | None:
        """Name those for whom the others wait; return that the attempt is to be stopped for the hang.

        ``report`` has the stacks that have come; a user may have asked for them, too.
        """
        sign, self._collects = self._collects, None
        if sign is None or not self._lasts(sign):
            return None
        known = tuple(self._of_main(report.known()))
        if sign is HangSign.STILL:
            if not any(map(waits_in_torch, known)):
                return None
            report.is_wanted, self._told = True, sign
            self._members.note(self._headline(sign, response))
        ranks = stragglers(known)[:MAX_RANKS]
        if ranks:
            exited = exited_clause(known, ranks)
            self._members.note(f"the other ranks wait for {named_ranks(ranks)}{exited}")
        if response is not HangResponse.REPORT:
            return Hung(self._seconds, ranks, as_line(describe_differences(known)), sign)
        if self._acts or (sign is HangSign.SILENT and any(map(runs_without_stack, known))):
            self._suspect(sign, at + self._timeout)
        return None

    def end_attempt(self) -> None:
        """Find no hang any more: the workers are being stopped."""
        self._runs = False

    # Signs.

    def _since(self, sign: HangSign) -> float:
        """Return since when there is a sign; NEVER: there is none."""
        if sign is HangSign.BEHIND:
            return self._behind_since
        return (self._silent if sign is HangSign.SILENT else self._still).since

    def _lasts(self, sign: HangSign) -> bool:
        """Return whether there is a sign, and no worker is being stopped.

        Ranks that print no more are SILENT, whatever else they do not do.
        """
        is_silent = sign is HangSign.SILENT or self._since(HangSign.SILENT) == NEVER
        return self._runs and is_silent and self._since(sign) != NEVER

    def _suspect(self, sign: HangSign, due: float) -> None:
        self._suspected, self._due = sign, max(due, self._again_at.get(sign, 0.0))

    def _forget_what_has_ended(self, at: float) -> None:
        if self._suspected is not None and self._since(self._suspected) == NEVER:
            self._suspected, self._due = None, NEVER
        if self._told is not None and self._since(self._told) == NEVER:
            self._told = None
            if self._since(HangSign.SILENT) != NEVER:
                # They have printed until now.
                self._suspect(HangSign.SILENT, at + self._timeout)

    def _headline(self, sign: HangSign, response: HangResponse) -> str:
        return f"{hang_headline(self._seconds, sign)}: {STACKS_FOLLOW}; {response.value}"

    def _of_main(self, groups: Iterable[StackGroup]) -> Iterable[StackGroup]:
        """Yield the stacks of the main program alone."""
        size = self._programs[0].size if self._programs else None
        for group in groups:
            own = tuple(rank for rank in group.ranks if size is None or rank < size)
            if own:
                yield replace(group, ranks=own)


class HangWatch:
    """Looks for hangs of an attempt, and collects what node 0 prints of one, or at SIGQUIT: all stacks."""

    def __init__(
        self,
        members: Members,
        queries: QueryRounds,
        job: Job,
        programs: Iterable[NumberedProgram],
        respond: Callable[[], HangResponse],
    ) -> None:
        """Begin with the attempt.

        Args:
            members: the nodes.
            queries: asks them.
            job: says for how long nothing may move, and what then.
            programs: of a job with services.
            respond: returns what is done about a hang that is found now.

        """
        self._members = members
        self._queries = queries
        self._timeout = job.active_hang_timeout
        self._programs = tuple(programs)
        self._respond = respond
        acts = job.failures.on_hang is not OnHang.REPORT
        self._hangs = Hangs(members, self._programs, timeout=self._timeout, acts=acts)
        self._report: StackReport | None = None
        """The stacks that are being collected."""
        self._nccl: NcclQuery | None = None
        """What NCCL is being asked."""
        self._asks_nccl_at = NEVER
        """When to ask it next whether ranks are behind."""

    @property
    def due(self) -> float:
        """When to call ``time_passed``."""
        hang = self._hangs.due if self._report is None else NEVER
        return min(hang, self._asks_nccl_at if self._nccl is None else NEVER)

    def watch_nccl(self, at: float) -> None:
        """Ask NCCL some time later whether ranks are behind, if hangs are looked for."""
        if self._timeout:
            self._asks_nccl_at = at + seconds_between_nccl_queries(self._timeout)

    def idle(self, node: Node, idle: Idle, at: float) -> None:
        """Take note of what a node's workers do not do, or do again."""
        self._hangs.idle(node, idle, at)
        self._report_hang(at)

    def lost(self, node: Node) -> None:
        """Expect nothing from a node any more."""
        self._hangs.lost(node)

    def end_attempt(self) -> None:
        """Find no hang any more: the workers are being stopped."""
        self._hangs.end_attempt()

    def time_passed(self, at: float) -> bool:
        """Do what is due; return whether a hang was found."""
        if self._report_hang(at):
            return True
        if self._nccl is None and at >= self._asks_nccl_at:
            self.watch_nccl(at)
            self._ask_nccl(at, is_watch=True)
        return False

    @property
    def prints_stacks(self) -> bool:
        """Whether stacks are being collected that are to be printed."""
        return self._report is not None and self._report.is_wanted

    def collect(self, at: float, *, is_wanted: bool = True) -> None:
        """Ask all nodes for their stacks, unless that goes on; print them, if they are wanted."""
        # Few jobs need it.
        from clusterrun.policy.stack_report import QUERY, StackReport

        if self._report is None:
            self._report = StackReport(self._members, is_wanted=is_wanted)
            self._queries.ask(self._report, QUERY, at)
        self._report.is_wanted |= is_wanted

    def answered(self, at: float) -> Hung | None:
        """Go on if all answers have come; return that the attempt is to be stopped for a hang."""
        if self._report is not None and self._report.is_whole:
            report, self._report = self._report, None
            self._print(report, at)
        if self._nccl is not None and self._nccl.is_answered:
            # Few jobs look for hangs.
            from clusterrun.policy.nccl import in_words

            question, self._nccl = self._nccl, None
            if not question.is_watch:
                self._send(in_words(question.state))
                return question.hung
            self._hangs.nccl(question.state, self._timeout, at)
            self._report_hang(at)
        return None

    def _report_hang(self, at: float) -> bool:
        """Have the stacks of all ranks printed, if it is time to; return whether it is."""
        if self._report is not None or at < self._hangs.due:
            return False
        why = self._hangs.report(self._respond(), at)
        if why:
            self._members.note(why)
        if why is not None:
            self.collect(at, is_wanted=bool(why))
        return True

    def _print(self, report: "StackReport", at: float) -> None:
        """Have node 0 print the stacks; then ask NCCL, and act if the job hangs."""
        hung = self._hangs.collected(report, self._respond(), at)
        if report.is_wanted:
            self._send(report.text(self._programs))
            self._ask_nccl(at, hung)

    def _ask_nccl(self, at: float, hung: Hung | None = None, *, is_watch: bool = False) -> None:
        """Ask what NCCL has launched; see ``NcclQuery``."""
        # Few jobs look for hangs.
        from clusterrun.policy.nccl_query import QUERY, NcclQuery

        if self._nccl is not None:
            # Each node answers one at a time.
            self._nccl.hung, self._nccl.is_watch = hung, is_watch
            return
        self._nccl = NcclQuery(hung, is_watch=is_watch)
        self._queries.ask(self._nccl, QUERY, at)

    def _send(self, text: str) -> None:
        if text:
            self._members.send([self._members.own], PrintStacks(text))


def seconds_between_nccl_queries(timeout: float) -> float:
    """Return how long after a question to NCCL the next one follows; ``timeout``: a hang's."""
    return max(timeout / NCCL_QUERIES_PER_TIMEOUT, MIN_SECONDS_BETWEEN_NCCL_QUERIES)


def hang_headline(seconds: float, sign: HangSign) -> str:
    """Return what ``--hang-timeout`` has found."""
    return f"{IN_WORDS[sign]} for {round(seconds, 1):g} s"
