"""An agent and peers that send it anything, without sockets and processes: hours take milliseconds.

The agent is the product's: its loop and channels, its membership or node 0's server, the policies of the job
and of the attempt, plans, queries and reports. Sockets are replaced by buffers, and workers by objects that
end when they are told to.
"""

import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from itertools import count
from random import Random
from select import EPOLLIN, EPOLLOUT
from signal import SIGTERM
from time import process_time
from typing import Any, cast

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.errors import LauncherError, RendezvousError
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.options import OnHang
from clusterrun.job.services import Service
from clusterrun.loop import NEVER, Loop
from clusterrun.network import membership, query_service, server
from clusterrun.network.addresses import Address
from clusterrun.network.channel import FROM_COORDINATOR, Channel
from clusterrun.network.joining_node import JoinContext, JoiningNode
from clusterrun.network.membership import Membership
from clusterrun.network.server import CoordinatorServer
from clusterrun.planning.plan import NodePlan, World
from clusterrun.planning.services import service_slots
from clusterrun.planning.worker_slots import worker_slots_for
from clusterrun.policy import actions, events, messages, outcome, queries
from clusterrun.policy.node import Attempt
from clusterrun.policy.outcome import Outcome, Report
from clusterrun.policy.settings import HeartbeatRhythm, RendezvousSettings
from clusterrun.report.outcome import restart_text
from clusterrun.run import agent
from clusterrun.run.agent import Agent
from clusterrun.run.attempts import JobProgress
from clusterrun.run.event_log import EventLog
from clusterrun.run.final_report import report_before_start, text_of
from clusterrun.run.launch import wait_for_world
from clusterrun.run.node import LocalNode
from clusterrun.signals import SignalReceived
from msgspec.msgpack import Decoder
from msgspec.structs import replace

from tests.network.frames import as_frame, taken
from tests.network.nodes import TERMS, hello, with_job
from tests.plans import machine

RHYTHM = HeartbeatRhythm(1.0, 6.0)

WORKERS = 2
"""Of the main program on each node."""

MAX_POLLS = 4000
"""Of one session; with more, its agent spins."""

MAX_PRINTED = 150
"""Lines in total, because peers must not fill the screen."""

MAX_SECONDS = 3.0
"""CPU time of one session; most take some milliseconds."""

LISTENER = 3
BUFFER_BYTES = 1 << 20
"""Bytes that fit into the buffer between two ends."""

MACHINE = machine({0: "0-7"})
ADDRESS = Address(socket.AF_INET, "10.0.0.0", 0)
SERVICE = Service(
    name="server",
    where="job.yaml:2",
    program=WorkerProgram(ProgramKind.EXECUTABLE, "/bin/true", ()),
    ready="/health",
    ready_timeout=600.0,
)

KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"nodes": 2, "keeps_rendezvous_port": False},
    "outliving": {"nodes": 3, "spares": 1},
    "elastic": {"nodes": 3, "fewest_nodes": 1, "rejoin_timeout": 5.0},
    "services": {"nodes": 2, "services": (SERVICE,), "main_nodes": None},
    "apart": {"nodes": 2, "services": (replace(SERVICE, nnodes=1),), "main_nodes": {0}},
    "watched": {"nodes": 2, "hang_timeout": 5.0, "on_hang": OnHang.RESTART},
    "checked": {"nodes": 2, "check": "true"},
}


class Unsafe(AssertionError):
    """A failure that peers must never cause."""


def replace_sockets(patch: pytest.MonkeyPatch) -> None:
    """Have agents connect through the buffers of their sessions."""
    patch.setattr(membership, "Dialer", Dialer)
    patch.setattr(membership, "open_ports", lambda _node: (Port.opened.pop(), None))
    patch.setattr(membership, "SECONDS_FOR_VERDICT", 0.0)
    patch.setattr(membership, "SECONDS_TO_FINISH", 0.0)
    patch.setattr(server, "require_descriptors", lambda *_: None)
    patch.setattr(CoordinatorServer, "check_for_duplicate", lambda _server: None)
    patch.setattr(agent.Agent, "_probe", _ask)


