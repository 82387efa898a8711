"""Nodes of a job for tests: their messages and settings, and how they run in one process."""

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.errors import RendezvousError
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Given
from clusterrun.loop import NEVER, Loop, Priority
from clusterrun.network.addresses import Interfaces, Resolve, all_addresses
from clusterrun.network.channel import FROM_MEMBERS, Channel
from clusterrun.network.handshake import coordinator_handshake, packed_address
from clusterrun.network.joining_node import JoinContext, JoiningNode
from clusterrun.network.membership import Membership
from clusterrun.planning.plan import World
from clusterrun.policy import events, messages, outcome
from clusterrun.policy.coordinator import Coordinator
from clusterrun.policy.settings import HeartbeatRhythm, RendezvousSettings, heartbeat_rhythm
from clusterrun.policy.waiting import WaitResult
from clusterrun.run.launch import wait_for_world
from msgspec.structs import replace

from tests.plans import job, world

PATIENCE = 10.0
"""Seconds that a test waits for something that should take milliseconds."""

HELLO = messages.Hello(
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

TERMS = RendezvousSettings(
    job(nnodes=2),
    nodes=2,
    host=Setting("n0", "--master-addr"),
    ports=Setting((29500,), "--master-port"),
    rhythm=HeartbeatRhythm(1.0, 15.0),
    keeps_rendezvous_port=False,
)


def with_job(settings: RendezvousSettings, nodes: int, **values: Any) -> RendezvousSettings:
    """Return these settings for another job.

    ``values`` are other fields, or options of the job; ``exports``: variables of ``Given.exports``.
    """
    own = {
        name: values.pop(name)
        for name in tuple(values)
        if name in RendezvousSettings.__struct_fields__
    }
    given = Given(exports=values.pop("exports", ()), at_endpoint=values.pop("at_endpoint", False))
    asked_for = job(**{"nnodes": nodes - values.get("spares", 0), **values})
    return replace(settings, **{"job": replace(asked_for, given=given), "nodes": nodes, **own})


def hello(number: int, nodes: int = 2, **values: Any) -> messages.Hello:
    """Return the ``Hello`` of the agent on host ``n<number>`` with pid ``10 + number``."""
    usual = {
        "identity": f"agent {number}",
        "host": f"n{number}",
        "pid": 10 + number,
        "must": {"nnodes": str(nodes)},
    }
    return replace(HELLO, **{**usual, **values})


def opened_job(nodes: int = 2, **values: Any) -> Coordinator:
    """Return the new coordinator of a job of ``nodes``, at 0 s.

    ``values`` are those of ``with_job``, fields of node 0's hello, and ``has_token``.
    """
    of_hello = {
        name: values.pop(name) for name in tuple(values) if name in messages.Hello.__struct_fields__
    }
    if "run_id" in of_hello:
        values["run_id"] = of_hello["run_id"]
    has_token = values.pop("has_token", False)
    settings = with_job(TERMS, nodes, **values)
    return Coordinator(settings, hello(0, nodes, **of_hello), 29500, 0.0, has_token=has_token)


def result(rank: int, code: int = 0, **values: Any) -> outcome.WorkerResult:
    """Return the result of a worker that ended with exit code ``code``."""
    usual = outcome.WorkerResult(
        rank=GlobalRank(rank),
        local_rank=LocalRank(0),
        host="somewhere",
        pid=1000 + rank,
        exit_status=outcome.Exited(code),
        stopped_by_us=False,
        clock=0.0,
        ran_for=1.0,
        tail="",
        log="",
        error="",
        out_of_memory="",
    )
    return replace(usual, **values)


def done(
    attempt: int,
    results: Iterable[outcome.WorkerResult],
    cause: outcome.ExternalCause | None = None,
) -> messages.Done:
    """Return the report of these results, without times of node 0's clock."""
    return messages.Done(attempt, tuple(messages.DatedResult(it, None) for it in results), cause)


def world_of_node_1(attempt: int = 0) -> World:
    """Return the world of node 1 in a job of two nodes with one worker each."""
    one = world(2, attempt=attempt)
    second = GlobalRank(1)
    return replace(
        one, node_rank=NodeRank(1), nodes=2, first_rank=second, local_size=1, first_role_rank=second
    )


class EventInbox:
    """A source of events that a test puts in."""

    def __init__(self) -> None:
        self._counter = os.eventfd(0, os.EFD_NONBLOCK)
        self._events: list[events.Event] = []

    def __del__(self) -> None:
        os.close(self._counter)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when something was put in."""
        return self._counter

    def put(self, event: events.Event) -> None:
        self._events.append(event)
        os.eventfd_write(self._counter, 1)

    def events(self, now: float) -> Iterable[events.Event]:
        """Return all that was put in."""
        del now
        # First: events that another thread adds from here on make the descriptor readable again.
        with suppress(BlockingIOError):
            os.eventfd_read(self._counter)
        taken, self._events = self._events, []
        return taken


class Notices(list[str]):
    """The lines that were printed for the user."""

    def has(self, text: str) -> bool:
        """Return whether a line contains ``text``."""
        return any(text in line for line in self)


def job_settings(
    port: int | Sequence[int],
    nodes: int = 2,
    host: str = "127.0.0.1",
    **values: Any,
) -> RendezvousSettings:
    """Return the settings of a job of ``nodes`` on this machine; ``values`` are those of ``with_job``."""
    ports = (port,) if isinstance(port, int) else tuple(port)
    usual = {
        "host": Setting(host, "--master-addr"),
        "ports": Setting(ports, "--master-port"),
        "rhythm": heartbeat_rhythm(nodes, 15.0),
        "rdzv_timeout": PATIENCE,
        "run_id": "chosen",
    }
    return with_job(TERMS, nodes, **{**usual, **values})


def ranked_hello(number: int, **values: Any) -> messages.Hello:
    """Return the hello of host ``n<number>``, whose rank is its number unless another is given."""
    return hello(number, **{"rank": number, **values})


def join_context(
    notices: list[str] | None = None,
    *,
    interfaces: Interfaces | None = None,
    resolve: Resolve = all_addresses,
    seconds_to_answer: float = 3.0,
) -> JoinContext:
    """Return a context for joining whose notices go to ``notices``."""
    return JoinContext(
        notice=(Notices() if notices is None else notices).append,
        interfaces=lambda: {"lo": ("127.0.0.1", "::1")} if interfaces is None else interfaces,
        resolve=resolve,
        resolves_for_others=lambda *_: False,
        seconds_to_answer=seconds_to_answer,
    )


class Node:
    """One node of a job with a loop of its own."""

    def __init__(
        self,
        settings: RendezvousSettings,
        introduction: messages.Hello,
        token: bytes = b"",
        where: JoinContext | None = None,
        *,
        inbox: EventInbox | None = None,
    ) -> None:
        """Start to join; ``inbox`` has this node's signals and other events."""
        self.ahead = 0.0
        """Seconds by which its clock is set forward."""
        self.loop = Loop[events.Event](lambda: time.monotonic() + self.ahead)
        if inbox is not None:
            self.loop.watch(inbox.fileno(), inbox.events, Priority.SIGNALS)
        node = JoiningNode(settings, introduction, token, where or join_context())
        self.membership = Membership(node, self.loop)
        self.received: list[events.Event] = []
        """The events of this node's agent."""

    def join(self) -> World | WaitResult:
        """Wait until all nodes have joined or the wait ends otherwise."""
        self.loop.at("patience", self.loop.clock() + PATIENCE, raise_timeout)
        end = wait_for_world(self.membership, self.loop, None)
        self.loop.at("patience", NEVER, raise_timeout)
        return end

    @property
    def world(self) -> World | None:
        """The newest world."""
        for each in reversed(self.received):
            match each:
                case events.WorldJoined(world) | events.CoordinatorSent(
                    messages.NextAttempt(world)
                ):
                    return world
        return None

    def run_for(self, seconds: float = 0.0) -> list[events.Event]:
        """Run the loop for ``seconds``, one turn at least; return the events."""
        happened = list[events.Event]()
        self.loop.at("pause", self.loop.clock() + seconds, events.ForkServerPrepared)
        # On a busy machine they may be over before the first.
        self.loop.turn(self.loop.clock())
        while not isinstance(event := self.loop.next_event(), events.ForkServerPrepared):
            happened.append(event)
        self.received += happened
        return happened

    def send(self, message: messages.AgentMessage) -> None:
        """Send a message of the agent; immediate answers are added to ``received``."""
        self.received += self.membership.send(message)

    def join_error(self) -> RendezvousError:
        """Wait until joining fails; return the error."""
        with pytest.raises(RendezvousError) as caught:
            run_until(lambda: False, self)
        return caught.value

    def leave(self) -> None:
        self.membership.leave()


def raise_timeout(_now: float) -> events.Event:
    raise TimeoutError


class Runnable(Protocol):
    """A node or a replacement of one."""

    def run_for(self, seconds: float) -> object:
        """Run the loop for ``seconds``."""


def run_until(until: Callable[[], object], *nodes: Runnable) -> None:
    """Run the nodes in turn until ``until`` is true.

    Raises:
        TimeoutError: it takes too long.

    """
    deadline = time.monotonic() + PATIENCE
    while not until():
        if time.monotonic() > deadline:
            raise TimeoutError
        for each in nodes:
            each.run_for(0.002)


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a program listens at ``port``."""
    with socket.socket() as sock:
        return sock.connect_ex((host, port)) == 0


def open_descriptors() -> int:
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


class MemberHarness:
    """A member, and node 0's end of its connection, which the test controls."""

    def __init__(
        self,
        where: JoinContext | None = None,
        *,
        port: int = 0,
        programs: tuple[messages.ProgramOffer, ...] = (),
        **values: Any,
    ) -> None:
        """Have the member send its hello; ``values`` are fields of its settings."""
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.settimeout(0)
            settings = job_settings(listener.getsockname()[1], **values)
            self.node = Node(settings, ranked_hello(1, programs=programs), where=where)
            calls: list[socket.socket] = []

            def is_called() -> bool:
                with suppress(BlockingIOError):
                    calls.append(listener.accept()[0])
                return bool(calls)

            run_until(is_called, self.node)
        [self.socket] = calls
        """Node 0's end of the connection."""
        own_end = packed_address(self.socket.getsockname())
        handshake = coordinator_handshake(b"", own_end)
        self.coordinator = Channel(FROM_MEMBERS, self.socket, handshake)
        self.received: list[messages.FromMember] = []
        """The messages that node 0 has received."""
        run_until(lambda: self.receive() and self.received, self.node)

    def receive(self) -> bool:
        self.received += self.coordinator.receive()
        return True

    def deliver(self, *sent: messages.FromCoordinator) -> list[events.Event]:
        """Send messages of node 0; return the agent's events."""
        for message in sent:
            self.coordinator.send(message)
        return self.node.run_for(0.01)

    def close(self) -> None:
        self.node.leave()
        self.node.loop.close()
        self.coordinator.close()
