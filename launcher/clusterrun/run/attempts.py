"""The attempts of a job: the plan of each, what is printed and recorded of it, how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from clusterrun.errors import LauncherError
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
    # Few jobs have one.
    from clusterrun.run.event_log import EventLog
    from clusterrun.run.node_check import NodeCheck
    from clusterrun.run.ras_ports import RasPorts


class JobProgress(Struct):
    """How far the job is on this node, for who looks at it."""

    since: float
    """When all nodes had joined, or this one began to wait for that, by the monotonic clock."""
    attempt: Attempt | None = None
    """The present one; None while nodes join."""
    attempt_since: float = 0.0
    """In seconds since the epoch."""
    workers: NodeWorkers | None = None
    """Those of this node; None while nodes join."""


class JobAttempts:
    """The job's attempts: the same plan each time, in the world that the nodes have formed."""

    def __init__(
        self,
        node: LocalNode,
        workers: NodeWorkers,
        relay: RelayClient,
        progress: JobProgress,
        check: NodeCheck | None = None,
    ) -> None:
        """``progress`` is kept up to date; ``check`` runs ``--check``."""
        self._node = node
        self._check = check
        self._workers = workers
        self._relay = relay
        self._progress = progress
        progress.workers = workers
        self._event_log = _event_log(node, relay)
        self._counters = OomCounters(groups=(), machine_kills=0)
        """At the beginning of the attempt."""
        self._ras_ports: RasPorts | None = None

    def begin(self, world: World) -> Attempt:
        """Return the attempt in this world, which begins now; print its remarks if it is the first."""
        job = self._node.job
        plan = self._node.plan(world, self._workers.error_files)
        if job.failures.pdb:
            # Few jobs are debugged.
            from clusterrun.run.post_mortem import with_pdb

            plan = with_pdb(plan)
        if any(worker.needs_ras_port for worker in plan.workers):
            plan = self._with_ras_addresses(plan)
        self._counters = OomCounters.read(ROOT)
        for remark in plan.all_warnings() if world.attempt == 0 else ():
            self._relay.notice(remark)
        if job.output.verbose:
            self._describe(plan)
        progress, before = self._progress, self._progress.attempt
        can_suspend = before is not None and before.suspending.possible
        progress.attempt_since = time.time()
        progress.attempt = Attempt(
            job, plan, foreground=self._workers.foreground, can_suspend=can_suspend
        )
        if self._event_log is not None:
            self._event_log.begins(plan)
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

    def note(self, attempt: Attempt, at: float) -> None:
        """Record what has become of an attempt with an event at ``at``."""
        if self._event_log is not None:
            self._event_log.notes(attempt, at)

    def oom_kills(self) -> str:
        """Return a sentence on the OOM killer's kills since this attempt began; "" if there are none."""
        return oom_kills_between(self._counters, OomCounters.read(ROOT))

    def check(self, now: float) -> Iterable[Event]:
        """Run ``--check``; return that there is nothing to run, if this node has none."""
        if self._check is None:
            return [NodeChecked("", now)]
        self._check.start()
        return []

    def failed(self, outcome: Outcome) -> None:
        """Print how an attempt ended that is followed by another."""
        from clusterrun.report.outcome import restart_text

        if self._event_log is not None:
            self._event_log.restarts(outcome)
        restarts = self._node.job.failures.max_restarts
        self._relay.say(restart_text(outcome, restarts))

    def ended(self, outcome: Outcome) -> None:
        """Record the end of the job."""
        if self._event_log is not None:
            self._event_log.ends(outcome)

    def launcher_failed(self, error: LauncherError) -> None:
        """Record that the launcher itself failed."""
        if self._event_log is not None:
            self._event_log.launcher_failed(error)


def _event_log(node: LocalNode, relay: RelayClient) -> EventLog | None:
    if node.job.files.events is None:
        return None
    from clusterrun.run.event_log import EventLog

    path = str(absolute(node.job.files.events, node.job.origin("events")))

    def write(node_rank: int, line: str) -> None:
        relay.send(Append(path.replace("%n", str(node_rank)), line))

    return EventLog(write, time.monotonic, time.time() - time.monotonic())
