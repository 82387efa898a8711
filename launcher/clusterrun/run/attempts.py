"""The attempts of a job: plans them, prints and records what happens, and tracks the progress."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from clusterrun.job.output import absolute
from clusterrun.machine.cgroup import OomCounters, oom_kills_between
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.planning.plan import NodePlan, World
from clusterrun.policy.events import Event, NodeChecked
from clusterrun.policy.node import Attempt
from clusterrun.policy.outcome import Outcome
from clusterrun.run.node import LocalNode
from clusterrun.workers.fork_server.messages import Append
from clusterrun.workers.node_workers import NodeWorkers
from clusterrun.workers.relay.client import RelayClient

if TYPE_CHECKING:
    # Few jobs need them.
    from clusterrun.run.event_log import EventLog
    from clusterrun.run.node_check import NodeCheck
    from clusterrun.run.ras_ports import RasPorts


class JobProgress(Struct):
    """The state of the job on this node, as queries show it."""

    since: float
    """When all nodes had joined; before that, when this one began to wait. A monotonic time."""
    attempt: Attempt | None = None
    """The current attempt; None while nodes join."""
    rejoins_since: float | None = None
    """When this node, which was lost, began to wait to join again; ``attempt`` is its last one."""
    attempt_since: float = 0.0
    """In seconds since the epoch."""
    workers: NodeWorkers | None = None
    """On this node; None while nodes join."""


class JobAttempts:
    """The job's attempts on this node."""

    def __init__(
        self,
        node: LocalNode,
        workers: NodeWorkers,
        relay: RelayClient,
        progress: JobProgress,
        check: NodeCheck | None = None,
    ) -> None:
        """``progress`` is updated; ``check`` runs ``--check``."""
        self._node = node
        self._check = check
        self._workers = workers
        self._relay = relay
        self._progress = progress
        progress.workers = workers
        self._event_log = _event_log(node, relay)
        self._counters = OomCounters(groups=(), machine_kills=0)
        """At the start of the attempt."""
        self._ras_ports: RasPorts | None = None

    def begin(self, world: World) -> Attempt:
        """Return the attempt in this world, which begins now; print its warnings if it is the first."""
        job = self._node.job
        plan = self._node.plan(world, self._workers.error_files)
        if job.failures.pdb:
            # Few jobs are debugged.
            from clusterrun.run.post_mortem import with_pdb

            plan = with_pdb(plan)
        if any(worker.needs_ras_port for worker in plan.workers):
            plan = self._with_ras_addresses(plan)
        self._counters = OomCounters.read(ROOT)
        for warning in plan.all_warnings() if world.attempt == 0 else ():
            self._relay.notice(warning)
        if job.output.verbose:
            self._describe(plan)
        progress, before = self._progress, self._progress.attempt
        progress.attempt_since, progress.rejoins_since = time.time(), None
        progress.attempt = Attempt(
            job,
            plan,
            foreground=self._workers.foreground,
            before=None if before is None else before.suspending,
        )
        if self._event_log is not None:
            self._event_log.attempt_started(plan)
        return progress.attempt

    def _with_ras_addresses(self, plan: NodePlan) -> NodePlan:
        """Return the plan with a port for the NCCL of each worker that has an NVIDIA GPU."""
        if self._ras_ports is None:
            from clusterrun.run.ras_ports import RasPorts

            self._ras_ports = RasPorts()
        return self._ras_ports.with_addresses(plan)

    def close(self) -> None:
        """Release the ports of the last attempt's workers."""
        if self._ras_ports is not None:
            self._ras_ports.release()

    def _describe(self, plan: NodePlan) -> None:
        from clusterrun.report.plan import describe_start

        balancing = Tree(ROOT).integer("proc/sys/kernel/numa_balancing")
        for line in describe_start(plan, moves_pages=bool(balancing)):
            self._relay.notice(line)

    def record_changes(self, attempt: Attempt, at: float) -> None:
        """Record what an event at ``at`` has changed in the attempt."""
        if self._event_log is not None:
            self._event_log.record_changes(attempt, at)

    def oom_kills(self) -> str:
        """Return a sentence on the OOM killer's kills since this attempt started; "" if there are none."""
        return oom_kills_between(self._counters, OomCounters.read(ROOT))

    def check(self, now: float) -> Iterable[Event]:
        """Start ``--check``; return its success at once if this node has no check."""
        if self._check is None:
            return [NodeChecked("", now)]
        self._check.start()
        return []

    def attempt_failed(self, outcome: Outcome) -> None:
        """Print and record how an attempt ended, before the next one starts."""
        from clusterrun.report.outcome import restart_text

        if self._event_log is not None:
            self._event_log.attempt_failed(outcome)
        restarts = self._node.job.failures.max_restarts
        self._relay.print_text(restart_text(outcome, restarts))

    def job_ended(self, outcome: Outcome) -> None:
        """Record the end of the job."""
        if self._event_log is not None:
            self._event_log.job_ended(outcome)


def _event_log(node: LocalNode, relay: RelayClient) -> EventLog | None:
    if node.job.files.events is None:
        return None
    from clusterrun.run.event_log import EventLog

    path = str(absolute(node.job.files.events, node.job.origin("events")))

    def write(node_rank: int, line: str) -> None:
        relay.send(Append(path.replace("%n", str(node_rank)), line))

    return EventLog(write, time.monotonic, time.time() - time.monotonic())
