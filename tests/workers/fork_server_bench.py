"""A fork server that a test uses like the agent, and workers that print to pipes."""

import os
import select
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from clusterrun import processes
from clusterrun.bounds import LocalRank
from clusterrun.cpuset import CpuSet
from clusterrun.loop import Loop
from clusterrun.planning.plan import MemoryPolicy
from clusterrun.planning.preparation import Preparation
from clusterrun.policy import actions, events
from clusterrun.workers import fork_server_process
from clusterrun.workers.fork_server import kernel, messages
from clusterrun.workers.fork_server_client import ForkServer
from msgspec.structs import replace

from tests.plans import plan_of, worker_of

PATIENCE = 20.0
"""Seconds after which a test gives up waiting."""

OF_THE_JOB = {"OF_THE_JOB": "job", "OF_BOTH": "job"}
"""Variables of all workers."""

EventT = TypeVar("EventT", bound=events.Event)


class Reader(NamedTuple):
    """The read end of a pipe to which a worker and its children print."""

    descriptor: int

    def line(self) -> str:
        """Return the next line without its end, or "" at the end of file."""
        text = b""
        while not text.endswith(b"\n") and (byte := self._read(1)):
            text += byte
        return text.decode().rstrip("\n")

    def rest(self) -> str:
        """Return the rest, up to the end of file, when no process that could print is left."""
        text = b""
        while chunk := self._read(1 << 16):
            text += chunk
        return text.decode()

    def _read(self, most: int) -> bytes:
        ready, _, _ = select.select([self.descriptor], [], [], PATIENCE)
        assert ready, "a process keeps the pipe open, and prints nothing"
        return os.read(self.descriptor, most)


class Bench:
    """A fork server and what its workers print."""

    def __init__(self, process: fork_server_process.ServerProcess) -> None:
        self.server = ForkServer(process)
        self.now = 7.0
        self.loop = Loop[events.Event](lambda: self.now)
        self.server.run_in(self.loop)
        self._pipes: list[int] = []

    def spawn(
        self,
        local_rank: int,
        *command: str,
        env: Mapping[str, str] | None = None,
        cpus: CpuSet | None = None,
        memory: MemoryPolicy | None = None,
        startup: str | None = None,
    ) -> Reader:
        """Ask for a worker; return what it prints to standard output and error."""
        read_end, write_end = os.pipe()
        self._pipes.append(read_end)
        devnull = os.open(os.devnull, os.O_RDONLY)
        self.server.start_worker(
            replace(plan_of(1), env=OF_THE_JOB),
            worker_of(local_rank, command=command, env=env or {}, cpus=cpus, memory=memory),
            (devnull, write_end, write_end),
            startup_folder=startup,
            foreground_group=None,
        )
        os.close(devnull)
        os.close(write_end)
        return Reader(read_end)

    def python(self, local_rank: int, code: str, **options: str | None) -> Reader:
        """Ask for a worker that runs ``code``, with the interpreter of the tests."""
        return self.spawn(local_rank, sys.executable, "-u", "-c", code, **options)  # type: ignore[arg-type]

    def signal(self, local_ranks: Iterable[LocalRank], number: int, *, group: bool) -> None:
        self.server.send_signal(actions.SignalWorkers(frozenset(local_ranks), number, group))

    def forward(self, number: int) -> None:
        self.server.send_signal(actions.ForwardSignal(number))

    def event(self) -> events.Event:
        return self.loop.next_event()

    def events(self, count: int) -> list[events.Event]:
        return [self.event() for _ in range(count)]

    def expect(self, kind: type[EventT]) -> EventT:
        event = self.event()
        assert isinstance(event, kind), event
        return event

    def close(self) -> None:
        """Close the connection and wait for the server's end."""
        self.server.close()
        if not self.server.lost:
            ended = processes.reap_child(self.server.pid, PATIENCE)
            assert ended is not None, "the fork server does not end"
        for descriptor in self._pipes:
            os.close(descriptor)
        # Otherwise this process would adopt the orphans of later tests.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 0)


def preparation_for(*command: str, must_fork: bool = False) -> Preparation:
    """Return a request to import nothing before workers are forked."""
    return Preparation(
        command=command,
        preload="none",
        must_fork=must_fork,
        known_variables={},
        per_worker_variables=(),
        workers=1,
        cpus=None,
        has_gpus=False,
    )


def request_to_prepare(
    command: tuple[str, ...] = (),
    *,
    preload: str | tuple[str, ...] = "auto",
    workers: int = 2,
    has_gpus: bool = False,
) -> messages.Prepare:
    """Return an agent's request for imports before the fork."""
    return messages.Prepare(
        command=command,
        preload=preload,
        must_fork=False,
        known_variables={},
        per_worker_variables=(),
        workers=workers,
        cpus=None,
        has_gpus=has_gpus,
        only_first=None,
    )


@contextmanager
def fork_server(
    python: str = sys.executable,
    environ: Mapping[str, str] | None = None,
    *,
    is_guarded: bool = False,
) -> Iterator[Bench]:
    """Start a fork server with the tests' environment; end it and all processes that it has started."""
    bench = Bench(
        fork_server_process.ServerProcess(
            fork_server_process.ServerCommand(python, {**os.environ, **(environ or {})}, is_guarded)
        )
    )
    try:
        yield bench
    finally:
        bench.close()
