"""The agent's half of the fork server: asks for workers, and turns the server's messages into events."""

import os
import signal
from collections.abc import Callable, Iterable

import msgspec

from clusterrun.domain.events import (
    Event,
    ForkServerReady,
    HelperLost,
    SignalNotHandled,
    WorkerKilled,
    WorkerStarted,
)
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.preparation import Preparation, Prepared
from clusterrun.domain.ranks import LocalRank
from clusterrun.errors import UsageError
from clusterrun.workers.channel import Message
from clusterrun.workers.fork_server_events import event_of
from clusterrun.workers.fork_server_process import ForkServerProcess

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL})
"""Signals after which a worker that has not been started need not be started."""


class ForkServerClient:
    """The running fork server of this node, as the agent uses it."""

    due = float("inf")

    def __init__(
        self,
        process: ForkServerProcess,
        on_prepared: Callable[[Prepared], None],
        on_slow_import: Callable[[str, float], None],
    ) -> None:
        """Take the process that has been started.

        Args:
            process: the server's.
            on_prepared: called once after ``prepare``, with the result.
            on_slow_import: called now and then while that takes long, with the module that is being
                imported, and the seconds so far.

        """
        self.pid = process.pid
        self.pids: dict[LocalRank, int] = {}
        """Process ids of the workers that have executed their program, in the last attempt."""
        self.lost = False
        """Whether the fork server has ended though the agent did not ask it to."""
        self._process = process
        self._channel = process.channel
        self._on_prepared = on_prepared
        self._on_slow_import = on_slow_import
        self._delayed: _DelayedRequests | None = None

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def wants_write(self) -> bool:
        return self._channel.wants_write

    def flush(self) -> None:
        self._channel.flush()

    def prepare(self, preparation: Preparation) -> None:
        """Have the server prepare to run the workers' script in place; that may take seconds.

        ``on_prepared`` gets the result. Requests for workers are delayed until then.
        """
        self._delayed = _DelayedRequests()
        message: Message = {
            "kind": "prepare",
            "command": list(preparation.command),
            "preload": preparation.preload,
            "must_fork": preparation.must_fork,
            "known_variables": dict(preparation.known_variables),
            "workers": preparation.workers,
            "later_variables": list(preparation.later_variables),
            "cpus": None if preparation.cpus is None else sorted(preparation.cpus),
            "import_timeout": preparation.import_timeout,
        }
        self._channel.send(message)

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
            plan: what all workers have in common.
            worker: what only this one gets.
            streams: its stdin, stdout and stderr, which the caller may close at once.
            startup_folder: a folder to put in front of PYTHONPATH; None for programs that aren't
                Python.
            foreground_group: the process group that hands over the terminal of ``streams``; 0: the
                worker gets no terminal.

        """
        request: Message = {
            "kind": "start_worker",
            "local_rank": worker.local_rank,
            "command": list(plan.command_of(worker)),
            "variables": {**plan.env, **worker.env},
            "startup_folder": startup_folder,
            "cpus": None if worker.cpus is None else sorted(worker.cpus),
            "memory": memory_of(worker),
            "blocked_signals": self._process.mask,
            "foreground_group": foreground_group,
        }
        if self._delayed is None:
            self._channel.send(request, streams)
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
            self._channel.send(message)
        elif number in ENDING:
            self._delayed.cancelled_by = int(number)
            self._channel.send({"kind": "cancel"})

    def forward(self, number: int) -> None:
        """Send a signal to the workers that handle it; ``SignalNotHandled`` names the others."""
        if self._delayed is None:
            self._channel.send({"kind": "forward", "number": int(number)})
        else:
            self._delayed.forwarded.append(int(number))

    def clean_up(self) -> None:
        """Kill everything that workers left behind; ``CleanedUp`` follows."""
        self._channel.send({"kind": "clean_up"})

    def events(self, now: float) -> Iterable[Event]:
        """Return what has happened, with the time ``now`` of the agent's monotonic clock."""
        if self.lost:
            return
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
                case _:
                    event = event_of(message, now)
                    if isinstance(event, WorkerStarted):
                        self.pids[event.local_rank] = event.pid
                    yield event
        if self._channel.closed:
            self.lost = True
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
        for local_rank, (request, streams) in delayed.requests.items():
            if delayed.cancelled_by:
                yield WorkerKilled(local_rank, delayed.cancelled_by, now)
            else:
                self._channel.send(request, streams)
        delayed.close()

    def close(self) -> None:
        """Close the connection: the server ends whatever it has started, and then itself."""
        if self._delayed is not None:
            self._delayed.close()
        self._process.close()


def memory_of(worker: WorkerPlan) -> tuple[str, list[int]] | None:
    """Return a worker's memory policy as the fork server takes it."""
    policy = worker.memory
    return None if policy is None else (policy.mode.value, list(policy.nodes))


class _DelayedRequests:
    """Requests that wait until the server is prepared, and signals to these workers."""

    def __init__(self) -> None:
        self.requests: dict[LocalRank, tuple[Message, tuple[int, ...]]] = {}
        self.cancelled_by = 0
        """The signal that ends the workers before they start; 0: none."""
        self.forwarded: list[int] = []

    def add(self, local_rank: LocalRank, request: Message, streams: Iterable[int]) -> None:
        """Keep a request with duplicates of the streams, which the caller closes."""
        self.requests[local_rank] = request, tuple(os.dup(stream) for stream in streams)

    def close(self) -> None:
        for _, streams in self.requests.values():
            for stream in streams:
                os.close(stream)
        self.requests = {}