def _ask(of: Any, local_rank: LocalRank, _attempt: Attempt) -> None:
    """Report the worker of a service as ready after a second."""
    loop = of._loop  # noqa: SLF001 - in place of a method of it
    loop.at(local_rank, loop.clock() + 1.0, partial(events.WorkerReady, local_rank))


@cache
def terms_of_kind(kind: str) -> RendezvousSettings:
    values = {"keeps_rendezvous_port": True, **KINDS[kind]}
    return with_job(
        TERMS,
        values.pop("nodes"),
        rhythm=RHYTHM,
        run_id="run",
        max_restarts=3,
        no_fail_fast=True,
        shutdown_timeout=3.0,
        rdzv_timeout=60.0,
        **values,
    )


@cache
def node_of_kind(kind: str, rank: int) -> LocalNode:
    job = with_job(TERMS, 2, **{**_of_job(kind), "node_rank": rank}).job
    services = service_slots(job, MACHINE) if job.services else ()
    slots = worker_slots_for(job, MACHINE, workers_of_kind(kind, rank), services)
    return LocalNode(job, (), {}, {}, MACHINE, slots)


def _of_job(kind: str) -> dict[str, Any]:
    job = terms_of_kind(kind).job
    values = {"nodes": 0, **KINDS[kind]}
    nodes = values.pop("nodes")
    values.pop("keeps_rendezvous_port", None)
    return {
        "nnodes": nodes - values.get("spares", 0),
        "run_id": "run",
        "max_restarts": job.failures.max_restarts,
        "no_fail_fast": True,
        "shutdown_timeout": 3.0,
        "rdzv_timeout": 60.0,
        **values,
    }


@cache
def hello_of_kind(kind: str, number: int) -> messages.Hello:
    """Return the ``Hello`` of a node."""
    settings = terms_of_kind(kind)
    workers = workers_of_kind(kind, number)
    programs: tuple[messages.ProgramOffer, ...] = ()
    if settings.job.services:
        main = messages.ProgramOffer("main", (7000, 7001), 7002)
        programs = (main,) if workers else ()
        if number in settings.job.services[0].nodes(settings.nodes):
            programs += (messages.ProgramOffer("server", (7003,), 7004),)
    return hello(number, settings.nodes, rank=number, workers=workers, programs=programs)


def workers_of_kind(kind: str, number: int) -> int:
    """Return the number of the main program's workers on a node."""
    return 0 if kind == "apart" and number else WORKERS


class End:
    """One end of a connection, in place of a socket."""

    family = socket.AF_INET

    def __init__(self, number: int) -> None:
        self.number = number
        self.inbox = bytearray()
        self.is_open = True
        self.other = self

    @classmethod
    def pair(cls, numbers: Iterable[int]) -> tuple["End", "End"]:
        one, other = map(cls, (next(iter(numbers)), next(iter(numbers))))
        one.other, other.other = other, one
        return one, other

    def fileno(self) -> int:
        return self.number

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.0", 29500

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self.inbox:
            if self.other.is_open:
                raise BlockingIOError
            return b""
        data = bytes(self.inbox[:size])
        if not flags & socket.MSG_PEEK:
            del self.inbox[:size]
        return data

    def send(self, data: bytes, _flags: int = 0) -> int:
        if not self.other.is_open:
            raise BrokenPipeError
        free = max(0, BUFFER_BYTES - len(self.other.inbox))
        if not free:
            raise BlockingIOError
        self.other.inbox += data[:free]
        return min(free, len(data))

    def close(self) -> None:
        self.is_open = False

    @property
    def is_readable(self) -> bool:
        return bool(self.inbox) or not self.other.is_open

    @property
    def is_writable(self) -> bool:
        return not self.other.is_open or len(self.other.inbox) < BUFFER_BYTES


class Port:
    """Replaces the rendezvous port."""

    opened: list["Port"] = []  # noqa: RUF012 - the port of the session that starts
    number = 29500

    def __init__(self) -> None:
        self.pending: list[End] = []
        self.is_open = True

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (LISTENER,) if self.is_open else ()

    def accepted(self) -> Iterable[tuple[End, tuple[str, int]]]:
        while self.pending:
            yield self.pending.pop(0), ("10.0.0.9", 5000)

    def close(self) -> None:
        self.is_open = False

    release = close


