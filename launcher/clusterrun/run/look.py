"""What a user sees of the job on this node: which it is, what runs, and how its ranks are.

Imported for the first look: few jobs get any.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import assert_never

from msgspec import UNSET
from msgspec.structs import replace

from clusterrun.bounds import LocalRank, as_line, as_name, as_seconds, as_text
from clusterrun.machine.gpus.nvml import GpuUsage
from clusterrun.machine.machine import GpuState
from clusterrun.machine.process_usage import ProcessUsage, Units, usage_of
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.network.requests import JOINING, Description
from clusterrun.planning.plan import WorkerPlan, World
from clusterrun.policy.actions import ForwardSignal
from clusterrun.policy.looks import (
    LONGEST_LAST_LINE,
    MOST_RANKS,
    LastLine,
    Look,
    LookAtNativeStacks,
    LookAtRanks,
    LookAtStacks,
    NodeAnswer,
    NodeNativeStacks,
    NodeRanks,
    NodeStacks,
    RankState,
    Seen,
    WorkerStacks,
)
from clusterrun.policy.node import Attempt, Phase, RunningWorker
from clusterrun.policy.outcome import Ending
from clusterrun.policy.stacks import StackGroup, of_ranks
from clusterrun.processes import TimeLimited
from clusterrun.report.ending import ending_in_words
from clusterrun.run.attempts import JobProgress
from clusterrun.run.node import LocalNode
from clusterrun.run.py_spy import PySpy
from clusterrun.workers.flight_records import named_flight_records
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.relay.client import RelayClient

SECONDS_FOR_FOLDERS = 1.0
"""Those of PATH may be on a file server that hangs."""


class NodeView:
    """Reads the state of this node when it is asked, and nothing before."""

    def __init__(
        self, node: LocalNode, progress: JobProgress, relay: RelayClient, fork_server: ForkServer
    ) -> None:
        self._node, self._progress = node, progress
        self._relay, self._fork_server = relay, fork_server
        self._host = as_name(node.machine.host)
        self._gpus = GpuUsage()
        within_time = TimeLimited(SECONDS_FOR_FOLDERS).run
        self._py_spy = PySpy(node.variables, Path(sys.executable), within_time)

    def describe(self) -> Description:
        """Return what identifies the job; while nodes join, as far as it is known."""
        job, attempt = self._node.job, self._progress.attempt
        shown = Description(
            run_id=job.joining.run_id,
            host=self._host,
            pid=os.getpid(),
            node_rank=job.agent_rank or 0,
            nodes=job.agents,
            program=as_line(job.script.name),
            state=JOINING,
            running_for=time.monotonic() - self._progress.since,
        )
        if attempt is None:
            return shown
        world = attempt.plan.world
        return replace(
            shown,
            run_id=world.run_id,
            node_rank=world.node_rank,
            nodes=world.nodes,
            ranks=world.size,
            programs=tuple(each.numbered for each in world.programs) or UNSET,
            attempt=world.attempt,
            state=_phase(attempt),
        )

    @property
    def node_rank(self) -> int:
        return self._world.node_rank

    def ask_relay(self, number: int, look: Look) -> bool:
        """Ask the relay for what a look needs; return whether it needs anything.

        ``number`` is that of the ``RelaySaw`` that answers.
        """
        match look:
            case LookAtRanks():
                if any(gpu.vendor == "nvidia" for gpu in self._node.machine.gpus):
                    # The next look shows the answer.
                    self._gpus.ask(time.monotonic())
                self._relay.look_at_lines(number)
                return True
            case LookAtStacks(rank, patient):
                if not self._asked(rank):
                    return False
                # The relay first: it must expect what the workers print then.
                self._relay.look_at_stacks(number, patient=patient)
                self._fork_server.send(ForwardSignal(signal.SIGQUIT))
                if patient:
                    self._name_flight_records()
                return True
            case LookAtNativeStacks():
                return False
            case _:
                assert_never(look)

    def answer(self, look: Look, seen: Seen | None, now: float) -> NodeAnswer | None:
        """Return this node's answer to a look; None if it has none for node 0's terminal.

        Args:
            look: what is asked.
            seen: what the relay has of the workers; None if it was not asked, or has not answered.
            now: the agent's monotonic clock.

        """
        match look:
            case LookAtRanks():
                lines = seen if isinstance(seen, Mapping) else {}
                return self._ranks(lines, now)
            case LookAtStacks(_, patient):
                if not isinstance(seen, WorkerStacks):
                    return None if patient else NodeStacks(self.node_rank, self._host, ())
                return NodeStacks(self.node_rank, self._host, self._stacks(seen, look))
            case LookAtNativeStacks():
                return self._native_stacks(look, now)
            case _:
                assert_never(look)

    def close(self) -> None:
        """End what still asks."""
        self._gpus.close()
        self._py_spy.close()

    @property
    def _attempt(self) -> Attempt:
        if self._progress.attempt is None:
            raise AssertionError("a look into a job that has not begun")
        return self._progress.attempt

    @property
    def _world(self) -> World:
        return self._attempt.plan.world

    def _asked(self, rank: int | None) -> tuple[WorkerPlan, ...]:
        """Return the workers that a look is about."""
        return tuple(each for each in self._attempt.plan.workers if rank in {None, each.rank})

    # Where they are.

    def _stacks(self, seen: WorkerStacks, look: LookAtStacks) -> tuple[StackGroup, ...]:
        """Return the stacks of the ranks that were asked for, by global rank."""
        if look.patient:
            groups = self._attempt.stacks_to_show(seen)
        else:
            groups = of_ranks(seen.groups, self._attempt.plan.numbers)
        wanted = {worker.rank for worker in self._asked(look.rank)}
        return tuple(
            StackGroup(tuple(sorted(ranks)), as_text(group.text), group.found)
            for group in groups
            if (ranks := wanted.intersection(group.ranks))
        )

    def _name_flight_records(self) -> None:
        """Print where torch's are, if this job has written some: few do."""
        ranks = tuple(worker.rank for worker in self._attempt.plan.workers)
        records = named_flight_records(self._node.environment, ranks, self._progress.attempt_since)
        if records:
            self._relay.notice(records)

    def _native_stacks(self, look: LookAtNativeStacks, now: float) -> NodeNativeStacks:
        if self.node_rank in look.known:
            return NodeNativeStacks(self.node_rank, self._host, (), is_done=True)
        processes = {each.rank: self._process(each.local_rank) for each in self._asked(look.rank)}
        pids = {
            rank: running.pid
            for rank, (running, ending) in processes.items()
            if running and not ending
        }
        stacks, is_done, problem = self._py_spy.look(look, pids, now)
        return NodeNativeStacks(self.node_rank, self._host, stacks, is_done, problem)

    # How they are.

    def _ranks(self, lines: Mapping[LocalRank, LastLine], now: float) -> NodeRanks:
        gpus = self._gpus.latest(now)
        return NodeRanks(
            node_rank=self.node_rank,
            host=self._host,
            pid=os.getpid(),
            attempt=self._world.attempt,
            state=_phase(self._attempt),
            ranks=tuple(
                self._rank(worker, lines.get(worker.local_rank), gpus, now)
                for worker in self._attempt.plan.workers[:MOST_RANKS]
            ),
        )

    def _rank(
        self,
        worker: WorkerPlan,
        line: LastLine | None,
        gpus: Mapping[str, GpuState],
        now: float,
    ) -> RankState:
        running, ending = self._process(worker.local_rank)
        usage = _usage(running.pid) if running and not ending else None
        state = _state_in_words(running, ending, usage)
        if worker.local_rank in self._attempt.waiting:
            state = f"waits for {', '.join(self._attempt.waits_for(worker.local_rank))}"
        return RankState(
            rank=worker.rank,
            local_rank=worker.local_rank,
            state=as_name(state),
            pid=running.pid if running else 0,
            running_for=as_seconds(now - running.since) if running else 0.0,
            cpu_seconds=usage.cpu_seconds if usage else 0.0,
            memory=usage.memory if usage else 0,
            gpus=as_name(",".join(str(gpu.index) for gpu in worker.gpus)),
            cpus=as_line("" if worker.cpus is None else str(worker.cpus)),
            last_line=as_line(line.text[:LONGEST_LAST_LINE] if line else ""),
            quiet_for=as_seconds(line.quiet_for) if line else None,
            lines=line.lines if line else 0,
            gpu_states=tuple(gpus[gpu.uuid] for gpu in worker.gpus if gpu.uuid in gpus),
        )

    def _process(self, local_rank: LocalRank) -> tuple[RunningWorker | None, Ending | None]:
        attempt = self._attempt
        if (ended := attempt.ended.get(local_rank)) is not None:
            return ended.ran, ended.ending
        return attempt.running.get(local_rank), None


def _phase(attempt: Attempt) -> str:
    has_begun = attempt.running or attempt.ended or attempt.phase is not Phase.RUNNING
    return attempt.phase.value if has_begun else "starting"


def _usage(pid: int) -> ProcessUsage | None:
    units = Units(os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE"))
    return usage_of(Tree(ROOT), pid, units)


def _state_in_words(
    running: RunningWorker | None, ending: Ending | None, usage: ProcessUsage | None
) -> str:
    if ending is not None:
        return ending_in_words(ending)
    if running is None:
        return "starting"
    return usage.state if usage else "exited"
