"""The workers of this node: starts, signals and ends them by the fork server, the relay and the terminal."""

import fcntl
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from clusterrun import suspend
from clusterrun.bounds import LocalRank
from clusterrun.job.values import Std
from clusterrun.loop import Loop
from clusterrun.planning.plan import NodePlan, WorkerPlan
from clusterrun.policy import actions
from clusterrun.policy.actions import WorkersAction
from clusterrun.policy.events import (
    Event,
    OutputEnded,
    RanksHeld,
    SignalNotHandled,
    WorkerEnded,
)
from clusterrun.policy.outcome import Killed, NotStarted
from clusterrun.scratch import Scratch
from clusterrun.signals import ENDING_SIGNALS
from clusterrun.workers.fork_server import messages
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import Routes, WorkerOutput, label_of
from clusterrun.workers.suspend_page import SuspendPage
from clusterrun.workers.terminal import StandardInput, Terminal

if TYPE_CHECKING:
    # Few jobs look for hangs.
    from clusterrun.workers.main_threads import MainThreads

NOT_WATCHED = (
    "--hang-timeout: the worker prints to the terminal itself, so its output is not watched;"
    " add --log-dir DIR to watch it"
)

WITHOUT_SCRATCH = (
    "without a scratch folder the job can't be suspended, and exceptions that ranks write to"
    " TORCHELASTIC_ERROR_FILE are lost; set TMPDIR to a folder that you can write to"
)

STARTUP_FOLDER = Path(__file__).with_name("startup")

ENDING_OR_KILL = {*ENDING_SIGNALS, signal.SIGKILL}

PIPE_BYTES = 256 << 10
"""A burst of output need not wait for the terminal.

The kernel grants each user 64 MiB of pipes (fs.pipe-user-pages-soft): enough for 128 ranks.
"""