class SessionLoop(Loop[events.Event]):
    """The product's loop, which never waits; peers act instead."""

    def __init__(self, session: "Session") -> None:
        super().__init__(lambda: session.now)
        self._epoll.close()
        self._epoll = cast("Any", session)
        self.session = session


class OutgoingOfSession(Channel[messages.FromCoordinator]):
    """A member's channel to node 0, after the handshake."""

    address = ADDRESS
    port = 29500


class Dialer:
    """Replaces the product's dialer."""

    addresses = (ADDRESS,)

    def __init__(
        self, node: JoiningNode, loop: SessionLoop, _ready: object, *, retries_forever: bool = False
    ) -> None:
        self._session = loop.session
        self._began = self.due = loop.clock()
        self._gives_up = (
            NEVER if retries_forever else self._began + node.settings.job.join.rdzv_timeout
        )

    def elapsed(self, now: float) -> float:
        return now - self._began

    def dial(self, now: float) -> OutgoingOfSession | None:
        if now < self.due:
            return None
        if now >= self._gives_up:
            raise RendezvousError("node 0 does not answer")
        self.due = now + 0.5
        end = self._session.accept()
        return None if end is None else OutgoingOfSession(FROM_COORDINATOR, cast("Any", end))

    def reject(self, outgoing: OutgoingOfSession, _why: str, now: float) -> None:
        outgoing.close()
        self.due = now + 0.5

    def close(self) -> None:
        pass


class Workers:
    """Replaces the fork server and the relay."""

    foreground = False

    def __init__(self, session: "Session") -> None:
        self._session = session
        self.alive: set[LocalRank] = set()
        self.plan: NodePlan | None = None

    def _report(self, event: Callable[..., events.Event], *args: Any) -> None:
        self._session.loop.add([event(*args, at=self._session.now)])

    def start(self, plan: NodePlan, ranks: Iterable[LocalRank]) -> None:
        self.plan = plan
        if len(plan.workers) > 8:
            raise Unsafe(f"starts {len(plan.workers)} workers")
        self._begin(ranks)

    def _begin(self, ranks: Iterable[LocalRank]) -> None:
        for rank in sorted(ranks):
            self.alive.add(rank)
            self._report(events.WorkerStarted, rank, 100 + rank, "")

    def end(self, rank: LocalRank, exit_status: outcome.ExitStatus) -> None:
        if rank in self.alive:
            self.alive.discard(rank)
            self._report(events.WorkerEnded, rank, exit_status)

    def perform(self, action: actions.Action) -> None:
        match action:
            case actions.SignalWorkers(ranks, number):
                for rank in sorted(ranks):
                    self.end(rank, outcome.Killed(number))
            case actions.StartWorkers(ranks):
                self._begin(ranks)
            case actions.RestartWorker(rank):
                self._begin([rank])
            case actions.CollectOutput(rank):
                self._report(events.OutputEnded, rank, "ValueError: it", "")
            case actions.CleanUp():
                self._report(events.CleanedUp, ())
            case actions.AwaitLeftovers():
                self._report(events.NoLeftovers)
            case actions.PrintNotice(text):
                self._session.print_line(text)
            case actions.HoldRanks():
                self._report(events.RanksHeld, 1)
            case actions.ReleaseRanks(mark) if mark:
                for rank in sorted(self.alive):
                    self._report(events.RankSaved, rank, mark)
            case _:
                pass

    def print_stacks(self, text: str) -> None:
        self._session.seen["stacks"] += 1
        self._session.print_line(text)

    def reap(self) -> None:
        pass

    start_pending = pause = reap

    def logs(self, _plan: NodePlan) -> dict[LocalRank, str]:
        return {}


