"""What the agent runs, attempt by attempt, and what it tells of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.domain.cpuset import runs
from clusterrun.domain.machine import Machine
from clusterrun.domain.outcome import Outcome
from clusterrun.domain.plan import NodePlan
from clusterrun.machine.oom_kills import OomCounters, struck_between
from clusterrun.machine.tree import Tree
from clusterrun.planning.node_plan import plan_node
from clusterrun.sources.resolve import Resolved
from clusterrun.workers.worker_group import WorkerGroup

if TYPE_CHECKING:
    # A job imports what it needs of these.
    from clusterrun.agent.event_log import Chronicle
    from clusterrun.rendezvous.peers import Peers
    from clusterrun.rendezvous.single_node import SingleNode

ROOT = Path("/")


class JobAttempts:
    """The job's attempts: the same plan each time, in a fresh world."""

    def __init__(
        self,
        resolved: Resolved,
        machine: Machine,
        nodes: SingleNode | Peers,
        workers: WorkerGroup,
        environ: Mapping[str, str],
    ) -> None:
        """Take all that a plan is made of, and the ``workers`` who print what there is to tell."""
        self._resolved = resolved
        self._machine = machine
        self._nodes = nodes
        self._workers = workers
        self._environ = environ
        self.chronicle: Chronicle | None = None
        """Who records what there is to tell, where that is asked for."""
        self._counters = OomCounters.read(ROOT)

    def plan(self, attempt: int) -> NodePlan:
        """Return the plan of the n-th attempt, and tell what is remarkable about the first."""
        plan = plan_node(
            self._resolved.job,
            self._machine,
            self._nodes.world(attempt),
            unset=self._resolved.unset,
            error_files=self._workers.error_files,
            environ=self._environ,
        )
        self._counters = OomCounters.read(ROOT)
        for remark in remarks_of(plan) if attempt == 0 else ():
            self._workers.say(f"clusterrun: {remark}")
        if self._resolved.verbose:
            self._describe(plan)
        if self.chronicle is not None:
            self.chronicle.begins(plan)
        return plan

    def _describe(self, plan: NodePlan) -> None:
        from clusterrun.report.attempt_start import describe_start

        balancing = Tree(ROOT).integer("proc/sys/kernel/numa_balancing")
        for line in describe_start(plan, moves_pages=bool(balancing)):
            self._workers.say(f"clusterrun: {line}")

    def out_of_memory(self) -> str:
        """Return signs that the OOM killer struck since this attempt began."""
        return struck_between(self._counters, OomCounters.read(ROOT))

    def failed(self, outcome: Outcome) -> None:
        """Tell of an attempt that is followed by another."""
        from clusterrun.report.outcome import explain_restart

        if self.chronicle is not None:
            self.chronicle.restarts(outcome)
        restarts = self._resolved.job.max_restarts.value
        self._workers.say(explain_restart(outcome, outcome.attempt + 1, restarts))


def remarks_of(plan: NodePlan) -> Iterator[str]:
    """Yield what is remarkable about the node, and about workers: equal ones together."""
    yield from plan.remarks
    for remark in dict.fromkeys(worker.remark for worker in plan.workers if worker.remark):
        ranks = runs(worker.rank for worker in plan.workers if worker.remark == remark)
        yield f"rank {', '.join(ranks)}: {remark}"
