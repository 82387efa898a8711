"""The agent's half of the fork server: starts it, asks it for workers, hears what becomes of them."""

import os
import signal
from collections.abc import Callable, Iterable

import msgspec

from clusterrun.domain.events import (
    CleanedUp,
    Event,
    ForkServerReady,
    HelperLost,
    SignalNotHandled,
    SignalReceived,
    WorkerExited,
    WorkerKilled,
    WorkerNotStarted,
    WorkerStarted,
    WorkerStopped,
)
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.preparation import Preparation, Prepared
from clusterrun.domain.ranks import LocalRank
from clusterrun.errors import InternalError, MachineError, UsageError
from clusterrun.workers.channel import Message
from clusterrun.workers.fork_server_process import ForkServerProcess

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL})
"""Signals after which a worker that has not been started need not be."""


class ForkServerClient:
    """The running fork server of this node."""

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
        self._process = process
        self._channel = process.channel
        self._on_prepared = on_prepared
        self._on_slow_import = on_slow_import
        self._lost = False
        self._held: _Held | None = None
        self.pids: dict[LocalRank, int] = {}
        """Process ids of the workers that have executed their program, in the last attempt."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there are ``events``."""
        return self._channel.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether ``flush`` has something to send."""
        return self._channel.wants_write

    def flush(self) -> None:
        """Send what is queued, as far as it fits."""
        self._channel.flush()

    def prepare(self, preparation: Preparation) -> None:
        """Have the server make ready to run the workers' script in place; that may take seconds.

        ``on_prepared`` gets the result. Workers that are asked for before that wait here.
        """
        self._held = _Held()
        self._channel.send(
            {
                "kind": "prepare",
                "argv": list(preparation.command),
                "preload": preparation.preload,
                "insist": preparation.must_fork,
                "environ": dict(preparation.known_variables),
                "workers": preparation.workers,
                "unsettled": dict.fromkeys(preparation.later_variables),
                "cpus": None if preparation.cpus is None else sorted(preparation.cpus),
                "patience": preparation.import_timeout,
            }
        )

    def spawn(
        self,
        plan: NodePlan,
        worker: WorkerPlan,
        streams: tuple[int, int, int],
        *,
        startup: str | None,
        foreground: int,
    ) -> None:
        """Ask for one worker.

        Args:
            plan: what all workers have in common.
            worker: what only this one gets.
            streams: its stdin, stdout and stderr, which the caller may close at once.
            startup: a folder to put in front of PYTHONPATH; None for programs that aren't Python.
            foreground: the process group that hands it the terminal that ``streams`` begin with; 0:
                it gets no terminal.

        """
        request: Message = {
            "kind": "spawn",
            "local_rank": worker.local_rank,
            "argv": list(plan.command_of(worker)),
            "env": {**plan.env, **worker.env},
            "startup": startup,
            "cpus": None if worker.cpus is None else sorted(worker.cpus),
            "memory": memory_of(worker),
            "mask": self._process.mask,
            "foreground": foreground,
        }
        if self._held is None:
            self._channel.send(request, streams)
        else:
            self._held.spawn(worker.local_rank, request, streams)

    def signal(
        self,
        local_ranks: Iterable[LocalRank],
        number: int,
        *,
        group: bool,
        spare_failing: bool = False,
    ) -> None:
        """Send a signal to workers or their groups, or only to those whose script has not failed."""
        if self._held is None:
            self._channel.send(
                {
                    "kind": "signal",
                    "local_ranks": sorted(local_ranks),
                    "number": int(number),
                    "group": group,
                    "spare_failing": spare_failing,
                }
            )
        elif number in ENDING:
            self._held.called_off = int(number)
            self._channel.send({"kind": "call_off"})

    def forward(self, number: int) -> None:
        """Send a signal to the workers that handle it; ``SignalNotHandled`` names the others."""
        if self._held is not None:
            self._held.forwarded.append(int(number))
            return
        self._channel.send({"kind": "forward", "number": int(number)})

    def sweep(self) -> None:
        """Kill everything that workers left behind; ``CleanedUp`` follows."""
        self._channel.send({"kind": "sweep"})

    def events(self, now: float) -> Iterable[Event]:
        """Return what has happened, with the time ``now`` of the agent's monotonic clock."""
        if self._lost:
            return
        for message, _descriptors in self._channel.receive():
            if message["kind"] == "hello":
                printed, refused = self._process.becomes_ready(), tuple(message["refused"])
                if printed or refused:
                    yield ForkServerReady(printed, refused, now)
                continue
            if message["kind"] == "importing":
                self._on_slow_import(message["name"], message["seconds"])
                continue
            if message["kind"] == "prepared":
                yield from self._let_go(message, now)
                continue
            event = _event(message, now)
            if isinstance(event, WorkerStarted):
                self.pids[event.local_rank] = event.pid
            yield event
        if self._channel.closed:
            self._lost = True
            how, number = self._process.end()
            if not self._process.is_ready and not number:
                raise UsageError(
                    f"{self._process.python} {how}", "name a Python 3.8 or newer with --python"
                )
            yield HelperLost("fork server", how, number, now)

    @property
    def lost(self) -> bool:
        """Whether the fork server has ended though nobody asked it to."""
        return self._lost

    def _let_go(self, message: Message, now: float) -> Iterable[Event]:
        """Send off the workers that waited, unless they were called off meanwhile."""
        held, self._held = self._held or _Held(), None
        self._on_prepared(msgspec.convert({**message, "kind": None}, Prepared))
        for number in held.forwarded:
            yield SignalNotHandled(number, tuple(held.requests), now)
        for local_rank, (request, streams) in held.requests.items():
            if held.called_off:
                yield WorkerKilled(local_rank, held.called_off, now)
            else:
                self._channel.send(request, streams)
        held.close()

    def close(self) -> None:
        """Hang up: the server ends whatever it has started, and then itself."""
        if self._held is not None:
            self._held.close()
        self._channel.close()


