"""The job as this node can show it: what runs, and how its ranks are."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, assert_never

from clusterrun.agent.attempt_state import AttemptState, Running
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.world import World
from clusterrun.run.job_machine import ROOT, LocalJob

if TYPE_CHECKING:
    # Imported for the first look: few jobs get any.
    from clusterrun.control.messages import Description
    from clusterrun.domain.looks import LastLine, Look, NodeAnswer, NodeRanks, RankState
    from clusterrun.domain.outcome import Ending
    from clusterrun.machine.process_usage import ProcessUsage


class JobView:
    """Follows the attempts of this node; nothing is read before a user looks."""

    def __init__(self, local: LocalJob, world: World) -> None:
        """Show a job whose nodes have just joined."""
        self._local = local
        self._world = world
        self._workers: tuple[WorkerPlan, ...] = ()
        self._state: AttemptState | None = None
        self._since = time.monotonic()

    def begins(self, plan: NodePlan) -> None:
        """Show the workers of an attempt, which start now."""
        self._world, self._workers, self._state = plan.world, plan.workers, None

    def notes(self, state: AttemptState) -> None:
        """Show what the agent's policy has decided."""
        self._state = state

    def describe(self) -> Description:
        """Return what identifies the job."""
        from clusterrun.control.messages import Description
        from clusterrun.domain.bounds import as_line, as_name

        return Description(
            run_id=self._world.run_id,
            host=as_name(self._local.machine.host),
            pid=os.getpid(),
            node_rank=self._world.node_rank,
            nodes=self._world.nodes,
            program=as_line(self._local.job.program.value.name),
            ranks=self._world.size,
            attempt=self._world.attempt,
            state=self._phase,
            running_for=time.monotonic() - self._since,
        )

    def answer(self, look: Look, lines: Mapping[LocalRank, LastLine], now: float) -> NodeAnswer:
        """Return this node's answer to a look.

        Args:
            look: what is asked.
            lines: the last lines of workers, as far as they are known.
            now: the agent's monotonic clock.

        """
        from clusterrun.domain.looks import LookAtRanks

        match look:
            case LookAtRanks():
                return self._ranks(lines, now)
            case _:
                assert_never(look)

    def _ranks(self, lines: Mapping[LocalRank, LastLine], now: float) -> NodeRanks:
        from clusterrun.domain.bounds import as_name
        from clusterrun.domain.looks import MOST_RANKS, NodeRanks

        return NodeRanks(
            node_rank=self._world.node_rank,
            host=as_name(self._local.machine.host),
            pid=os.getpid(),
            attempt=self._world.attempt,
            state=self._phase,
            ranks=tuple(
                self._rank(worker, lines.get(worker.local_rank), now)
                for worker in self._workers[:MOST_RANKS]
            ),
        )

    @property
    def _phase(self) -> str:
        return "starting" if self._state is None else self._state.phase.value

    def _rank(self, worker: WorkerPlan, line: LastLine | None, now: float) -> RankState:
        from clusterrun.domain.bounds import as_line, as_name, as_seconds
        from clusterrun.domain.looks import LONGEST_LAST_LINE, RankState

        running, ending = self._process(worker.local_rank)
        usage = _usage(running.pid) if running and not ending else None
        return RankState(
            rank=worker.rank,
            local_rank=worker.local_rank,
            state=as_name(_in_words(running, ending, usage)),
            pid=running.pid if running else 0,
            running_for=as_seconds(now - running.since) if running else 0.0,
            cpu_seconds=usage.cpu_seconds if usage else 0.0,
            memory=usage.memory if usage else 0,
            gpus=as_name(",".join(str(gpu.index) for gpu in worker.gpus)),
            cpus=as_line("" if worker.cpus is None else str(worker.cpus)),
            last_line=as_line(line.text[:LONGEST_LAST_LINE] if line else ""),
            quiet_for=as_seconds(line.quiet_for) if line else None,
        )

    def _process(self, local_rank: LocalRank) -> tuple[Running | None, Ending | None]:
        if self._state is None:
            return None, None
        if (ended := self._state.ended.get(local_rank)) is not None:
            return Running(ended.pid, ended.since), ended.ending
        return self._state.running.get(local_rank), None


def _usage(pid: int) -> ProcessUsage | None:
    from clusterrun.machine.process_usage import Units, usage_of
    from clusterrun.machine.tree import Tree

    units = Units(os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE"))
    return usage_of(Tree(ROOT), pid, units)


def _in_words(running: Running | None, ending: Ending | None, usage: ProcessUsage | None) -> str:
    from clusterrun.report.worker_endings import in_words

    if ending is not None:
        return in_words(ending)
    if running is None:
        return "starting"
    return usage.state if usage else "exited"
