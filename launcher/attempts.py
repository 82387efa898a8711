"""What the agent runs, attempt by attempt, and what it tells of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.domain.cpuset import runs
from launcher.domain.machine import Machine
from launcher.domain.outcome import Outcome
from launcher.domain.plan import NodePlan
from launcher.machine.memory import OomCounters, struck_between
from launcher.machine.tree import Tree
from launcher.planning.node import plan_node
from launcher.rendezvous.single_node import SingleNode
from launcher.sources.resolve import Resolved
from launcher.workers.group import WorkerGroup

if TYPE_CHECKING:
    # Only jobs on several nodes import what speaks with others, only some jobs are chronicled.
    from launcher.agent.chronicle import Chronicle
    from launcher.rendezvous.peers import Peers

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
        from launcher.report.start import describe_start  # noqa: PLC0415 - only where it is asked for

        balancing = Tree(ROOT).integer("proc/sys/kernel/numa_balancing")
        for line in describe_start(plan, moves_pages=bool(balancing)):
            self._workers.say(f"clusterrun: {line}")

    def out_of_memory(self) -> str:
        """Return signs that the OOM killer struck since this attempt began."""
        return struck_between(self._counters, OomCounters.read(ROOT))

    def failed(self, outcome: Outcome) -> None:
        """Tell of an attempt that is followed by another."""
        from launcher.report.outcome import explain_restart  # noqa: PLC0415 - seldom asked for

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
