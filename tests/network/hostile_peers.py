"""Members that send node 0 anything, and a node 0 that sends a member anything: see ``hostile_sessions``.

Most messages are valid, so jobs make progress. The others have a wrong field, are not allowed now, are
garbage, or are sent a hundred times; or the connection is closed.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Any

from clusterrun.bounds import GlobalRank, NodeRank
from clusterrun.job.job import MAIN
from clusterrun.network.channel import FROM_COORDINATOR, FROM_MEMBERS
from clusterrun.planning.plan import ProgramOnNode, ProgramWorld, World
from clusterrun.policy import answers, messages, outcome, queries
from clusterrun.policy.stacks import StackGroup
from clusterrun.signals import SignalReceived
from msgspec.msgpack import Encoder
from msgspec.structs import replace

from tests.network.clients import OPENING
from tests.network.frames import FROM_A_COORDINATOR, FROM_A_MEMBER, as_frame, strange
from tests.network.hostile_sessions import (
    MAX_PRINTED,
    WORKERS,
    End,
    Peer,
    Port,
    Session,
    Unsafe,
    hello_of_kind,
    workers_of_kind,
)
from tests.network.nodes import result
from tests.network.random_messages import changed, drawing

SIGQUIT = 3
MANY = 200
"""How often a message is repeated, unless it is long."""

MAX_BYTES = 1 << 17

ENCODER = Encoder()
SLOW_TO_SEARCH = "gloo" * 5000
FAILURE = "Traceback (most recent call last):\nValueError: it"


def hostile(
    dice: Random, valid: Callable[[], Any], kind: Any, frames: list[bytes]
) -> Iterator[bytes]:
    """Yield the bytes that a peer sends at once; b"" closes its connection."""
    what = dice.random()
    if what < 0.66:
        body = ENCODER.encode(valid())
    elif what < 0.81:
        body = ENCODER.encode(changed(dice, changed(dice, valid())))
    elif what < 0.92:
        body = ENCODER.encode(drawing(kind)(dice))
    elif what < 0.95:
        message = valid() if dice.random() < 0.5 else drawing(kind)(dice)
        frame = as_frame(ENCODER.encode(message))
        yield frame * max(1, min(MANY, MAX_BYTES // len(frame)))
        return
    elif what < 0.975:
        yield from islice(strange(dice, frames), 3)
        return
    else:
        yield b""
        return
    yield as_frame(body)


class Member(Peer):
    """A member that has connected to node 0."""

    def __init__(self, session: "NodeZeroSession", number: int, end: End) -> None:
        super().__init__(session, end, FROM_COORDINATOR)
        self.number = number
        self.world: World | None = None
        self.is_stopped = self.is_done = self.has_sent_hello = self.has_ended = False
        self.asked: list[queries.Query] = []
        self.orders: list[Any] = []
        self.notices = 0
        self.skips = len(OPENING)
        self.send(OPENING)

    def handle_messages(self) -> None:
        for each in self.receive():
            match each:
                case messages.WorldFormed(world) | messages.NextAttempt(world):
                    self.world, self.is_stopped, self.is_done = world, False, False
                case messages.Stop():
                    self.is_stopped = True
                case queries.Query():
                    self.asked.append(each)
                case messages.CheckNode() | messages.HoldRanks() | messages.SaveAt():
                    self.session.seen[f"{type(each).__name__}"] += 1
                    self.orders.append(each)
                case messages.KeepWaiting():
                    self.session.seen["waits"] += 1
                case messages.Verdict():
                    self.has_ended = True
                case messages.Notice():
                    self.notices += 1
                case _:
                    pass

    def valid_message(self) -> Any:
        """Return what an agent could send now."""
        dice, world = self.session.dice, self.world
        if not self.has_sent_hello:
            self.has_sent_hello = True
            own = hello_of_kind(self.session.kind, self.number)
            if dice.random() < 0.1:
                return replace(own, programs=drawing(tuple[messages.ProgramOffer, ...])(dice))
            return own
        if world is None:
            beat = messages.Heartbeat(self.session.now)
            return dice.choice([beat, beat, messages.RequestSuspension("clusterrun suspend")])
        if self.asked:
            return self._answer(self.asked.pop())
        if self.orders:
            return self._obey(self.orders.pop())
        ranks = range(world.first_rank, world.first_rank + min(world.local_size, 8))
        if self.is_stopped and not self.is_done:
            return self._done(ranks, outcome.Killed(15), stopped_by_us=True)
        attempt, rank = world.attempt, dice.choice(ranks or [0])
        if self.is_done or dice.random() < 0.3:
            return messages.Heartbeat(self.session.now)
        if dice.random() < 0.25:
            exit_status = dice.choice([outcome.Exited(0), outcome.Exited(1)])
            return self._done(ranks, exit_status, stopped_by_us=False)
        tail = SLOW_TO_SEARCH if dice.random() < 0.03 else FAILURE
        code = 0 if dice.random() < 0.15 else 1
        failed = self._result(rank, outcome.Exited(code), tail=tail)
        asks = queries.Query(dice.randrange(9), dice.choice(list(queries.Topic)), 1.2)
        return dice.choice(
            [
                messages.FirstFailure(attempt, failed, self.session.now),
                messages.FirstFailure(attempt, failed, self.session.now),
                messages.RanksSucceeded(attempt),
                messages.RanksExited(attempt, (messages.DatedExit(rank, self.session.now),)),
                messages.EndedExternally(attempt, outcome.Interrupted(15)),
                messages.EndedExternally(attempt, outcome.HelperFailed("relay", "exited", 0)),
                messages.Idle(attempt, 5.0),
                messages.Idle(attempt, 0.0, still=5.0),
                messages.RankCallsSuspend(attempt),
                messages.Paused(paused=dice.random() < 0.5),
                messages.RequestSuspension("SIGUSR2"),
                messages.RequestStacks(),
                messages.WorkersReady(attempt, (2 * WORKERS + self.number,)),
                messages.ProgramEnded(attempt, MAIN),
                asks,
            ]
        )

    def _result(
        self, rank: int, exit_status: outcome.ExitStatus, **values: Any
    ) -> outcome.WorkerResult:
        return result(rank, exit_status=exit_status, host=f"n{self.number}", **values)

    def _done(
        self, ranks: range, exit_status: outcome.ExitStatus, *, stopped_by_us: bool
    ) -> messages.FromMember:
        self.is_done = True
        assert self.world is not None
        results = (
            messages.DatedResult(self._result(it, exit_status, stopped_by_us=stopped_by_us), None)
            for it in ranks
        )
        return messages.Done(self.world.attempt, tuple(results), None)

    def _answer(self, query: queries.Query) -> messages.FromMember:
        assert self.world is not None
        body: Any = answers.NodeStacks((StackGroup((self.world.first_rank,), "in train"),))
        if query.topic is queries.Topic.RANKS:
            body = answers.NodeRanks(1, 0, "running", ())
        return queries.Answer(
            query.number, self.world.node_rank, f"n{self.number}", ENCODER.encode(body)
        )

    def _obey(self, order: Any) -> messages.FromMember:
        match order:
            case messages.HoldRanks(attempt):
                return messages.HoldReport(attempt, 3)
            case messages.SaveAt(attempt, mark):
                return messages.SaveReport(attempt, mark, (), ())
            case _:
                return messages.CheckResult("")


class NodeZeroSession(Session):
    """A session of node 0 with such members."""

    rank = 0

    def __init__(self, seed: int, kind: str, steps: int = 30) -> None:
        super().__init__(seed, kind, steps)
        self.port = Port()
        Port.opened.append(self.port)
        self.members: list[Member] = []
        self._tokens = 0

    def has_pending_connection(self) -> bool:
        return bool(self.port.pending) and self.port.is_open

    def step(self) -> None:
        dice = self.dice
        missing = self.settings.nodes - 1 - sum(it.end.is_open for it in self.members)
        if missing > 0 and self.port.is_open and dice.random() < 0.7:
            self._connect_member()
            return
        for each in self.members:
            each.handle_messages()
        what = dice.random()
        if what < 0.12:
            self.end_a_worker()
        elif what < 0.14:
            self.loop.add([SignalReceived(SIGQUIT, self.now)])
        elif what < 0.15:
            query = queries.Query(1, queries.Topic.RANKS, 1.2)
            self.loop.add(self.commands.service.ask(query, self.record_answer, self.now))
        else:
            for each in self.members:
                if each.end.is_open:
                    self._send_hostile(each)

    def check_outcome(self, ended: outcome.Outcome) -> None:
        failed = any(not it.exit_status.succeeded for it in ended.results if not it.service)
        is_suspended = isinstance(ended.reason, outcome.Suspended)
        if ended.exit_code == 0 and failed and not (is_suspended and self.seen["SaveAt"]):
            raise Unsafe(f"succeeds by {ended.reason}, though a rank has failed")

    def _connect_member(self) -> None:
        one, other = End.pair(self.numbers)
        self.ends[one.number] = one
        self.port.pending.append(one)
        taken = {it.number for it in self.members if it.end.is_open}
        number = next(it for it in range(1, 99) if it not in taken)
        self.members.append(Member(self, number, other))

    def _send_hostile(self, member: Member) -> None:
        for data in hostile(self.dice, member.valid_message, messages.FromMember, FROM_A_MEMBER):
            if data:
                member.send(data)
            else:
                member.close()

    def end_peers(self) -> None:
        for each in self.members:
            each.handle_messages()
            each.close()

    def run(self) -> None:
        super().run()
        for each in self.members:
            if each.notices > MAX_PRINTED:
                raise Unsafe(f"{each.notices} lines for node {each.number}")


class NodeZero(Peer):
    """A node 0 to which the member has connected."""

    def __init__(self, session: "MemberSession", end: End) -> None:
        super().__init__(session, end, FROM_MEMBERS)
        self.attempt = -1
        self.waits = self.is_stopped = self.is_done = False
        self.beats: list[float] = []
        self.asked: list[int] = []

    def handle_messages(self) -> None:
        for each in self.receive():
            match each:
                case messages.Hello(at=at) | messages.Heartbeat(at):
                    self.beats.append(at)
                case messages.Done(attempt):
                    self.is_done = attempt == self.attempt
                case queries.Query(number):
                    self.asked.append(number)
                case _:
                    pass

    def _world(self, attempt: int) -> World:
        self.attempt, self.is_stopped, self.is_done = attempt, False, False
        settings, kind = self.session.settings, self.session.kind
        nodes = settings.nodes - settings.elasticity.spares
        own = workers_of_kind(kind, 1)
        size = WORKERS + own * (nodes - 1)
        programs: tuple[ProgramWorld, ...] = ()
        if settings.job.services:
            programs = (
                ProgramWorld(MAIN, 0, self._with_offers(MAIN)),
                ProgramWorld("server", size, self._with_offers("server")),
            )
        return World(
            run_id="run",
            attempt=attempt,
            node_rank=NodeRank(1),
            nodes=nodes,
            first_rank=GlobalRank(WORKERS),
            local_size=own,
            size=size,
            first_role_rank=GlobalRank(WORKERS),
            role_size=size,
            master_addr="n0",
            master_port=29500,
            programs=programs,
        )

    def _with_offers(self, name: str) -> tuple[ProgramOnNode, ...]:
        """Return the nodes that have workers of a program."""
        return tuple(
            ProgramOnNode(NodeRank(rank), "10.0.0.1", len(each.ports), each.ports, each.master_port)
            for rank in (0, 1)
            for each in hello_of_kind(self.session.kind, rank).programs
            if each.name == name
        )

    def valid_message(self) -> Any:
        """Return what node 0 could send now."""
        dice, job = self.session.dice, self.session.settings.job
        if self.beats and dice.random() < 0.5:
            return messages.HeartbeatAnswer(self.beats.pop(), 5.0)
        if self.attempt < 0:
            if job.survives_node_loss and not self.waits and dice.random() < 0.4:
                self.waits = True
                return messages.KeepWaiting("n0")
            if self.waits and dice.random() < 0.4:
                return dice.choice(
                    [
                        messages.SuspensionPossible(),
                        messages.Paused(paused=False),
                        messages.GivenUp("it"),
                    ]
                )
            if dice.random() < 0.2:
                return messages.Notice("1 of 2 nodes have joined")
            return messages.WorldFormed(self._world(1 if self.waits else 0), "n0")
        attempt = self.attempt
        if self.is_done:
            cause = result(0, 1, tail=FAILURE)
            if dice.random() < 0.7 and attempt < 3:
                world = self._world(attempt + 1)
                return messages.NextAttempt(
                    world, outcome.WorkerFailed(cause), outcome.RestartProgress(attempt + 1)
                )
            reasons: list[outcome.Reason] = [outcome.WorkerFailed(cause), outcome.Succeeded()]
            return messages.Verdict(dice.choice(reasons), "")
        if not self.is_stopped and dice.random() < 0.3:
            self.is_stopped = True
            return messages.Stop(attempt, "rank 0 on n0 failed")
        if self.asked and dice.random() < 0.6:
            number = self.asked[-1]
            return dice.choice([queries.Answer(number, 0, "n0"), queries.EndOfAnswers(number)])
        return dice.choice(
            [
                messages.Notice("n2 has joined"),
                messages.Paused(paused=dice.random() < 0.3),
                messages.SuspensionPossible(),
                messages.HoldRanks(attempt),
                messages.SaveAt(attempt, 3),
                messages.CancelSuspension(attempt),
                messages.ServicesReady(attempt, ("server",)),
                messages.CheckNode(),
                messages.HeartbeatAnswer(self.session.now, 5.0),
                queries.Query(dice.randrange(9), dice.choice(list(queries.Topic)), 1.2),
            ]
        )


class MemberSession(Session):
    """A session of a member with such a node 0."""

    rank = 1

    def __init__(self, seed: int, kind: str, steps: int = 30) -> None:
        super().__init__(seed, kind, steps)
        self.node_zero: NodeZero | None = None
        self._has_no_peers = False

    def accept(self) -> End | None:
        if self._has_no_peers:
            return None
        one, other = End.pair(self.numbers)
        self.ends[one.number] = one
        self.node_zero = NodeZero(self, other)
        return one

    def step(self) -> None:
        dice, node_zero = self.dice, self.node_zero
        what = dice.random()
        if what < 0.1:
            self.end_a_worker()
        elif what < 0.12:
            self.loop.add([SignalReceived(SIGQUIT, self.now)])
        elif what < 0.16 and self.attempt is not None:
            query = queries.Query(1, queries.Topic.RANKS, 1.2)
            self.loop.add(self.commands.service.ask(query, self.record_answer, self.now))
        elif node_zero is not None and node_zero.end.is_open:
            node_zero.handle_messages()
            kind = messages.FromCoordinator
            for data in hostile(dice, node_zero.valid_message, kind, FROM_A_COORDINATOR):
                if data:
                    node_zero.send(data)
                else:
                    node_zero.close()

    def end_peers(self) -> None:
        self._has_no_peers = True
        if self.node_zero is not None:
            self.node_zero.close()
