"""The workers of this node: performs the policy's actions with the fork server and the relay."""

import fcntl
import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
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
from clusterrun.processes import blocked
from clusterrun.scratch import Scratch
from clusterrun.signals import ENDING_SIGNALS
from clusterrun.workers.fork_server import messages
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import Routes, WorkerOutput, label_of
from clusterrun.workers.suspend_page import SuspendPage
from clusterrun.workers.terminal import StandardInput, Terminal

if TYPE_CHECKING:
    # Few jobs have a --hang-timeout.
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
"""Large enough that a burst of output need not wait for the terminal.

The kernel allows each user 64 MiB of pipes (fs.pipe-user-pages-soft), enough for 128 ranks.
"""


class NodeWorkers:
    """The workers of this node in all attempts."""

    def __init__(  # noqa: PLR0913 - what starts workers, and what reports them
        self,
        fork_server: ForkServer,
        relay: RelayClient,
        scratch: Scratch,
        *,
        standard_input: StandardInput,
        routes: Routes,
        loop: Loop[Event],
    ) -> None:
        self._loop = loop
        self._fork_server, self._relay, self._scratch = fork_server, relay, scratch
        self._terminal = standard_input.shared_terminal
        self._standard_input = standard_input
        self._routes = routes
        self._plan: NodePlan | None = None
        self._pending: frozenset[LocalRank] = frozenset()
        """Workers that start once the fork server is prepared."""
        self._page: SuspendPage | None = None
        """The page of this attempt; None if it could not be made."""
        self.scratch_error = ""
        """Why this attempt's workers can neither be suspended nor record exceptions."""
        self._has_warned = False
        self._hang_timeout = routes.job.active_hang_timeout
        if fork_server.debugger_command:
            # A rank may stop at a breakpoint.
            self._hang_timeout = 0.0
        self._is_watching = False
        self._main_threads: MainThreads | None = None

    @property
    def error_files(self) -> str | None:
        """The folder of the workers' TORCHELASTIC_ERROR_FILE; None if it can't be made."""
        return str(self._scratch.path) if self._scratch.make() else None

    @property
    def _local_ranks(self) -> tuple[LocalRank, ...]:
        return tuple(it.local_rank for it in self._plan.workers) if self._plan is not None else ()

    @property
    def foreground(self) -> bool:
        return self._terminal is not None

    def start(self, plan: NodePlan, local_ranks: frozenset[LocalRank]) -> None:
        """Begin an attempt. These of its workers start once the fork server is prepared."""
        self._is_watching = False
        self._watch(0.0)
        for path, target in self._routes.links(plan):
            self._relay.send(messages.Link(str(path), target))
        if plan.world.attempt == 0:
            for warning in self._routes.warnings(plan):
                self._relay.notice(warning)
        # The page is in a parent of these folders.
        files = list(filter(None, map(_error_file, plan.workers)))
        if files:
            self._scratch.add(file.parent for file in files)
        # Ranks may be asked to save before they have started.
        self._open_page(plan)
        if self.scratch_error and not self._has_warned:
            self._has_warned = True
            self._relay.notice(f"warning: {self.scratch_error}: {WITHOUT_SCRATCH}")
        self._plan, self._pending = plan, local_ranks
        self.start_pending()

    def start_pending(self) -> None:
        """Start the workers that wait for the fork server, if it is prepared."""
        plan = self._plan
        if plan is None or self._fork_server.is_preparing:
            return
        pending, self._pending = self._pending, frozenset()
        workers = [each for each in plan.workers if each.local_rank in pending]
        if workers and self._fork_server.start_error:
            status = NotStarted("run in place", self._fork_server.start_error)
            now = self._loop.clock()
            self._loop.add(WorkerEnded(it.local_rank, status, now) for it in workers)
            return
        for worker in workers:
            self._start(plan, worker)

    def perform(self, action: WorkersAction) -> None:
        """Perform an action of the policy."""
        match action:
            case actions.SignalWorkers() | actions.ForwardSignal():
                self._send_signal(action)
            case actions.StartWorkers(local_ranks):
                self._pending |= local_ranks
                self.start_pending()
            case actions.KillLeftovers(local_ranks):
                self._kill_leftovers(local_ranks)
            case actions.RestartWorker(local_rank):
                self._restart(local_rank)
            case actions.CollectOutput(local_rank):
                self._collect_output(local_rank)
            case actions.CleanUp():
                self._loop.add(self._fork_server.clean_up(self._loop.clock()))
            case actions.AwaitLeftovers():
                self._fork_server.send(messages.WaitForChildren())
            case actions.NameLeftovers():
                self._fork_server.send(messages.ListChildren())
            case actions.SignalLeftovers(number):
                self._fork_server.send(messages.SignalChildren(int(number)))
            case actions.Resume():
                self._resume()
            case actions.ExpectNoStacks(local_ranks):
                self._relay.send(messages.SkipStacks([*local_ranks]))
            case actions.HoldRanks() | actions.ReleaseRanks() | actions.LetRanksExit():
                self._write_page(action)
            case actions.WatchActivity():
                # Until the next attempt.
                self._is_watching = True
                self._watch(self._hang_timeout)
            case actions.PrintNotice(text):
                self._relay.notice(text)
            case _:
                assert_never(action)

    def _send_signal(self, action: actions.SignalWorkers | actions.ForwardSignal) -> None:
        """Send a signal to workers, or end pending workers in their place."""
        if not self._pending:
            self._fork_server.send_signal(action)
            return
        now = self._loop.clock()
        match action:
            case actions.ForwardSignal(number):
                self._loop.add([SignalNotHandled(number, self._local_ranks, now)])
            case actions.SignalWorkers(local_ranks, number) if number in ENDING_OR_KILL:
                ended = sorted(self._pending & local_ranks)
                self._pending -= local_ranks
                self._loop.add(WorkerEnded(rank, Killed(number), now) for rank in ended)

    def _kill_leftovers(self, local_ranks: Collection[LocalRank]) -> None:
        """Kill what ended workers of services left running."""
        workers = () if self._plan is None else self._plan.workers
        for own in (worker.env for worker in workers if worker.local_rank in local_ranks):
            # No other worker of this node has the same port.
            variables = ("ROLE_NAME", "ROLE_RANK", "PORT")
            own_variables = {name: own[name] for name in variables}
            self._fork_server.send(messages.KillChildrenByEnvironment(own_variables))

    def _restart(self, local_rank: LocalRank) -> None:
        """Restart a worker of a service, after what it left running was killed."""
        if self._plan is None:
            return
        worker = self._plan.workers[local_rank]
        self._kill_leftovers([local_rank])
        if (file := _error_file(worker)) is not None:
            with suppress(OSError):
                file.unlink()
        self._start(self._plan, worker)

    def _collect_output(self, local_rank: LocalRank) -> None:
        """Have an ended worker's output read to the end; ``OutputEnded`` follows."""
        if self._terminal is not None:
            self._terminal.take_back_from(self._fork_server.pids.get(local_rank, 0))
        if self._relay.lost:
            ended = OutputEnded(local_rank, tail="", error_file="", at=self._loop.clock())
            self._loop.add([ended])
        else:
            self._relay.send(messages.DrainOutput(local_rank))

    def _write_page(
        self, action: actions.HoldRanks | actions.ReleaseRanks | actions.LetRanksExit
    ) -> None:
        page, now = self._page, self._loop.clock()
        if page is None:
            if isinstance(action, actions.HoldRanks):
                # The ranks of other nodes may save; these can't.
                self._loop.add([RanksHeld(0, now)])
            return
        match action:
            case actions.HoldRanks():
                page.hold(now)
            case actions.ReleaseRanks(step_count):
                page.release(step_count)
            case actions.LetRanksExit():
                page.let_exit()

    def _open_page(self, plan: NodePlan) -> None:
        self.close()
        self.scratch_error = self._scratch.fault
        path, _, _ = plan.workers[0].env.get(suspend.VARIABLE, "").rpartition(":")
        if path and not self.scratch_error:
            match self._scratch.files.run(partial(_make_page, Path(path), plan)):
                case SuspendPage() as page:
                    self._page = page
                    self._loop.watch(page.fileno(), page.events)
                    self._loop.add_timer(page)
                case error:
                    self.scratch_error = error or f"{path}: its file system does not answer"

    def close(self) -> None:
        """Close the page that workers share with this process; the fork server ends the workers."""
        if self._page is not None:
            self._loop.remove_timer(self._page)
            self._loop.forget(self._page.fileno())
            self._page.close()
            self._page = None

    def _start(self, plan: NodePlan, worker: WorkerPlan) -> None:
        reads = worker.service is None and self._standard_input.is_read_by(worker.rank)
        group, direct = None, Std.NONE
        if self._terminal is not None:
            # 0 means a group outside this container's PID namespace.
            group = self._terminal.launcher_group or None
            direct = ~self._routes.relayed(plan, worker)
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
            is_watched=_counts_for_hangs(worker),
        )

    def print_stacks(self, text: str) -> None:
        """Print stacks, and append them to a file in the log folder."""
        self._relay.print_text(text)
        if (logs := self._routes.logs) is not None:
            attempt = 0 if self._plan is None else self._plan.world.attempt
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
            path = logs.attempt(attempt) / "stacks.txt"
            self._relay.send(messages.Append(str(path), f"{when}\n{text}", str(logs.directory)))

    def _watch(self, seconds: float) -> None:
        """Report inactive workers after ``seconds``; 0: never."""
        if not self._hang_timeout:
            return
        self._relay.send(messages.WatchOutput(seconds or None))
        if self._main_threads is None:
            # Few jobs have a --hang-timeout.
            from clusterrun.workers.main_threads import MainThreads

            self._main_threads = MainThreads(self._loop, self._watched_pids)
        can_hang = self._plan is not None and self._can_main_threads_hang(self._plan)
        self._main_threads.watch(seconds if can_hang else 0.0)

    def _can_main_threads_hang(self, plan: NodePlan) -> bool:
        """Return whether blocked main threads may mean a hang, and stacks can be taken unseen."""
        # Another program's main thread may wait for its child, and a single rank waits for no peer.
        runs_python = all(each.runs_python for each in _watched(plan))
        has_peers = plan.world.size > 1 or bool(plan.world.programs)
        return runs_python and has_peers and not self._routes.style.raw

    def _watched_pids(self) -> list[int]:
        plan, pids = self._plan, self._fork_server.pids
        ranks = [each.local_rank for each in _watched(plan)] if plan is not None else []
        return [pids[rank] for rank in ranks if rank in pids]

    def reap(self) -> None:
        """Reap orphans of ended workers."""
        self._fork_server.reap_orphans()

    def pause(self) -> None:
        """Stop the workers, then this process; return when it is continued."""
        self._watch(0.0)
        if self._terminal is not None:
            self._pause_with_shell(self._terminal)
            return
        self._send_signal(
            actions.SignalWorkers(frozenset(self._local_ranks), signal.SIGSTOP, group=True)
        )
        os.kill(os.getpid(), signal.SIGSTOP)

    def _pause_with_shell(self, terminal: Terminal) -> None:
        """Stop the launcher's whole group as Ctrl-Z does, so the shell sees its job stopped."""
        terminal.take_back_from(self._fork_server.pids.get(LocalRank(0), 0))
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        with blocked(signal.SIGCONT):
            os.killpg(os.getpgrp(), signal.SIGTSTP)
            # As an event it would continue the workers once more, and undo a Ctrl-Z that came meanwhile.
            signal.sigtimedwait({signal.SIGCONT}, 0)
        signal.signal(signal.SIGTSTP, handler)
        # Continued by now. In an orphaned group, which no shell could continue, it never stopped.
        self._resume()

    def _resume(self) -> None:
        """Continue the workers; a single worker gets the terminal back."""
        if self._is_watching:
            self._watch(self._hang_timeout)
        if self._terminal is not None:
            self._terminal.give_to(self._fork_server.pids.get(LocalRank(0), 0))
        ranks = frozenset(self._local_ranks)
        self._fork_server.send_signal(actions.SignalWorkers(ranks, signal.SIGCONT, group=True))

    def logs(self, plan: NodePlan) -> Mapping[LocalRank, str]:
        """Return the log files of the workers' standard error."""
        stderr = {it.local_rank: self._routes.destinations(plan, it)[1] for it in plan.workers}
        return {local_rank: str(to.log) for local_rank, to in stderr.items() if to.log}


