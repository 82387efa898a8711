"""The agent's half of the fork server: asks for workers, and turns the server's messages into events."""

import os
import signal
from collections.abc import Callable, Iterable
from time import monotonic

import msgspec

from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.preparation import Preparation, Prepared
from clusterrun.domain.ranks import LocalRank
from clusterrun.errors import InternalError, MachineError, UsageError
from clusterrun.policy.events import (
    CleanedUp,
    Event,
    ForkServerReady,
    HelperLost,
    SignalNotHandled,
    SignalReceived,
    WorkerEnded,
    WorkerFailing,
    WorkerStarted,
    WorkerStopped,
)
from clusterrun.policy.outcome import Exited, Killed, NotStarted
from clusterrun.workers.fork_server.channel import Message
from clusterrun.workers.fork_server_process import ForkServerProcess
from clusterrun.workers.helper_client import HelperClient
from clusterrun.workers.server_child import ServerChild

ForkServer = ForkServerProcess | ServerChild
"""What has the connection: a process of this job's own, or the child of a warm one."""


def event_of(message: Message, now: float) -> Event:
    """Return the event that ``message`` reports.

    Raises:
        MachineError: the server can't make a PID namespace.
        InternalError: the message is unknown.

    """
    match message:
        case {"kind": "started", "local_rank": rank, "pid": pid, "remark": remark}:
            return WorkerStarted(LocalRank(rank), pid, remark, now)
        case {"kind": "not_started", "local_rank": rank, "step": step, "error": error}:
            return WorkerEnded(LocalRank(rank), NotStarted(step, error), now)
        case {"kind": "exited", "local_rank": rank, "code": code, "failure": failure}:
            return WorkerEnded(
                LocalRank(rank), Exited(code), now, _age(failure, now) if code else 0.0
            )
        case {"kind": "exited", "local_rank": rank, "signal": number, "failure": failure}:
            # It may have been about to exit, with a code that is known.
            ending = Exited(failure[1]) if failure[1] else Killed(number)
            return WorkerEnded(LocalRank(rank), ending, now, _age(failure, now))
        case {"kind": "failing", "local_rank": rank, "failure": failure}:
            return WorkerFailing(LocalRank(rank), now, _age(failure, now))
        case {"kind": "stopped", "local_rank": rank, "number": number}:
            return WorkerStopped(LocalRank(rank), number, now)
        case {"kind": "signalled", "number": number, "at": at}:
            return SignalReceived(number, at, to_fork_server=True)
        case {"kind": "not_handled", "number": number, "local_ranks": ranks}:
            return SignalNotHandled(number, tuple(LocalRank(rank) for rank in ranks), now)
        case {"kind": "cleaned_up", "survivors": survivors}:
            return CleanedUp(tuple(survivors), now)
        case {"kind": "not_contained", "error": error}:
            raise MachineError(
                f"--contain can't make a PID namespace on this machine: {error}",
                "run as root, allow user namespaces, or leave --contain out",
            )
        case _:
            raise InternalError(f"the fork server sent {message}")


def _age(failure: tuple[float, int], now: float) -> float:
    """Return the seconds since a script failed; ``failure``: time and exit code, or 0.0 and 0."""
    failed_at, code = failure
    return max(0.0, now - failed_at) if code else 0.0


def preparation_message(preparation: Preparation) -> Message:
    """Return the fields of ``prepare``: equal for equal preparations."""
    fields: Message = msgspec.to_builtins(preparation, order="deterministic")
    return fields


ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL})
"""Signals after which a worker that has not been started need not be started."""


