"""The attempts of a job: the plan of each, and what is printed of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterrun.domain.plan import NodePlan
from clusterrun.domain.world import World
from clusterrun.machine.cgroup import OomCounters, machine_ran_out, oom_kills_between
from clusterrun.machine.tree import Tree
from clusterrun.planning.node_plan import plan_node
from clusterrun.policy.node import Attempt
from clusterrun.policy.outcome import Evidence, Outcome
from clusterrun.run.job_machine import ROOT, LocalJob
from clusterrun.run.job_view import JobView
from clusterrun.workers.node_workers import NodeWorkers
from clusterrun.workers.relay.client import RelayClient

if TYPE_CHECKING:
    # Few jobs have one.
    from clusterrun.run.event_log import EventLog


class JobAttempts:
    """The job's attempts: the same plan each time, in the world that the nodes have formed."""

    def __init__(
        self,
        local: LocalJob,
        workers: NodeWorkers,
        relay: RelayClient,
        event_log: EventLog | None,
        view: JobView,
    ) -> None:
        self._view = view
        self._local = local
        self._workers = workers
        self._relay = relay
        self._event_log = event_log
        self._counters = OomCounters.read(ROOT)
        self._gpu_faults: str | None = None

    def plan(self, world: World) -> NodePlan:
        """Return the plan of an attempt, which begins now; print its remarks if it is the first."""
        plan = plan_node(
            self._local.job,
            self._local.machine,
            world,
            unset=self._local.resolved.unset,
            error_files=self._workers.error_files,
            environ=self._local.variables,
        )
        if self._local.job.has_wrappers:
            plan = self._wrapped(plan)
        self._counters, self._gpu_faults = OomCounters.read(ROOT), None
        for remark in plan.all_remarks() if world.attempt == 0 else ():
            self._relay.notice(remark)
        if self._local.resolved.verbose:
            self._describe(plan)
        self._view.begins(plan)
        if self._event_log is not None:
            self._event_log.begins(plan)
        return plan

    def _wrapped(self, plan: NodePlan) -> NodePlan:
        from clusterrun.run.wrapped_ranks import with_wrappers

        plan, notice = with_wrappers(plan, self._local.job, self._workers.profile)
        if notice:
            self._relay.notice(notice)
        return plan

    def _describe(self, plan: NodePlan) -> None:
        from clusterrun.report.plan import describe_start

        balancing = Tree(ROOT).integer("proc/sys/kernel/numa_balancing")
        for line in describe_start(plan, moves_pages=bool(balancing)):
            self._relay.notice(line)

    def note(self, attempt: Attempt, at: float) -> None:
        """Record what has become of an attempt with an event at ``at``."""
        self._view.notes(attempt)
        if self._event_log is not None:
            self._event_log.notes(attempt, at)

    def evidence(self) -> Evidence:
        """Return signs that since this attempt began the OOM killer struck, or hardware broke."""
        now = OomCounters.read(ROOT)
        kills = oom_kills_between(self._counters, now)
        if machine_ran_out(self._counters, now):
            return Evidence(kills, "no memory left")
        return Evidence(kills, self._broken_gpus())

    def _broken_gpus(self) -> str:
        """Ask NVML once an attempt, and only for a job that leaves bad nodes out: it takes a while."""
        has_gpus = any(gpu.vendor == "nvidia" for gpu in self._local.machine.gpus)
        if not has_gpus or not self._local.job.losing.exclude_after:
            return ""
        if self._gpu_faults is None:
            from clusterrun.machine.gpus.nvml import broken_gpus

            self._gpu_faults = broken_gpus()
        return self._gpu_faults

    def failed(self, outcome: Outcome) -> None:
        """Print how an attempt ended that is followed by another."""
        from clusterrun.report.outcome import explain_restart

        if self._event_log is not None:
            self._event_log.restarts(outcome)
        restarts = self._local.job.failing.max_restarts
        self._relay.say(explain_restart(outcome, outcome.attempt + 1, restarts))