def _make_page(path: Path, plan: NodePlan) -> SuspendPage | str:
    """Return the page, or why it can't be made."""
    try:
        return SuspendPage(path, (worker.local_rank for worker in plan.workers))
    except OSError as error:
        return f"{path}: {error.strerror}"


def _counts_for_hangs(worker: WorkerPlan) -> bool:
    """Return whether inactivity may be a hang: a service may wait for requests forever."""
    return worker.service is None or worker.service.must_finish


def _watched(plan: NodePlan) -> list[WorkerPlan]:
    return [worker for worker in plan.workers if _counts_for_hangs(worker)]


def _error_file(worker: WorkerPlan) -> Path | None:
    path = worker.env.get("TORCHELASTIC_ERROR_FILE")
    return None if path is None else Path(path)


@contextmanager
def streams_of_worker(
    *, reads: bool, direct: Std
) -> Iterator[tuple[tuple[int, int, int], dict[str, int]]]:
    """Open a worker's standard streams; close them afterwards, when worker and relay have duplicates.

    Args:
        reads: whether the worker gets the launcher's standard input instead of /dev/null.
        direct: streams that the worker writes to the launcher's, where that is a terminal.

    Yields:
        The worker's standard input, output and error; and the read ends of its pipes by "stdout" and
        "stderr", for the relay.

    """
    with ExitStack() as opened:

        def closed_later(descriptor: int) -> int:
            opened.callback(os.close, descriptor)
            return descriptor

        streams = [0 if reads else closed_later(os.open(os.devnull, os.O_RDONLY))]
        pipes = {}
        for number, stream, name in ((1, Std.OUT, "stdout"), (2, Std.ERR, "stderr")):
            if stream in direct and os.isatty(number):
                streams.append(number)
                continue
            read_end, write_end = map(closed_later, os.pipe2(os.O_CLOEXEC))
            with suppress(OSError):
                fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            streams.append(write_end)
            pipes[name] = read_end
        stdin, stdout, stderr = streams
        yield (stdin, stdout, stderr), pipes