class ForkServerClient(HelperClient):
    """The running fork server of this node, as the agent uses it."""

    def __init__(
        self,
        process: ForkServer,
        on_prepared: Callable[[Prepared], None],
        on_slow_import: Callable[[str, float], None],
    ) -> None:
        """Take the server's process, and what to call.

        Args:
            process: it has been started.
            on_prepared: called once after ``prepare``, with the result.
            on_slow_import: called now and then while that takes long, with the module that is being
                imported, and the seconds so far.

        """
        super().__init__(process.channel, process.pid)
        self.pids: dict[LocalRank, int] = {}
        """Process ids of the workers that have executed their program, in the last attempt."""
        self._process = process
        self._on_prepared = on_prepared
        self._on_slow_import = on_slow_import
        self._delayed: _DelayedRequests | None = None
        self._is_leased = False
        self._to_continue: tuple[LocalRank, ...] = ()

    def prepare(self, preparation: Preparation) -> None:
        """Have the server prepare to run the workers' script in place; that may take seconds.

        ``on_prepared`` gets the result. Requests for workers are delayed until then.
        """
        self._delayed = _DelayedRequests()
        self._send({"kind": "prepare", **preparation_message(preparation)})

    def start(
        self,
        plan: NodePlan,
        worker: WorkerPlan,
        streams: tuple[int, int, int],
        *,
        startup_folder: str | None,
        foreground_group: int,
    ) -> None:
        """Ask for one worker.

        Args:
            plan: the node's.
            worker: one of its workers.
            streams: its stdin, stdout and stderr, which the caller may close at once.
            startup_folder: a folder to put in front of PYTHONPATH; None for programs that aren't
                Python.
            foreground_group: the process group that hands over the terminal of ``streams``; 0: the
                worker gets no terminal.

        """
        cpus, memory = binding_of(worker)
        request: Message = {
            "kind": "start_worker",
            "local_rank": worker.local_rank,
            "command": plan.command_of(worker),
            "variables": {**plan.env, **worker.env},
            "startup_folder": startup_folder,
            "cpus": cpus,
            "memory": memory,
            "blocked_signals": self._process.mask,
            "foreground_group": foreground_group,
        }
        if self._delayed is None:
            self._send(request, streams)
        else:
            self._delayed.add(worker.local_rank, request, streams)

    def signal(
        self,
        local_ranks: Iterable[LocalRank],
        number: int,
        *,
        group: bool,
        except_failing: bool = False,
    ) -> None:
        if self._delayed is None:
            message: Message = {
                "kind": "signal",
                "local_ranks": sorted(local_ranks),
                "number": int(number),
                "group": group,
                "except_failing": except_failing,
            }
            self._send(message)
        elif number in ENDING:
            self._delayed.cancelled_by = int(number)
            self._send({"kind": "cancel"})

    def forward(self, number: int) -> None:
        """Send a signal to the workers that handle it; ``SignalNotHandled`` names the others."""
        if self._delayed is None:
            self._send({"kind": "forward", "number": int(number)})
        else:
            self._delayed.forwarded.append(int(number))

    def renew_lease(self, seconds: float | None) -> None:
        """Have the workers killed in ``seconds`` unless this is called again; None: never."""
        self._send_lease(seconds)
        self._is_leased = seconds is not None
        self._continue()

    def suspend_lease(self) -> None:
        """Let no lease run out while the workers are stopped, until ``resume``."""
        self._send_lease(None)

    def resume(self, local_ranks: Iterable[LocalRank]) -> None:
        """Continue stopped workers: once a new lease has come, if the others may have gone on."""
        self._to_continue = tuple(local_ranks)
        if not self._is_leased:
            self._continue()

    def _send_lease(self, seconds: float | None) -> None:
        if self._delayed is not None:
            self._delayed.lease = None if seconds is None else (seconds, monotonic())
        elif not self.lost:
            self._send({"kind": "lease", "seconds": seconds})

    def _continue(self) -> None:
        local_ranks, self._to_continue = self._to_continue, ()
        if local_ranks:
            self.signal(local_ranks, signal.SIGCONT, group=True)

    def clean_up(self) -> None:
        """Kill everything that workers left behind; ``CleanedUp`` follows."""
        self._send({"kind": "clean_up"})

    def _happened(self, now: float) -> Iterable[Event]:
        for message, _descriptors in self._channel.receive():
            match message["kind"]:
                case "ready":
                    printed, refused = self._process.becomes_ready(), tuple(message["refused"])
                    if printed or refused:
                        yield ForkServerReady(printed, refused, now)
                case "importing":
                    self._on_slow_import(message["module"], message["seconds"])
                case "prepared":
                    self._on_prepared(msgspec.convert({**message, "kind": None}, Prepared))
                    yield from self._send_delayed(now)
                case "server_ended" if isinstance(self._process, ServerChild):
                    self._process.status = message["status"]
                case _:
                    event = event_of(message, now)
                    if isinstance(event, WorkerStarted):
                        self.pids[event.local_rank] = event.pid
                    yield event
        if self._channel.closed:
            self.lost = True
            if self._delayed is not None:
                # No worker gets these pipes any more, and the relay waits for their end.
                self._delayed.close()
            how, number = self._process.end()
            if not self._process.is_ready and not number:
                raise UsageError(
                    f"{self._process.python} {how}", "name a Python 3.8 or newer with --python"
                )
            yield HelperLost("fork server", how, number, now)

    def _send_delayed(self, now: float) -> Iterable[Event]:
        """Send the delayed requests, unless they were cancelled meanwhile."""
        delayed, self._delayed = self._delayed or _DelayedRequests(), None
        for number in delayed.forwarded:
            yield SignalNotHandled(number, tuple(delayed.requests), now)
        if delayed.lease is not None:
            seconds, since = delayed.lease
            self.renew_lease(since + seconds - now)
        for local_rank, (request, streams) in delayed.requests.items():
            if delayed.cancelled_by:
                yield WorkerEnded(local_rank, Killed(delayed.cancelled_by), now)
            else:
                self._send(request, streams)
        delayed.close()

    def close(self) -> None:
        """Close the connection: the server ends whatever it has started, and then itself."""
        if self._delayed is not None:
            self._delayed.close()
        self._leave_loop()
        self._process.close()


def binding_of(worker: WorkerPlan) -> tuple[list[int] | None, tuple[str, list[int]] | None]:
    """Return a worker's CPUs and memory policy as the fork server takes them."""
    cpus, policy = worker.cpus, worker.memory
    return (
        None if cpus is None else sorted(cpus),
        None if policy is None else (policy.mode, list(policy.nodes)),
    )


class _DelayedRequests:
    """Requests that wait until the server is prepared, and signals to these workers."""

    def __init__(self) -> None:
        self.requests: dict[LocalRank, tuple[Message, tuple[int, ...]]] = {}
        self.cancelled_by = 0
        """The signal that ends the workers before they start; 0: none."""
        self.forwarded: list[int] = []
        self.lease: tuple[float, float] | None = None
        """Seconds, and since when: the server dates a lease from the reading."""

    def add(self, local_rank: LocalRank, request: Message, streams: Iterable[int]) -> None:
        """Keep a request with duplicates of the streams, which the caller closes."""
        self.requests[local_rank] = request, tuple(os.dup(stream) for stream in streams)

    def close(self) -> None:
        for _, streams in self.requests.values():
            for stream in streams:
                os.close(stream)
        self.requests = {}
