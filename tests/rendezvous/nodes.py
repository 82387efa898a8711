"""Nodes of a job for tests: their messages and terms, and how they run in one process."""

import os
import select
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace

from tests.rendezvous.door import (
    AgentHooks,
    Event,
    EventSource,
    Exited,
    Fact,
    Fate,
    GlobalRank,
    HeartbeatRhythm,
    Hello,
    Interfaces,
    LocalRank,
    PolicyJob,
    Resolve,
    Terms,
    all_addresses,
    heartbeat_rhythm,
)

PATIENCE = 10.0
"""Seconds that a test waits for what should take milliseconds."""

HELLO = Hello(
    identity="a",
    run_id="",
    user_id=1000,
    host="n0",
    pid=10,
    rank=None,
    workers=1,
    must={"nnodes": "2"},
    should={},
)

TERMS = Terms(
    nodes=2,
    run_id="run",
    host=Fact("n0", "--master-addr"),
    ports=Fact((29500,), "--master-port"),
    timeout=600.0,
    rhythm=HeartbeatRhythm(1.0, 15.0),
    keeps_joining_port=False,
)


def hello(number: int, nodes: int = 2, **values: Any) -> Hello:
    """Return what the agent on host ``n<number>``, pid ``10 + number``, sends first."""
    usual = {
        "identity": f"agent {number}",
        "host": f"n{number}",
        "pid": 10 + number,
        "must": {"nnodes": str(nodes)},
    }
    return replace(HELLO, **{**usual, **values})


def opened_job(nodes: int = 2, **values: Any) -> PolicyJob:
    """Return a job of ``nodes`` as its coordinator begins with it, at 0 s.

    ``values`` are fields of its terms and of node 0's hello, and ``has_token``.
    """
    of_hello = {name: values.pop(name) for name in tuple(values) if name in Hello.__struct_fields__}
    if "run_id" in of_hello:
        values["run_id"] = of_hello["run_id"]
    has_token = values.pop("has_token", False)
    terms = replace(TERMS, nodes=nodes, **values)
    return PolicyJob(terms, hello(0, nodes, **of_hello), 29500, 0.0, has_token=has_token)


def fate(rank: int, code: int = 0, **values: Any) -> Fate:
    """Return the fate of a worker that ended with exit code ``code``."""
    usual = Fate(
        rank=GlobalRank(rank),
        local_rank=LocalRank(0),
        host="somewhere",
        pid=1000 + rank,
        ending=Exited(code),
        stopped_by_us=False,
        clock=0.0,
        ran_for=1.0,
        tail="",
        log="",
        error="",
        out_of_memory="",
    )
    return replace(usual, **values)


class QuietInbox:
    """An inbox into which a test puts signals."""

    def __init__(self) -> None:
        self._counter = os.eventfd(0, os.EFD_NONBLOCK)
        self._events: list[Event] = []

    def __del__(self) -> None:
        os.close(self._counter)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when something was put in."""
        return self._counter

    def put(self, event: Event) -> None:
        self._events.append(event)
        os.eventfd_write(self._counter, 1)

    def events(self, now: float) -> Iterable[Event]:
        """Return all that was put in."""
        del now
        # What another thread puts in from here on rings anew.
        with suppress(BlockingIOError):
            os.eventfd_read(self._counter)
        taken, self._events = self._events, []
        return taken


class Notices(list[str]):
    """The lines that were printed for people."""

    def has(self, text: str) -> bool:
        """Return whether a line contains ``text``."""
        return any(text in line for line in self)


def job_terms(
    port: int | Sequence[int],
    nodes: int = 2,
    host: str = "127.0.0.1",
    **values: Any,
) -> Terms:
    """Return the terms of a job of ``nodes`` on this machine."""
    ports = (port,) if isinstance(port, int) else tuple(port)
    usual = Terms(
        nodes=nodes,
        host=Fact(host, "--master-addr"),
        ports=Fact(ports, "--master-port"),
        keeps_joining_port=False,
        timeout=PATIENCE,
        run_id="chosen",
        rhythm=heartbeat_rhythm(nodes, 15.0),
    )
    return replace(usual, **values)


def ranked_hello(number: int, **values: Any) -> Hello:
    """Return the hello of host ``n<number>``, whose rank is its number unless another is given."""
    return hello(number, **{"rank": number, **values})


def hooks(
    notices: list[str] | None = None,
    inbox: QuietInbox | None = None,
    *,
    helpers: Sequence[EventSource] = (),
    interfaces: Interfaces | None = None,
    resolve: Resolve = all_addresses,
    seconds_to_answer: float = 3.0,
) -> AgentHooks:
    """Return the hooks of a node; its notices go to ``notices``."""
    return AgentHooks(
        signals=inbox or QuietInbox(),
        notice=(Notices() if notices is None else notices).append,
        clock=time.monotonic,
        helpers=helpers,
        interfaces=lambda: {"lo": ("127.0.0.1", "::1")} if interfaces is None else interfaces,
        resolve=resolve,
        resolves_for_others=lambda _host, _clock: False,
        seconds_to_answer=seconds_to_answer,
    )


class Turnable(Protocol):
    """Whatever lives in an agent's loop."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        ...

    @property
    def due(self) -> float:
        """When it wants its turn."""
        ...

    def turn(self, now: float) -> None:
        """Do all that can be done now."""
        ...


def take_turns(until: Callable[[], object], *everybody: Turnable) -> None:
    """Let ``everybody`` do what there is to do until ``until`` holds.

    Raises:
        TimeoutError: it does not for too long.

    """
    deadline = time.monotonic() + PATIENCE
    while not until():
        if time.monotonic() > deadline:
            raise TimeoutError
        with select.epoll() as epoll:
            for each in everybody:
                epoll.register(each, select.EPOLLIN)
            now = time.monotonic()
            due = min(deadline, *(each.due for each in everybody))
            epoll.poll(max(0.0, due - now))
        for each in everybody:
            each.turn(time.monotonic())