class NodeWorkers:
    """The workers of this node, attempt after attempt."""

    def __init__(  # noqa: PLR0913 - what workers are started with, and what reports them
        self,
        fork_server: ForkServer,
        relay: RelayClient,
        scratch: Scratch,
        *,
        standard_input: StandardInput,
        routes: Routes,
        loop: Loop[Event],
    ) -> None:
        """``loop``: the agent's."""
        self._loop = loop
        self._fork_server, self._relay, self._scratch = fork_server, relay, scratch
        self._terminal = standard_input.shared_terminal
        self._standard_input = standard_input
        self._routes = routes
        self._local_ranks: tuple[LocalRank, ...] = ()
        self._attempt = 0
        self._plan: NodePlan | None = None
        """The attempt's."""
        self._held: frozenset[LocalRank] = frozenset()
        """The workers that start once the fork server is prepared."""
        self._pages: tuple[SuspendPage, ...] = ()
        """That of this attempt; () if it could not be made."""
        self.fault = ""
        """Why this attempt's workers can neither be suspended nor record exceptions; "": they can."""
        self._has_warned = False
        # A rank may stop at a breakpoint.
        self._hang_timeout = 0.0 if fork_server.attached else routes.job.active_hang_timeout
        self._is_watched = False
        self._main_threads: MainThreads | None = None

    @property
    def error_files(self) -> str | None:
        """The folder of the workers' TORCHELASTIC_ERROR_FILE; None if it can't be made."""
        return str(self._scratch.path) if self._scratch.make() else None

    @property
    def foreground(self) -> bool:
        return self._terminal is not None

    def start(self, plan: NodePlan, local_ranks: frozenset[LocalRank]) -> None:
        """Begin an attempt with these workers, which start once the fork server is prepared."""
        self._local_ranks = tuple(worker.local_rank for worker in plan.workers)
        self._attempt = plan.world.attempt
        self._is_watched = False
        self._watch(0.0)
        for path, target in self._routes.links(plan):
            self._relay.send(messages.Link(str(path), target))
        if self._attempt == 0:
            for remark in self._routes.remarks(plan):
                self._relay.notice(remark)
        # The page that the ranks share is above these folders.
        files = list(filter(None, map(_error_file, plan.workers)))
        if files:
            self._scratch.add(file.parent for file in files)
        # Ranks may be asked to save before they have started.
        self._open_page(plan)
        if self.fault and not self._has_warned:
            self._has_warned = True
            self._relay.notice(f"warning: {self.fault}: {WITHOUT_SCRATCH}")
        self._plan, self._held = plan, local_ranks
        self.start_pending()

    def start_pending(self) -> None:
        """Start the workers that wait for the fork server, if it is prepared."""
        plan = self._plan
        if plan is None or self._fork_server.is_preparing:
            return
        held, self._held = self._held, frozenset()
        workers = [each for each in plan.workers if each.local_rank in held]
        if workers and self._fork_server.refusal:
            ending = NotStarted("run in place", self._fork_server.refusal)
            now = self._loop.clock()
            self._loop.add(WorkerEnded(it.local_rank, ending, now) for it in workers)
            return
        for worker in workers:
            self._start(plan, worker)

    def perform(self, action: WorkersAction) -> None:
        """Do what the policy has decided about the workers and their output."""
        match action:
            case actions.SignalWorkers() | actions.ForwardSignal():
                self._send(action)
            case actions.StartWorkers() | actions.KillLeftovers() | actions.RestartWorker():
                self._go_on_with_services(action)
            case actions.CollectOutput(local_rank):
                self._collect_output(local_rank)
            case actions.CleanUp():
                self._loop.add(self._fork_server.clean_up(self._loop.clock()))
            case actions.AwaitLeftovers() | actions.NameLeftovers() | actions.SignalLeftovers():
                self._fork_server.handle_leftovers(action)
            case actions.Resume():
                self._resume()
            case actions.ExpectNoStacks(local_ranks):
                self._relay.send(messages.SkipStacks([*local_ranks]))
            case actions.HoldRanks() if not self._pages:
                # The ranks of other nodes may save; these are known not to.
                self._loop.add([RanksHeld(0, self._loop.clock())])
            case actions.HoldRanks() | actions.ReleaseRanks() | actions.LetRanksExit():
                for page in self._pages:
                    self._write_to(page, action)
            case actions.WatchActivity():
                # Report workers that do nothing from now on, until the next attempt.
                self._is_watched = True
                self._watch(self._hang_timeout)
            case actions.PrintNotice(text):
                self._relay.notice(text)
            case _:
                assert_never(action)

    def _send(self, action: actions.SignalWorkers | actions.ForwardSignal) -> None:
        """Send a signal to workers; those that have not been started are not, if it would end them."""
        if not self._held:
            self._fork_server.send(action)
            return
        now = self._loop.clock()
        match action:
            case actions.ForwardSignal(number):
                self._loop.add([SignalNotHandled(number, self._local_ranks, now)])
            case actions.SignalWorkers(local_ranks, number) if number in ENDING_OR_KILL:
                ended, self._held = sorted(self._held & local_ranks), self._held - local_ranks
                self._loop.add(WorkerEnded(rank, Killed(number), now) for rank in ended)

    def _go_on_with_services(
        self, action: actions.StartWorkers | actions.KillLeftovers | actions.RestartWorker
    ) -> None:
        match action:
            case actions.StartWorkers(local_ranks):
                self._held |= local_ranks
                self.start_pending()
            case actions.KillLeftovers(local_ranks):
                for local_rank in local_ranks:
                    self._end_left(local_rank)
            case actions.RestartWorker(local_rank):
                self._restart(local_rank)
            case _:
                assert_never(action)

    def _end_left(self, local_rank: LocalRank) -> None:
        """Kill what a worker of a service has left."""
        if self._plan is not None:
            own = self._plan.workers[local_rank].env
            # No other worker of this node has the same port.
            variables = ("ROLE_NAME", "ROLE_RANK", "PORT")
            self._fork_server.kill_leftovers({name: own[name] for name in variables})

    def _restart(self, local_rank: LocalRank) -> None:
        """Start a worker of a service again, once nothing is left of it."""
        if self._plan is None:
            return
        worker = self._plan.workers[local_rank]
        self._end_left(local_rank)
        if (file := _error_file(worker)) is not None:
            with suppress(OSError):
                file.unlink()
        self._start(self._plan, worker)

    def _collect_output(self, local_rank: LocalRank) -> None:
        """Have an ended worker's output read to its end; ``OutputEnded`` follows."""
        if self._terminal is not None:
            self._terminal.take_back_from(self._fork_server.pids.get(local_rank, 0))
        if self._relay.lost:
            ended = OutputEnded(local_rank, tail="", error_file="", at=self._loop.clock())
            self._loop.add([ended])
        else:
            self._relay.send(messages.DrainOutput(local_rank))

    def _write_to(
        self,
        page: SuspendPage,
        action: actions.HoldRanks | actions.ReleaseRanks | actions.LetRanksExit,
    ) -> None:
        match action:
            case actions.HoldRanks():
                page.hold(self._loop.clock())
            case actions.ReleaseRanks(mark):
                page.release(mark)
            case actions.LetRanksExit():
                page.let_leave()

    def _open_page(self, plan: NodePlan) -> None:
        self.close()
        self.fault = self._scratch.fault
        path, _, _ = plan.workers[0].env.get(suspend.VARIABLE, "").rpartition(":")
        if path and not self.fault:
            match self._scratch.files.run(partial(_page, Path(path), plan)):
                case SuspendPage() as page:
                    self._pages = (page,)
                    self._loop.watch(page.fileno(), page.events)
                    self._loop.time(page)
                case fault:
                    self.fault = fault or f"{path}: its file system does not answer"

    def close(self) -> None:
        """Close what workers share with this process; the fork server's end is that of the workers."""
        for page in self._pages:
            self._loop.remove_timer(page)
            self._loop.forget(page.fileno())
            page.close()
        self._pages = ()

    def _start(self, plan: NodePlan, worker: WorkerPlan) -> None:
        reads = worker.service is None and self._standard_input.is_read_by(worker.rank)
        # 0: that of a process outside this container.
        group = self._terminal.launcher_group or None if self._terminal is not None else None
        direct = ~self._routes.relayed(plan, worker) if self.foreground else Std.NONE
        with streams_of_worker(reads=reads, direct=direct) as (streams, pipes):
            self._relay.open(self._output(plan, worker), pipes)
            if self._hang_timeout and len(pipes) < 2:
                self._hang_timeout = 0.0
                self._relay.notice(NOT_WATCHED)
            self._fork_server.start_worker(
                plan,
                worker,
                streams,
                startup_folder=str(STARTUP_FOLDER) if worker.runs_python else None,
                foreground_group=group,
            )

    def _output(self, plan: NodePlan, worker: WorkerPlan) -> WorkerOutput:
        logs = self._routes.logs
        out, err = self._routes.destinations(plan, worker)
        return WorkerOutput(
            local_rank=worker.local_rank,
            label=label_of(plan, worker),
            prefix=self._routes.prefix(plan, worker),
            stdout_to=out,
            stderr_to=err,
            error_file=_error_file(worker),
            log_dir=None if logs is None else logs.directory,
            style=self._routes.style,
            is_watched=_is_watched(worker),
        )

    def print_stacks(self, text: str) -> None:
        """Print them, and keep them with the logs."""
        self._relay.say(text)
        if (logs := self._routes.logs) is not None:
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            path = logs.attempt(self._attempt) / "stacks.txt"
            self._relay.send(messages.Append(str(path), f"{when}\n{text}", str(logs.directory)))

    def _watch(self, seconds: float) -> None:
        if self._hang_timeout:
            self._relay.send(messages.WatchOutput(seconds or None))
            self._watch_main_threads(seconds)

    def _watch_main_threads(self, seconds: float) -> None:
        """Watch them as well, if that can tell a hang."""
        if self._main_threads is None:
            # Few jobs look for hangs.
            from clusterrun.workers.main_threads import MainThreads

            self._main_threads = MainThreads(self._loop, self._watched_pids)
        can_tell = self._plan is not None and self._main_threads_tell(self._plan)
        self._main_threads.watch(seconds if can_tell else 0.0)

    def _main_threads_tell(self, plan: NodePlan) -> bool:
        """Return whether main threads that do not run may mean a hang, and stacks can be collected unseen."""
        # That of another program may wait for its child; and one rank waits for no other.
        of_python = all(each.runs_python for each in _watched(plan))
        has_peers = plan.world.size > 1 or bool(plan.world.programs)
        return of_python and has_peers and not self._routes.style.raw

    def _watched_pids(self) -> list[int]:
        plan, pids = self._plan, self._fork_server.pids
        ranks = [each.local_rank for each in _watched(plan)] if plan is not None else []
        return [pids[rank] for rank in ranks if rank in pids]

    def reap(self) -> None:
        """Reap orphans of workers that have ended."""
        self._fork_server.reap_orphans()

    def pause(self) -> None:
        """Stop the workers, then this process; returns when it is continued."""
        self._watch(0.0)
        if self._terminal is not None:
            self._pause_with_shell(self._terminal)
            return
        self._send(actions.SignalWorkers(frozenset(self._local_ranks), signal.SIGSTOP, group=True))
        os.kill(os.getpid(), signal.SIGSTOP)

    def _pause_with_shell(self, terminal: Terminal) -> None:
        """Stop our whole group as Ctrl-Z does: the shell sees its job stopped."""
        terminal.take_back_from(self._fork_server.pids.get(LocalRank(0), 0))
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, ours)
        # Continued now; or never stopped, where no shell could continue us.
        self._resume()

    def _resume(self) -> None:
        """Continue the workers, the one in the foreground with the terminal."""
        if self._is_watched:
            self._watch(self._hang_timeout)
        if self._terminal is not None:
            self._terminal.give_to(self._fork_server.pids.get(LocalRank(0), 0))
        ranks = frozenset(self._local_ranks)
        self._fork_server.send(actions.SignalWorkers(ranks, signal.SIGCONT, group=True))

    def logs(self, plan: NodePlan) -> Mapping[LocalRank, str]:
        """Return the file of each worker's standard error that is kept in one."""
        ways = {it.local_rank: self._routes.destinations(plan, it)[1] for it in plan.workers}
        return {local_rank: str(to.log) for local_rank, to in ways.items() if to.log}