class Attempts:
    """Replaces ``JobAttempts``; plans, texts and records are the product's."""

    def __init__(self, session: "Session", node: LocalNode) -> None:
        self._session, self._node = session, node
        self._log = EventLog(lambda _rank, _line: None, lambda: session.now, 1e9)

    def begin(self, world: World) -> Attempt:
        self._session.seen["world"] += 1
        if world.attempt:
            self._session.seen["restart"] += 1
        plan = self._node.plan(world)
        self._log.attempt_started(plan)
        list(plan.all_warnings())
        return Attempt(self._node.job, plan, foreground=False)

    def record_changes(self, attempt: Attempt, at: float) -> None:
        self._session.attempt = attempt
        self._log.record_changes(attempt, at)

    def oom_kills(self) -> str:
        return ""

    def check(self, now: float) -> Iterable[events.Event]:
        return [events.NodeChecked(self._session.dice.choice(["", "", "it"]), now)]

    def attempt_failed(self, ended: Outcome) -> None:
        self._log.attempt_failed(ended)
        self._session.print_line(restart_text(ended, 3))

    def job_ended(self, ended: Outcome) -> None:
        self._log.job_ended(ended)


class Commands:
    """The product's query service on a node with fixed answers."""

    def __init__(self, session: "Session") -> None:
        self.progress = JobProgress(0.0)
        ports = query_service.AgentCallbacks(
            lambda message: session.nodes.send(message),  # noqa: PLW0108 - it is set later
            self._answer,
            lambda _query: True,
            lambda: session.nodes.node_zero,
        )
        self.service = query_service.QueryService(ports)
        session.loop.add_timer(self.service)

    def _answer(
        self, query: queries.Query, then: query_service.OnAnswer, _now: float
    ) -> Iterable[events.Event]:
        return then(queries.Answer(query.number, 0, "n0", problem="is busy"))

    def take(self, event: events.QueryEvent) -> Iterable[events.Event]:
        assert isinstance(event, events.QueryReceived)
        return self.service.take(event)

    def collect_stacks(self, now: float) -> Iterable[events.Event]:
        return [events.StacksCollected((), now)]


