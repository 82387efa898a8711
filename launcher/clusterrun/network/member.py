"""A member's side of its connection to node 0: messages, heartbeats, the lease of its workers."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import get_args

from msgspec import Struct

from clusterrun.bounds import MAX_WORKERS
from clusterrun.job.job import MAIN
from clusterrun.network.channel import ChannelEnd, OutgoingChannel
from clusterrun.network.handshake import BadFrame
from clusterrun.network.joining_node import JoiningNode
from clusterrun.planning.plan import World
from clusterrun.policy.heartbeat import ClockOffset, HeartbeatTimer
from clusterrun.policy.leases import MemberLease
from clusterrun.policy.messages import (
    MAX_KEPT_ATTEMPTS,
    FromCoordinator,
    GivenUp,
    Heartbeat,
    HeartbeatAnswer,
    Hello,
    KeepWaiting,
    NextAttempt,
    Notice,
    Order,
    Paused,
    Refused,
    SuspensionPossible,
    Verdict,
    WorldFormed,
)
from clusterrun.policy.queries import Answer, EndOfAnswers, Query
from clusterrun.policy.settings import RendezvousSettings, silence


class MemberPhase(Enum):
    """How far a member is in its job."""

    JOINING = "joining"
    """It has introduced itself, and does not know whether this is node 0 of its job."""

    WAITING = "waiting"
    """It waits for a place in a job that runs."""

    WORKING = "working"
    """It has, or has had, a place."""


ALLOWED: Mapping[MemberPhase, tuple[type, ...]] = {
    MemberPhase.JOINING: (Notice, Refused, WorldFormed, KeepWaiting),
    MemberPhase.WAITING: (Notice, WorldFormed, Paused, Verdict, GivenUp, SuspensionPossible),
    MemberPhase.WORKING: (Notice, Paused, *get_args(Order), Query, Answer, EndOfAnswers),
}
"""What node 0 sends in each phase, beside answers to heartbeats: anything else is not clusterrun's."""


class Loss(Struct, frozen=True):
    """Node 0 is lost to this member."""

    how: str
    """Of node 0, for messages: "is gone"."""
    is_silent: bool = False
    """It may live, and go on without this node."""