def memory_of(worker: WorkerPlan) -> tuple[str, list[int]] | None:
    """Return a worker's memory policy as the fork server takes it."""
    policy = worker.memory
    return None if policy is None else (policy.mode.value, list(policy.nodes))


class _Held:
    """Workers that wait until the server is prepared, and what was to be done to them meanwhile."""

    def __init__(self) -> None:
        self.requests: dict[LocalRank, tuple[Message, tuple[int, ...]]] = {}
        self.called_off = 0
        """The signal that was to end them; 0: none."""
        self.forwarded: list[int] = []

    def spawn(self, local_rank: LocalRank, request: Message, streams: Iterable[int]) -> None:
        """Keep a request, with streams of our own: the caller closes those that it has."""
        self.requests[local_rank] = request, tuple(os.dup(stream) for stream in streams)

    def close(self) -> None:
        """Close the streams."""
        for _, streams in self.requests.values():
            for stream in streams:
                os.close(stream)
        self.requests = {}


def _event(message: Message, now: float) -> Event:
    match message:
        case {"kind": "started", "local_rank": rank, "pid": pid}:
            return WorkerStarted(LocalRank(rank), pid, message.get("remark", ""), now)
        case {"kind": "failed", "local_rank": rank, "step": step, "error": error}:
            return WorkerNotStarted(LocalRank(rank), step, error, now)
        case {"kind": "exited", "local_rank": rank, "code": code, "left": left}:
            return WorkerExited(LocalRank(rank), code, now, _since(left, now) if code else 0.0)
        case {"kind": "exited", "local_rank": rank, "signal": number, "left": left}:
            return WorkerKilled(LocalRank(rank), number, now, _since(left, now), left[1])
        case {"kind": "stopped", "local_rank": rank, "number": number}:
            return WorkerStopped(LocalRank(rank), number, now)
        case {"kind": "signalled", "number": number, "at": at}:
            return SignalReceived(number, at, to_fork_server=True)
        case {"kind": "deaf", "number": number, "local_ranks": ranks}:
            return SignalNotHandled(number, tuple(LocalRank(rank) for rank in ranks), now)
        case {"kind": "swept", "survivors": survivors}:
            return CleanedUp(tuple(survivors), now)
        case {"kind": "uncontained", "error": error}:
            raise MachineError(
                f"--contain can't have a PID namespace on this machine: {error}",
                "Run as root, allow user namespaces, or leave --contain out.",
            )
        case _:
            raise InternalError(f"the fork server said {message}")


def _since(left: tuple[float, int], now: float) -> float:
    """Return the seconds since a script failed; ``left``: when it was over, and its exit code."""
    left_at, code = left
    return max(0.0, now - left_at) if code else 0.0