class Session:
    """One agent from its start to its end, and its peers; also replaces epoll."""

    rank = 0
    """The node rank of the agent."""

    def __init__(self, seed: int, kind: str, steps: int = 30) -> None:
        self.dice = Random(seed)
        self.kind = kind
        self.settings = terms_of_kind(kind)
        self.now = 100.0
        self.printed: list[str] = []
        self.seen = Counter[str]()
        """How often each state was reached."""
        self.attempt: Attempt | None = None
        self.numbers = count(10)
        self.ends: dict[int, End] = {}
        """The agent's ends of connections."""
        self._watched: dict[int, int] = {}
        self._polls = 0
        self._steps = steps
        self._final_steps = iter([self.end_peers, self.end_agent])
        self.loop = SessionLoop(self)
        self.workers = Workers(self)
        self.nodes: Membership
        self.commands: Commands

    # What the peers do.

    def step(self) -> None:
        """Have a peer do something."""

    def end_peers(self) -> None:
        """Have all peers disconnect."""

    def accept(self) -> End | None:
        """Return the agent's end of a new connection to node 0, if node 0 accepts it."""

    def end_agent(self) -> None:
        """Have its user end the agent."""
        self.loop.add([SignalReceived(SIGTERM, self.now)])

    # The agent.

    def run(self) -> None:
        """Run the agent to its end.

        Raises:
            Unsafe: the agent spins, or prints too much.

        """
        began = process_time()
        try:
            self._run_agent()
        except LauncherError as error:
            self.seen["refused"] += 1
            self.print_line(str(error))
        self.nodes.leave()
        if process_time() - began > MAX_SECONDS:
            raise Unsafe(f"is busy for {process_time() - began:.1f} s")
        if len(self.printed) > MAX_PRINTED:
            raise Unsafe(
                f"prints {len(self.printed)} lines: {Counter(self.printed).most_common(2)}"
            )

    def _run_agent(self) -> None:
        where = JoinContext(
            notice=self.print_line,
            lease_clock=lambda: self.now,
            interfaces=dict,
            resolves_for_others=lambda *_: True,
        )
        introduction = hello_of_kind(self.kind, self.rank)
        self.nodes = Membership(JoiningNode(self.settings, introduction, b"", where), self.loop)
        self.commands = Commands(self)
        attempts: Any = Attempts(self, node_of_kind(self.kind, self.rank))
        one = Agent(
            attempts,
            cast("Any", self.workers),
            self.nodes,
            cast("Any", self.commands),
            loop=self.loop,
            wall_clock=lambda: 1e9 + self.now,
        )
        joined = wait_for_world(self.nodes, self.loop, None)
        while isinstance(joined, World):
            outcome_of_job = one.run(joined)
            if outcome_of_job is not None:
                self.seen["done"] += 1
                attempts.job_ended(outcome_of_job)
                self.check_outcome(outcome_of_job)
                self.print_line(text_of(Report(outcome_of_job)))
                return
            self.nodes.rejoin()
            joined = wait_for_world(self.nodes, self.loop, None)
        self.print_line(text_of(report_before_start(joined)))

    def record_answer(self, body: bytes) -> None:
        self.seen["query"] += bool(body)

    def check_outcome(self, ended: Outcome) -> None:
        """Check the outcome of the job."""

    def print_line(self, text: str) -> None:
        self.printed.append(text)

    def end_a_worker(self) -> None:
        """Let a worker of the agent end."""
        if self.workers.alive:
            rank = self.dice.choice(sorted(self.workers.alive))
            exit_statuses: list[outcome.ExitStatus] = [
                outcome.Exited(0),
                outcome.Exited(1),
                outcome.Killed(11),
            ]
            exit_status = self.dice.choice(exit_statuses)
            self.seen["failure"] += not exit_status.succeeded
            self.workers.end(rank, exit_status)

    # Replacement of epoll.

    def register(self, descriptor: int, mask: int) -> None:
        self._watched[descriptor] = mask

    modify = register

    def unregister(self, descriptor: int) -> None:
        del self._watched[descriptor]

    def close(self) -> None:
        pass

    def poll(self, seconds: float | None, _most: int) -> list[tuple[int, int]]:
        """Return ready descriptors; have peers act while none is ready."""
        self._polls += 1
        if self._polls > MAX_POLLS:
            raise Unsafe("spins")
        if (ready := self._ready()) or seconds == 0:
            return ready
        if self._steps:
            self._steps -= 1
            self.step()
            passes = self.dice.choice([0.0, 0.0, 0.0, 0.01, 0.3, 1.0, 1.0, 7.0])
            self.now += passes if seconds is None else min(seconds, passes)
        elif (ending := next(self._final_steps, None)) is not None:
            ending()
        elif seconds is None:
            raise Unsafe("waits for ever")
        else:
            self.now += seconds
        return self._ready()

    def _ready(self) -> list[tuple[int, int]]:
        return [
            (number, 1) for number, mask in self._watched.items() if self._is_ready(number, mask)
        ]

    def _is_ready(self, number: int, mask: int) -> bool:
        end = self.ends.get(number)
        if end is None:
            return self.has_pending_connection()
        return bool((mask & EPOLLIN and end.is_readable) or (mask & EPOLLOUT and end.is_writable))

    def has_pending_connection(self) -> bool:
        return False


class Peer:
    """A peer: its end of a connection, and the messages that it has received."""

    def __init__(self, session: Session, end: End, decoder: Decoder[Any]) -> None:
        self.session = session
        self.end = end
        self.received: list[Any] = []
        self._decoder = decoder
        self.skips = 0
        """Bytes of the handshake that have not come yet."""

    def receive(self) -> list[Any]:
        """Return the messages that have come.

        Raises:
            Unsafe: no agent accepts such a message.

        """
        inbox = self.end.inbox
        skipped = min(self.skips, len(inbox))
        del inbox[:skipped]
        self.skips -= skipped
        try:
            came = list(taken(self._decoder, inbox))
        except Exception as error:
            raise Unsafe(f"the agent sends what no other takes: {error}") from error
        self.received += came
        return came

    def send(self, data: bytes) -> None:
        if self.end.is_open and self.end.other.is_open:
            self.end.other.inbox += data

    def send_body(self, body: bytes) -> None:
        self.send(as_frame(body))

    def close(self) -> None:
        self.end.close()