def _page(path: Path, plan: NodePlan) -> SuspendPage | str:
    """Return the page, or why it can't be made."""
    try:
        return SuspendPage(path, (worker.local_rank for worker in plan.workers))
    except OSError as error:
        return f"{path}: {error.strerror}"


def _is_watched(worker: WorkerPlan) -> bool:
    """Return whether a worker's activity counts: a service may wait for requests for ever."""
    return worker.service is None or worker.service.must_finish


def _watched(plan: NodePlan) -> list[WorkerPlan]:
    return [worker for worker in plan.workers if _is_watched(worker)]


def _error_file(worker: WorkerPlan) -> Path | None:
    path = worker.env.get("TORCHELASTIC_ERROR_FILE")
    return None if path is None else Path(path)


@contextmanager
def streams_of_worker(
    *, reads: bool, direct: Std
) -> Iterator[tuple[tuple[int, int, int], dict[str, int]]]:
    """Open what a worker reads and prints to; close it afterwards: worker and relay have duplicates.

    Args:
        reads: it gets the launcher's standard input, not /dev/null.
        direct: streams that it writes to the terminal itself, if the launcher's own are one.

    Yields:
        Its standard input, output and error; and for the relay, the read ends of "stdout" and
        "stderr", without those that the worker writes to the terminal itself.

    """
    with ExitStack() as opened:
        stdin = 0 if reads else _own(os.open(os.devnull, os.O_RDONLY), opened)
        stdout, from_stdout = _stream(1, opened, direct=Std.OUT in direct)
        stderr, from_stderr = _stream(2, opened, direct=Std.ERR in direct)
        pipes = {"stdout": from_stdout, "stderr": from_stderr}
        relayed = {name: pipe for name, pipe in pipes.items() if pipe is not None}
        yield (stdin, stdout, stderr), relayed


def _stream(number: int, opened: ExitStack, *, direct: bool) -> tuple[int, int | None]:
    if direct and os.isatty(number):
        return number, None
    read_end, write_end = (_own(end, opened) for end in os.pipe2(os.O_CLOEXEC))
    with suppress(OSError):
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return write_end, read_end


def _own(descriptor: int, opened: ExitStack) -> int:
    opened.callback(os.close, descriptor)
    return descriptor
