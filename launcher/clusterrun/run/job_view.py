"""The job as this node can show it: what runs, and how its ranks are."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.world import World
from clusterrun.policy.actions import ForwardSignal
from clusterrun.policy.node import Attempt, Running
from clusterrun.run.job_machine import ROOT, LocalJob

if TYPE_CHECKING:
    # Imported for the first look: few jobs get any.
    from clusterrun.machine.gpus.nvml import GpuUsage
    from clusterrun.machine.looking import ProcessUsage, PySpy
    from clusterrun.network.requests import Description
    from clusterrun.policy.looks import (
        GpuState,
        LastLine,
        Look,
        LookAtNativeStacks,
        LookAtOutput,
        LookAtStacks,
        NodeAnswer,
        NodeNativeStacks,
        NodeRanks,
        OutputPiece,
        RankState,
        ReadPiece,
        Seen,
        WorkerStacks,
    )
    from clusterrun.policy.outcome import Ending
    from clusterrun.policy.stacks import StackGroup
    from clusterrun.workers.fork_server_client import ForkServer
    from clusterrun.workers.relay.client import RelayClient

MOST_BYTES = 1 << 20
"""Of one answer: what the ranks of a node have printed last."""

SECONDS_FOR_FOLDERS = 1.0
"""Those of PATH may be on a file server that hangs."""


class JobView:
    """Follows the attempts of this node; nothing is read before a user looks."""

    def __init__(
        self, local: LocalJob, world: World, relay: RelayClient, fork_server: ForkServer
    ) -> None:
        """Show a job whose nodes have just joined."""
        self._relay = relay
        self._fork_server = fork_server
        self._local = local
        self._world = world
        self._workers: tuple[WorkerPlan, ...] = ()
        self._attempt: Attempt | None = None
        self._since = time.monotonic()
        self._attempt_since = 0.0
        """In seconds since the epoch."""
        self._gpus: GpuUsage | None = None
        self._py_spy: PySpy | None = None

    def begins(self, plan: NodePlan) -> None:
        """Show the workers of an attempt, which start now."""
        self._world, self._workers, self._attempt = plan.world, plan.workers, None
        self._attempt_since = time.time()

    def notes(self, attempt: Attempt) -> None:
        """Show what the agent's policy knows."""
        self._attempt = attempt

    @property
    def node_rank(self) -> int:
        return self._world.node_rank

    def describe(self) -> Description:
        """Return what identifies the job."""
        from clusterrun.domain.bounds import as_line, as_name
        from clusterrun.network.requests import Description

        return Description(
            run_id=self._world.run_id,
            host=as_name(self._local.machine.host),
            pid=os.getpid(),
            node_rank=self._world.node_rank,
            nodes=self._world.nodes,
            program=as_line(self._local.job.program.name),
            ranks=self._world.size,
            attempt=self._world.attempt,
            state=self._phase,
            running_for=time.monotonic() - self._since,
        )

    def ask_relay(self, number: int, look: Look) -> bool:
        """Ask the relay for what a look needs; return whether it needs anything.

        ``number`` is that of the ``RelaySaw`` that answers.
        """
        from clusterrun.policy.looks import (
            LookAtNativeStacks,
            LookAtOutput,
            LookAtRanks,
            LookAtStacks,
        )

        match look:
            case LookAtRanks():
                self._ask_gpus()
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
            case LookAtOutput(rank, text, most):
                if not self._asked(rank):
                    return False
                after = self._positions(look)
                self._relay.look_at_output(number, after, text, min(most, MOST_BYTES // len(after)))
                return True
            case _:
                assert_never(look)

    def answer(self, look: Look, seen: Seen | None, now: float) -> NodeAnswer | None:
        """Return this node's answer to a look; None if it has none for node 0's terminal.

        Args:
            look: what is asked.
            seen: what the relay has of the workers; None if it was not asked, or has not answered.
            now: the agent's monotonic clock.

        """
        from clusterrun.policy import looks

        match look:
            case looks.LookAtRanks():
                lines = seen.by_local_rank if isinstance(seen, looks.LastLines) else {}
                return self._ranks(lines, now)
            case looks.LookAtStacks(_, patient):
                if not isinstance(seen, looks.WorkerStacks):
                    return None if patient else looks.NodeStacks(*self._place, ())
                return looks.NodeStacks(*self._place, self._stacks(seen, look))
            case looks.LookAtNativeStacks():
                return self._native_stacks(look, now)
            case looks.LookAtOutput():
                pieces = seen.pieces if isinstance(seen, looks.ReadOutput) else ()
                return looks.NodeOutput(*self._place, tuple(map(self._piece, pieces)))
            case _:
                assert_never(look)

    def _ask_gpus(self) -> None:
        """Ask what NVIDIA's GPUs do; the next look shows the answer."""
        if not any(gpu.vendor == "nvidia" for gpu in self._local.machine.gpus):
            return
        if self._gpus is None:
            from clusterrun.machine.gpus.nvml import GpuUsage

            self._gpus = GpuUsage()
        self._gpus.ask(time.monotonic())

    def close(self) -> None:
        """End what still asks."""
        if self._gpus is not None:
            self._gpus.close()
        if self._py_spy is not None:
            self._py_spy.close()

    @property
    def _place(self) -> tuple[int, str]:
        from clusterrun.domain.bounds import as_name

        return self._world.node_rank, as_name(self._local.machine.host)

    def _asked(self, rank: int | None) -> tuple[WorkerPlan, ...]:
        """Return the workers that a look is about."""
        return tuple(worker for worker in self._workers if rank in {None, worker.rank})

    def _positions(self, look: LookAtOutput) -> dict[LocalRank, int]:
        """Return how far each worker's output of this attempt has been read."""
        read = {
            each.rank: each.position for each in look.after if each.attempt == self._world.attempt
        }
        return {worker.local_rank: read.get(worker.rank, 0) for worker in self._asked(look.rank)}

    def _piece(self, piece: ReadPiece) -> OutputPiece:
        from clusterrun.domain.bounds import as_text
        from clusterrun.policy.looks import OutputPiece, OutputRead

        rank = self._world.first_rank + piece.local_rank
        read = OutputRead(rank, self._world.attempt, piece.ends_at)
        return OutputPiece(read, piece.left_out, as_text(piece.text))

    def _stacks(self, seen: WorkerStacks, look: LookAtStacks) -> tuple[StackGroup, ...]:
        """Return the stacks of the ranks that were asked for, by global rank."""
        from clusterrun.domain.bounds import as_text
        from clusterrun.policy.stacks import StackGroup, of_ranks

        if look.patient and self._attempt is not None:
            groups = self._attempt.stacks_to_show(seen)
        else:
            groups = of_ranks(seen.groups, self._world.first_rank)
        wanted = {worker.rank for worker in self._asked(look.rank)}
        return tuple(
            StackGroup(tuple(sorted(ranks)), as_text(group.text), group.found)
            for group in groups
            if (ranks := wanted.intersection(group.ranks))
        )

    def _name_flight_records(self) -> None:
        """Print where torch's are, if this job has written some: few do."""
        from clusterrun.workers.flight_records import named_flight_records

        ranks = tuple(worker.rank for worker in self._workers)
        records = named_flight_records(self._local.environment, ranks, self._attempt_since)
        if records:
            self._relay.notice(records)

    def _native_stacks(self, look: LookAtNativeStacks, now: float) -> NodeNativeStacks:
        from clusterrun.machine.looking import PySpy
        from clusterrun.policy.looks import NodeNativeStacks
        from clusterrun.processes import TimeLimited

        if self._world.node_rank in look.known:
            return NodeNativeStacks(*self._place, (), is_done=True)
        if self._py_spy is None:
            files = TimeLimited(SECONDS_FOR_FOLDERS)
            self._py_spy = PySpy(self._local.variables, Path(sys.executable), files.run)
        processes = {each.rank: self._process(each.local_rank) for each in self._asked(look.rank)}
        pids = {
            rank: running.pid
            for rank, (running, ending) in processes.items()
            if running and not ending
        }
        stacks, is_done, problem = self._py_spy.look(look, pids, now)
        return NodeNativeStacks(*self._place, stacks, is_done, problem)

    def _ranks(self, lines: Mapping[LocalRank, LastLine], now: float) -> NodeRanks:
        from clusterrun.policy.looks import MOST_RANKS, NodeRanks

        node_rank, host = self._place
        gpus = self._gpus.latest(now) if self._gpus else {}
        return NodeRanks(
            node_rank=node_rank,
            host=host,
            pid=os.getpid(),
            attempt=self._world.attempt,
            state=self._phase,
            ranks=tuple(
                self._rank(worker, lines.get(worker.local_rank), gpus, now)
                for worker in self._workers[:MOST_RANKS]
            ),
        )

    @property
    def _phase(self) -> str:
        return "starting" if self._attempt is None else self._attempt.phase.value

    def _rank(
        self,
        worker: WorkerPlan,
        line: LastLine | None,
        gpus: Mapping[str, GpuState],
        now: float,
    ) -> RankState:
        from clusterrun.domain.bounds import as_line, as_name, as_seconds
        from clusterrun.policy.looks import LONGEST_LAST_LINE, RankState

        running, ending = self._process(worker.local_rank)
        usage = _usage(running.pid) if running and not ending else None
        return RankState(
            rank=worker.rank,
            local_rank=worker.local_rank,
            state=as_name(_state(running, ending, usage)),
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

    def _process(self, local_rank: LocalRank) -> tuple[Running | None, Ending | None]:
        if self._attempt is None:
            return None, None
        if (ended := self._attempt.ended.get(local_rank)) is not None:
            return Running(ended.pid, ended.since), ended.ending
        return self._attempt.running.get(local_rank), None


def _usage(pid: int) -> ProcessUsage | None:
    from clusterrun.machine.looking import Units, usage_of
    from clusterrun.machine.tree import Tree

    units = Units(os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE"))
    return usage_of(Tree(ROOT), pid, units)


def _state(running: Running | None, ending: Ending | None, usage: ProcessUsage | None) -> str:
    from clusterrun.report.ending import ending_in_words

    if ending is not None:
        return ending_in_words(ending)
    if running is None:
        return "starting"
    return usage.state if usage else "exited"
