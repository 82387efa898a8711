"""The workers of this node: starts, signals and ends them by the fork server, the relay and the terminal."""

import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from clusterrun.domain.events import CleanedUp, Event, OutputEnded
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.streams import Std
from clusterrun.workers.containment import Orphans, wait_for
from clusterrun.workers.fork_server_client import ForkServerClient
from clusterrun.workers.relay.destinations import WorkerOutput
from clusterrun.workers.relay.relay_client import RelayClient
from clusterrun.workers.relay.routes import Routes, label_of
from clusterrun.workers.scratch import Scratch
from clusterrun.workers.standard_descriptors import (
    StandardDescriptors,
    StandardInput,
    standard_descriptors,
)
from clusterrun.workers.terminal import Terminal

NOT_WATCHED = (
    "clusterrun: --hang-timeout: the worker prints to the terminal itself, so its output is not"
    " watched; add --log-dir DIR to watch it"
)

STARTUP_FOLDER = Path(__file__).with_name("startup")

SECONDS_TO_LEAVE = 7.0
"""For the fork server's own cleanup after the connection is closed (5 s at most), and its exit."""

SECONDS_TO_KILL = 5.0
"""For killing what outlived the fork server."""

SECONDS_TO_PRINT = 2.0
"""For the relay's last lines: a stopped terminal must not delay our exit."""