class Member:
    """One that has introduced itself to node 0, until either ends."""

    def __init__(
        self, channel: OutgoingChannel, node: JoiningNode, hello: Hello, now: float
    ) -> None:
        """Introduce the node; ``now`` is by the clock of the agent's loop."""
        self.channel = channel
        self.phase = MemberPhase.JOINING
        self._node = node
        self._hello = hello
        self._attempt = -1
        """That of the newest world."""
        self._has_lease = node.settings.job.survives_node_loss
        self._clock = node.outside.lease_clock
        self._lease = MemberLease(node.settings.rhythm)
        self._offset = ClockOffset()
        self._heartbeat = HeartbeatTimer(node.settings.rhythm, now)
        channel.give_up_after(node.settings.node_zero_silence)
        channel.send(hello)

    @property
    def due(self) -> float:
        """When to call ``beat``, and to ask for ``loss``."""
        return self._heartbeat.due

    def date(self, age: float) -> float | None:
        """Return when something happened ``age`` seconds ago, by node 0's clock; None if not known."""
        return self._offset.to_node_zero(self._clock() - age)

    def receive(self, now: float) -> Iterable[FromCoordinator]:
        """Yield what has come, but for answers to heartbeats.

        Raises:
            BadFrame: the other side sent what no node 0 sends, or not now.

        """
        messages = self.channel.receive()
        if messages:
            self._heartbeat.received(now)
        for message in messages:
            if isinstance(message, HeartbeatAnswer):
                self._answered(message)
                continue
            if not self._has_place(message):
                raise BadFrame(f"sent a message that has no place here ({type(message).__name__})")
            match message:
                case KeepWaiting():
                    self.phase = MemberPhase.WAITING
                case WorldFormed(world) | NextAttempt(world):
                    check_world(world, self._hello, self._node.settings, self._attempt)
                    self._attempt, self.phase = world.attempt, MemberPhase.WORKING
                case _:
                    pass
            yield message

    def _has_place(self, message: FromCoordinator) -> bool:
        """Return whether node 0 may send this now, in such a job."""
        needs_others = isinstance(message, KeepWaiting | GivenUp)
        may_come = not needs_others or self._node.settings.job.survives_node_loss
        return may_come and isinstance(message, ALLOWED[self.phase])

    def begin_work(self, now: float) -> None:
        """Let workers run for the first time, after what may have taken seconds."""
        self._heartbeat.received(now)
        if self._has_lease:
            self._node.outside.hold_connection(self.channel.fileno())
            self._node.outside.renew_lease(self._lease.ends)

    def pauses(self, now: float, *, paused: bool) -> None:
        """Expect nothing of node 0, whose user has paused it, or go on with it."""
        if paused:
            self._heartbeat.pause()
        else:
            self._heartbeat.resume(now)

    def beat(self, now: float) -> None:
        """Send a heartbeat if it is due."""
        if self._heartbeat.is_heartbeat_due(now):
            self.channel.send(Heartbeat(self._clock()))

    def loss(self, now: float) -> Loss | None:
        """Return how node 0 is lost; None if it is not."""
        if self.channel.end not in {None, ChannelEnd.UNREACHABLE}:
            return Loss(ChannelEnd.CLOSED.value)
        if self.channel.end is ChannelEnd.UNREACHABLE or self._heartbeat.is_silent(now):
            return Loss(silence(self._node.settings.node_zero_silence), is_silent=True)
        return None

    def _answered(self, answer: HeartbeatAnswer) -> None:
        # An answer to what was not sent yet would be a lease that nobody has given.
        now = self._clock()
        sent = min(answer.to, now)
        self._offset.answered(sent, now, answer.at)
        is_newer = self._lease.answered(sent)
        if is_newer and self._has_lease and self.phase is MemberPhase.WORKING:
            self._node.outside.renew_lease(self._lease.ends)


def check_world(world: World, hello: Hello, settings: RendezvousSettings, attempt: int) -> None:
    """Check that this node can be in a world that has come; ``attempt``: the last one, -1 for none.

    Raises:
        BadFrame: no node 0 of this job has sent it.

    """
    fits = (
        world.local_size == hello.workers
        and world.node_rank < world.nodes <= settings.nodes
        and world.first_rank + world.local_size <= world.size <= world.nodes * MAX_WORKERS
        and world.first_role_rank + world.local_size <= world.role_size <= world.size
        and world.run_id == (hello.run_id or world.run_id)
        and attempt in {-1, world.attempt - 1}
        and (settings.job.survives_node_loss or world.attempt <= settings.job.failures.max_restarts)
        and world.kept_attempts <= MAX_KEPT_ATTEMPTS
        and world.master_port is not None
        and _has_programs(world, hello, settings)
    )
    if not fits:
        raise BadFrame("sent a world in which this node has no place")


def _has_programs(world: World, hello: Hello, settings: RendezvousSettings) -> bool:
    """Return whether a world has the job's programs, with the workers that this node has of each."""
    services = settings.job.services
    names = [MAIN, *(each.name for each in services)] if services else []
    if [each.name for each in world.programs] != names:
        return False
    own, first = {each.name: [each.ports] for each in hello.programs}, 0
    for program in world.programs:
        ranks = [each.node_rank for each in program.nodes]
        here = [each.ports for each in program.nodes if each.node_rank == world.node_rank]
        if (
            program.first != first
            or ranks != sorted({*ranks})
            or any(each.workers != len(each.ports) for each in program.nodes)
            or here != own.get(program.name, [])
        ):
            return False
        first += program.size
    return not services or world.programs[0].size == world.size
