"""Collects this node's answers to queries: the job, the state of its ranks, their stacks.

The module is imported for the first query, because few jobs get any. Nothing blocks the agent: the relay
answers with an event, and child processes with a time limit collect what may take long.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import assert_never

from msgspec import UNSET
from msgspec.structs import replace

from clusterrun.bounds import LocalRank, as_line, as_name, as_seconds, as_text
from clusterrun.job.nested_launches import RAS_VARIABLE
from clusterrun.loop import Loop
from clusterrun.machine.gpus.nvml import GpuUsage
from clusterrun.machine.machine import GpuState
from clusterrun.machine.process_usage import ProcessUsage, Units, usage_of
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.network.query_service import OnAnswer
from clusterrun.network.requests import JOINING, Description
from clusterrun.planning.plan import WorkerPlan
from clusterrun.policy.actions import ForwardSignal
from clusterrun.policy.answers import (
    MAX_LAST_LINE,
    MAX_RANKS,
    NodeRanks,
    NodeStacks,
    RankState,
)
from clusterrun.policy.events import Event, LastLine, RelayAnswer, WorkerStacks
from clusterrun.policy.node import Attempt, Phase, RunningWorker
from clusterrun.policy.outcome import ExitStatus
from clusterrun.policy.queries import Answer, Query, Topic
from clusterrun.policy.samples import WINDOWS
from clusterrun.policy.stacks import StackGroup
from clusterrun.report.outcome import exit_status_text
from clusterrun.run.answer_sources import AnswerProcesses, RelayQueries, encoded
from clusterrun.run.attempts import JobProgress
from clusterrun.run.node import LocalNode
from clusterrun.workers.flight_records import flight_records_line
from clusterrun.workers.fork_server import messages
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.relay.client import RelayClient

SECONDS_FOR_LINES = 0.4
"""For the relay to report the last lines; then the answer comes without them."""

MAX_SECONDS_TO_PRINT = 2.0
"""For workers to print their stacks; they may be busy or stopped."""

FRACTION_TO_PRINT = 2 / 3
"""Of the query's seconds, for workers to print their stacks."""

SECONDS_TO_FORWARD = 0.2
"""Of a query's seconds, reserved for the way back to the command."""

SILENT_RELAY = "does not know: its relay does not answer"