class WorkerGroup:
    """The workers of this node, attempt after attempt."""

    def __init__(
        self,
        fork_server: ForkServerClient,
        relay: RelayClient,
        standard_input: StandardInput,
        routes: Routes,
        scratch: Scratch,
    ) -> None:
        self._fork_server = fork_server
        self._relay = relay
        self._orphans = Orphans()
        self._terminal = standard_input.shared_terminal
        self._standard_input = standard_input
        self._routes = routes
        self._scratch = scratch
        self._local_ranks: tuple[LocalRank, ...] = ()
        self._attempt = 0
        self._hang_timeout = routes.job.hang_timeout.value or 0.0

    @property
    def sources(self) -> tuple[ForkServerClient, RelayClient]:
        return self._fork_server, self._relay

    @property
    def error_files(self) -> str | None:
        """The folder of the workers' TORCHELASTIC_ERROR_FILE; None if it can't be made."""
        return str(self._scratch.path) if self._scratch.make() else None

    @property
    def foreground(self) -> bool:
        return self._terminal is not None

    def start(self, plan: NodePlan) -> None:
        self._local_ranks = tuple(worker.local_rank for worker in plan.workers)
        self._attempt = plan.world.attempt
        self._watch(self._hang_timeout)
        for path, target in self._routes.links(plan):
            self._relay.link(path, target)
        if self._attempt == 0:
            for remark in (*self._routes.remarks(plan), *self._standard_input.remarks(plan)):
                self.say(f"clusterrun: {remark}")
        error_files = filter(None, map(_error_file, plan.workers))
        self._scratch.make(error_file.parent for error_file in error_files)
        for worker in plan.workers:
            self._start(plan, worker)

    def _start(self, plan: NodePlan, worker: WorkerPlan) -> None:
        reads = self._standard_input.is_read_by(worker.rank)
        direct = ~self._routes.relayed(plan, worker) if self.foreground else Std.NONE
        with standard_descriptors(reads=reads, direct=direct) as descriptors:
            self._relay.open(self._output(plan, worker, descriptors))
            if self._hang_timeout and None in (descriptors.from_stdout, descriptors.from_stderr):
                self._watch(0.0)
                self.say(NOT_WATCHED)
            self._fork_server.start(
                plan,
                worker,
                descriptors.for_worker,
                startup_folder=str(STARTUP_FOLDER) if plan.runs_python else None,
                foreground_group=0 if self._terminal is None else self._terminal.our_group,
            )

    def _output(
        self, plan: NodePlan, worker: WorkerPlan, descriptors: StandardDescriptors
    ) -> WorkerOutput:
        out, err = self._routes.destinations(plan, worker)
        return WorkerOutput(
            local_rank=worker.local_rank,
            label=label_of(plan, worker),
            prefix=self._routes.prefix(plan, worker),
            stdout=descriptors.from_stdout,
            stderr=descriptors.from_stderr,
            stdout_to=out,
            stderr_to=err,
            error_file=_error_file(worker),
        )

    def signal(
        self,
        local_ranks: Iterable[LocalRank],
        number: int,
        *,
        group: bool,
        spare_failing: bool = False,
    ) -> None:
        self._fork_server.signal(local_ranks, number, group=group, except_failing=spare_failing)

    def forward(self, number: int) -> None:
        self._fork_server.forward(number)

    def collect_stacks(self, number: int) -> None:
        """Collect the workers' stacks in a round with this number."""
        # The relay first: it must expect what the workers print then.
        self._relay.collect_stacks(number)
        self._fork_server.forward(signal.SIGQUIT)

    def lack_stacks(self, local_ranks: Iterable[LocalRank]) -> None:
        self._relay.lack_stacks(local_ranks)

    def show_stacks(self, text: str) -> None:
        self.say(text)
        if (logs := self._routes.logs) is not None:
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            path = logs.attempt(self._attempt) / "stacks.txt"
            self.record(path, f"{when}\n{text}")

    def _watch(self, seconds: float) -> None:
        if self._hang_timeout:
            self._relay.watch(seconds)

    def collect(self, local_rank: LocalRank, now: float) -> Iterable[Event]:
        """Read an ended worker's output to its end; ``OutputEnded`` follows."""
        if self._terminal is not None:
            self._terminal.take_back_from(self._fork_server.pids.get(local_rank, 0))
        if self._relay.lost:
            return [OutputEnded(local_rank, tail="", error_file="", at=now)]
        self._relay.finish(local_rank)
        return []

    def sweep(self, now: float) -> Iterable[Event]:
        """Kill all that workers left behind; ``CleanedUp`` follows."""
        if not self._fork_server.lost:
            self._fork_server.clean_up()
            return []
        return [CleanedUp(self._orphans.end(self._ours, SECONDS_TO_KILL), now)]

    def reap(self) -> None:
        # One that ended may have left us its own children.
        self._orphans.spare_strangers(self._fork_server.pid)
        self._orphans.reap(self._ours)

    def suspend(self) -> None:
        """Stop the workers, then this process; returns when it is continued."""
        self._watch(0.0)
        if self._terminal is not None:
            self._suspend_with_shell(self._terminal)
            return
        self.signal(self._local_ranks, signal.SIGSTOP, group=True)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _suspend_with_shell(self, terminal: Terminal) -> None:
        """Stop our whole group as Ctrl-Z does: the shell sees its job stopped."""
        terminal.take_back_from(self._fork_server.pids.get(LocalRank(0), 0))
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, ours)
        # Continued now; or never stopped, where no shell could continue us.
        self.resume()

    def resume(self) -> None:
        """Continue the workers, the one in the foreground with the terminal."""
        self._watch(self._hang_timeout)
        if self._terminal is not None:
            self._terminal.give_to(self._fork_server.pids.get(LocalRank(0), 0))
        self.signal(self._local_ranks, signal.SIGCONT, group=True)

    def interrupted(self) -> None:
        self._relay.interrupted()

    def logs(self, plan: NodePlan) -> Mapping[LocalRank, str]:
        """Return the file of each worker's standard error that is kept in one."""
        ways = {it.local_rank: self._routes.destinations(plan, it)[1] for it in plan.workers}
        return {local_rank: str(to.log) for local_rank, to in ways.items() if to.log}

    def say(self, text: str) -> bool:
        """Print ``text`` among the workers' lines; return False if the relay is lost."""
        if text:
            self._relay.say(text)
        return not self._relay.lost

    def record(self, path: Path, line: str) -> None:
        self._relay.record(path, line)

    def close(self) -> None:
        """End whatever is left, the fork server and the relay included."""
        if not self._fork_server.lost:
            self._orphans.spare_strangers(self._fork_server.pid)
            self._fork_server.close()
            if not wait_for(self._fork_server.pid, SECONDS_TO_LEAVE):
                os.kill(self._fork_server.pid, signal.SIGKILL)
        self._orphans.end(self._ours, SECONDS_TO_KILL)
        self._relay.close(SECONDS_TO_PRINT)

    @property
    def _ours(self) -> frozenset[int]:
        return frozenset({self._fork_server.pid, self._relay.pid})


def _error_file(worker: WorkerPlan) -> Path | None:
    path = worker.env.get("TORCHELASTIC_ERROR_FILE")
    return None if path is None else Path(path)