class NodeAnswers:
    """Reads the state of this node when a query comes, and not before."""

    def __init__(
        self,
        node: LocalNode,
        progress: JobProgress,
        relay: RelayClient,
        fork_server: ForkServer,
        loop: Loop[Event],
    ) -> None:
        self._node, self._progress = node, progress
        self._relay, self._fork_server = relay, fork_server
        self._host = as_name(node.machine.host)
        self._gpus = GpuUsage()
        self.questions = RelayQueries()
        self._children = AnswerProcesses(loop)
        loop.add_timer(self.questions)
        loop.add_timer(self._children)

    def close(self) -> None:
        """Stop collecting answers."""
        self._children.close()
        self._gpus.close()

    # Queries.

    def concerns(self, query: Query) -> bool:
        """Return whether a query is about this node."""
        return query.rank is None or query.rank in self._attempt.plan.numbers

    def answer(self, query: Query, then: OnAnswer, now: float) -> Iterable[Event]:
        """Collect this node's answer; ``then`` gets it."""
        match query.topic:
            case Topic.RANKS:
                return self._find_ranks(query, then, now)
            case Topic.STACKS:
                return self._find_stacks(query, then, now)
            case Topic.NATIVE:
                return self._find_native_stacks(query, then)
            case Topic.SAMPLES:
                return self._find_samples(query, then, now)
            case Topic.NCCL:
                return self._find_nccl_state(query, then)
            case _:
                assert_never(query.topic)

    def _pass_on(self, query: Query, then: OnAnswer, body: object) -> Iterable[Event]:
        """Pass on an answer; a ``body`` that is a str says why there is none."""
        return self._pass_on_encoded(query, then, *encoded(body))

    def _pass_on_encoded(
        self, query: Query, then: OnAnswer, body: bytes, problem: str
    ) -> Iterable[Event]:
        return then(Answer(query.number, self.node_rank, self._host, body, as_line(problem)))

    # The job.

    def describe(self) -> Description:
        """Return a description of the job; while nodes join, as far as it is known."""
        job, attempt, since = self._node.job, self._progress.attempt, self._progress.since
        if self._progress.rejoins_since is not None:
            since = self._progress.rejoins_since
        shown = Description(
            run_id=job.join.run_id,
            host=self._host,
            pid=os.getpid(),
            node_rank=job.agent_rank or 0,
            nodes=job.agents,
            program=as_line(job.script.name),
            state=JOINING,
            running_for=time.monotonic() - since,
        )
        if attempt is None:
            return shown
        world = attempt.plan.world
        if self._progress.rejoins_since is not None:
            return replace(shown, run_id=world.run_id)
        return replace(
            shown,
            run_id=world.run_id,
            node_rank=world.node_rank,
            nodes=world.nodes,
            ranks=world.size,
            programs=tuple(each.numbered for each in world.programs) or UNSET,
            attempt=world.attempt,
            state=_phase(attempt),
            unsaved=as_line(self._progress.workers.scratch_error if self._progress.workers else ""),
        )

    @property
    def node_rank(self) -> int:
        return self._attempt.plan.world.node_rank

    @property
    def _attempt(self) -> Attempt:
        if self._progress.attempt is None:
            raise AssertionError("a query about a job that has not started")
        return self._progress.attempt

    def _workers_in(self, query: Query) -> tuple[WorkerPlan, ...]:
        """Return the workers that a query is about."""
        return tuple(it for it in self._attempt.plan.workers if query.rank in {None, it.rank})

    def _pids(self, query: Query) -> Mapping[int, int]:
        """Return the process ids of the workers that a query is about and that run."""
        running = ((it.rank, *self._process(it.local_rank)) for it in self._workers_in(query))
        return {
            rank: process.pid
            for rank, process, exit_status in running
            if process and not exit_status
        }

    # Stacks and NCCL.

    def _find_stacks(self, query: Query, then: OnAnswer, now: float) -> Iterable[Event]:
        seconds = min(MAX_SECONDS_TO_PRINT, FRACTION_TO_PRINT * query.seconds)

        def ask(number: int) -> None:
            # The relay first, because it must expect the stacks that the workers print.
            self._relay.send(messages.CaptureStacks(number, seconds))
            self._fork_server.send_signal(ForwardSignal(signal.SIGQUIT))

        def answer(seen: RelayAnswer | None, _: float) -> Iterable[Event]:
            body = self._stacks(query, seen) if isinstance(seen, WorkerStacks) else SILENT_RELAY
            return self._pass_on(query, then, body)

        return self.questions.ask(ask, answer, query.seconds - SECONDS_TO_FORWARD, now)

    def _stacks(self, query: Query, seen: WorkerStacks) -> NodeStacks:
        """Return the stacks of the ranks that were asked for."""
        wanted = {worker.rank for worker in self._workers_in(query)}
        groups = tuple(
            StackGroup(tuple(sorted(ranks)), as_text(group.text), group.found)
            for group in self._attempt.stacks_by_rank(seen.groups)
            if (ranks := wanted.intersection(group.ranks))
        )
        records = flight_records_line(
            self._node.environment, sorted(wanted), self._progress.attempt_since
        )
        return NodeStacks(groups, seen.on_screen, as_line(records))

    def _find_native_stacks(self, query: Query, then: OnAnswer) -> Iterable[Event]:
        # Few queries need it.
        from clusterrun.workers.native_stacks import native_stacks
        from clusterrun.workers.py_spy import MISSING, py_spy_program

        pids, environ = self._pids(query), self._node.variables

        def find() -> object:
            # In the child process, because the folders of PATH may be on a file server that hangs.
            program = py_spy_program(environ, Path(sys.executable))
            if program is None and pids:
                return MISSING
            # The rest is for late ones to be killed.
            stacks = native_stacks(program, pids, query.seconds - 2.0) if program else ()
            return NodeStacks(stacks)

        return self._ask_child(find, query, then)

    def _ask_child(
        self, find: Callable[[], object], query: Query, then: OnAnswer
    ) -> Iterable[Event]:
        seconds = max(0.0, query.seconds - SECONDS_TO_FORWARD)
        return self._children.ask(
            query.topic, find, partial(self._pass_on_encoded, query, then), seconds
        )

    def _find_nccl_state(self, query: Query, then: OnAnswer) -> Iterable[Event]:
        # Few queries need it.
        from clusterrun.policy.nccl import NcclState, NcclWorld
        from clusterrun.workers.nccl_ras import ask_nccl, ras_addresses

        plan, running = self._attempt.plan, self._attempt.running
        variables = {**self._node.environment, **plan.env}
        program = plan.world.program_of(query.rank or 0)
        peers = [
            each
            for each in plan.workers
            if each.local_rank in running and plan.world.program_of(each.rank) == program
        ]
        if not any(_may_have_nccl(each, variables) for each in peers):
            return self._pass_on(query, then, NcclState())
        pids = {running[each.local_rank].pid: int(each.rank) for each in peers}
        world = NcclWorld(program.size, program.first, plan.world.named, pids)
        addresses = ras_addresses(peers, variables)
        return self._ask_child(lambda: ask_nccl(addresses, world), query, then)

    # The state of the ranks.

    def _find_samples(self, query: Query, then: OnAnswer, now: float) -> Iterable[Event]:
        # Few queries need it.
        from clusterrun.workers.py_spy import py_spy_program
        from clusterrun.workers.sampler import sample_node

        self._ask_gpus()
        pids, environ, gpus = self._pids(query), self._node.variables, self._gpus.latest(now)
        states: dict[int, tuple[GpuState, ...]] = {
            it.rank: _known_states(it, gpus) for it in self._workers_in(query)
        }
        children = query.children
        windows = 1 if children else WINDOWS

        def find() -> object:
            # In the child process, because the folders of PATH may be on a file server that hangs.
            program = py_spy_program(environ, Path(sys.executable))
            length = query.length / windows
            return sample_node(pids, program, length, windows, children=children, gpus=states)

        return self._ask_child(find, query, then)

    def _ask_gpus(self) -> None:
        if any(gpu.vendor == "nvidia" for gpu in self._node.machine.gpus):
            # The next query shows the answer.
            self._gpus.ask(time.monotonic())

    def _find_ranks(self, query: Query, then: OnAnswer, now: float) -> Iterable[Event]:
        self._ask_gpus()

        def answer(seen: RelayAnswer | None, at: float) -> Iterable[Event]:
            lines = seen if isinstance(seen, Mapping) else {}
            return self._pass_on(query, then, self._ranks(lines, at))

        def ask(number: int) -> None:
            self._relay.send(messages.QueryLastLines(number))

        return self.questions.ask(ask, answer, SECONDS_FOR_LINES, now)

    def _ranks(self, lines: Mapping[LocalRank, LastLine], now: float) -> NodeRanks:
        gpus = self._gpus.latest(now)
        return NodeRanks(
            pid=os.getpid(),
            attempt=self._attempt.number,
            state=_phase(self._attempt),
            ranks=tuple(
                self._rank(worker, lines.get(worker.local_rank), gpus, now)
                for worker in self._attempt.plan.workers[:MAX_RANKS]
            ),
        )

    def _rank(
        self,
        worker: WorkerPlan,
        line: LastLine | None,
        gpus: Mapping[str, GpuState],
        now: float,
    ) -> RankState:
        running, exit_status = self._process(worker.local_rank)
        usage = _usage(running.pid) if running and not exit_status else None
        state = _state_in_words(running, exit_status, usage)
        if worker.local_rank in self._attempt.waiting:
            state = f"waits for {', '.join(self._attempt.awaited_services(worker.local_rank))}"
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
            last_line=as_line(line.text[:MAX_LAST_LINE] if line else ""),
            quiet_for=as_seconds(line.quiet_for) if line else None,
            lines=line.lines if line else 0,
            gpu_states=_known_states(worker, gpus),
        )

    def _process(self, local_rank: LocalRank) -> tuple[RunningWorker | None, ExitStatus | None]:
        attempt = self._attempt
        if (ended := attempt.ended.get(local_rank)) is not None:
            return ended.ran, ended.exit_status
        return attempt.running.get(local_rank), None


def _known_states(worker: WorkerPlan, gpus: Mapping[str, GpuState]) -> tuple[GpuState, ...]:
    """Return the known states of a worker's GPUs; ``gpus`` has them by UUID."""
    return tuple(gpus[gpu.uuid] for gpu in worker.gpus if gpu.uuid in gpus)


def _may_have_nccl(worker: WorkerPlan, variables: Mapping[str, str]) -> bool:
    has_gpu = any(gpu.vendor == "nvidia" for gpu in worker.gpus)
    return has_gpu or RAS_VARIABLE in variables or RAS_VARIABLE in worker.env


def _phase(attempt: Attempt) -> str:
    has_begun = attempt.running or attempt.ended or attempt.phase is not Phase.RUNNING
    return attempt.phase.value if has_begun else "starting"


def _usage(pid: int) -> ProcessUsage | None:
    units = Units(os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE"))
    return usage_of(Tree(ROOT), pid, units)


def _state_in_words(
    running: RunningWorker | None, exit_status: ExitStatus | None, usage: ProcessUsage | None
) -> str:
    if exit_status is not None:
        return exit_status_text(exit_status)
    if running is None:
        return "starting"
    return usage.state if usage else "exited"
