"""A member's side of the connection to node 0: messages, heartbeats, and the lease of its workers."""

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
    """The state of a member."""

    JOINING = "joining"
    """It has sent its ``Hello``; the peer may be node 0 of another job."""

    WAITING = "waiting"
    """It waits to be admitted to a running job."""

    WORKING = "working"
    """It has been in a world."""


ALLOWED_MESSAGES: Mapping[MemberPhase, tuple[type, ...]] = {
    MemberPhase.JOINING: (Notice, Refused, WorldFormed, KeepWaiting),
    MemberPhase.WAITING: (Notice, WorldFormed, Paused, Verdict, GivenUp, SuspensionPossible),
    MemberPhase.WORKING: (Notice, Paused, *get_args(Order), Query, Answer, EndOfAnswers),
}
"""The messages that node 0 may send in each phase, besides ``HeartbeatAnswer``."""


class NodeZeroLoss(Struct, frozen=True):
    """How a member has lost node 0."""

    how: str
    """For messages, with node 0 as the subject: for example "is gone"."""
    is_silent: bool = False
    """Node 0 may be alive, and the job may continue without this node."""
    is_closed: bool = False
    """The connection has ended."""


class Member:
    """A connection to node 0 on which this node has sent its ``Hello``."""

    def __init__(
        self, channel: OutgoingChannel, node: JoiningNode, hello: Hello, now: float
    ) -> None:
        """Send ``hello``; ``now`` is a time of the agent's loop."""
        self.channel = channel
        self.phase = MemberPhase.JOINING
        self._node = node
        self._hello = hello
        self._attempt: int | None = None
        """The number of the current attempt; None before the first world."""
        self._has_lease = node.settings.job.survives_node_loss
        self._clock = node.context.lease_clock
        self._lease = MemberLease(node.settings.rhythm)
        self._offset = ClockOffset()
        self._heartbeat = HeartbeatTimer(node.settings.rhythm, now)
        channel.limit_silence(node.settings.node_zero_silence)
        channel.send(hello)

    @property
    def due(self) -> float:
        """When to call ``send_due_heartbeat`` and ``loss``."""
        return self._heartbeat.due

    def node_zero_time(self, age: float) -> float | None:
        """Return the time ``age`` seconds ago by node 0's clock; None if the offset is not known yet."""
        return self._offset.to_node_zero(self._clock() - age)

    def receive(self, now: float) -> Iterable[FromCoordinator]:
        """Yield the received messages, except answers to heartbeats.

        Raises:
            BadFrame: the peer sent a message that node 0 never sends, or not in this phase.

        """
        messages = self.channel.receive()
        if messages:
            self._heartbeat.received(now)
        for message in messages:
            if isinstance(message, HeartbeatAnswer):
                self._handle_answer(message)
                continue
            if not self._is_allowed(message):
                raise BadFrame(f"sent an unexpected message ({type(message).__name__})")
            match message:
                case KeepWaiting():
                    self.phase = MemberPhase.WAITING
                case WorldFormed(world) | NextAttempt(world):
                    check_world(world, self._hello, self._node.settings, self._attempt)
                    self._attempt, self.phase = world.attempt, MemberPhase.WORKING
                case _:
                    pass
            yield message

    def _is_allowed(self, message: FromCoordinator) -> bool:
        """Return whether node 0 may send this message in this phase."""
        if isinstance(message, KeepWaiting | GivenUp) and not self._has_lease:
            return False
        return isinstance(message, ALLOWED_MESSAGES[self.phase])

    def begin_work(self, now: float) -> None:
        """Start the lease of the workers; the agent may have done nothing for seconds before."""
        self._heartbeat.received(now)
        if self._has_lease:
            self._node.context.hold_connection(self.channel.fileno())
            self._node.context.renew_lease(self._lease.ends)

    def set_paused(self, now: float, *, paused: bool) -> None:
        """Expect no messages while node 0 is paused by its user; expect them again afterwards."""
        if paused:
            self._heartbeat.pause()
        else:
            self._heartbeat.resume(now)

    def send_due_heartbeat(self, now: float) -> None:
        """Send a heartbeat if one is due."""
        if self._heartbeat.is_heartbeat_due(now):
            self.channel.send(Heartbeat(self._clock()))

    def loss(self, now: float) -> NodeZeroLoss | None:
        """Return how node 0 was lost; None if it is not lost."""
        if self.channel.end not in {None, ChannelEnd.UNREACHABLE}:
            return NodeZeroLoss(ChannelEnd.CLOSED.value, is_closed=True)
        if self.channel.end is ChannelEnd.UNREACHABLE or self._heartbeat.is_silent(now):
            return NodeZeroLoss(silence(self._node.settings.node_zero_silence), is_silent=True)
        return None

    def _handle_answer(self, answer: HeartbeatAnswer) -> None:
        # An answer must not extend the lease beyond a heartbeat sent now.
        now = self._clock()
        sent = min(answer.to, now)
        self._offset.answered(sent, now, answer.at)
        is_newer = self._lease.answered(sent)
        if is_newer and self._has_lease and self.phase is MemberPhase.WORKING:
            self._node.context.renew_lease(self._lease.ends)


def check_world(
    world: World, hello: Hello, settings: RendezvousSettings, previous: int | None
) -> None:
    """Check a received world against this node's ``Hello``; ``previous`` is the last attempt's number.

    Raises:
        BadFrame: node 0 of this job would not send this world.

    """
    fits = (
        world.local_size == hello.workers
        and world.node_rank < world.nodes <= settings.nodes
        and world.first_rank + world.local_size <= world.size <= world.nodes * MAX_WORKERS
        and world.first_role_rank + world.local_size <= world.role_size <= world.size
        and world.run_id == (hello.run_id or world.run_id)
        and previous in {None, world.attempt - 1}
        and (settings.job.survives_node_loss or world.attempt <= settings.job.failures.max_restarts)
        and world.kept_attempts <= MAX_KEPT_ATTEMPTS
        and world.master_port is not None
        and _has_programs(world, hello, settings)
    )
    if not fits:
        raise BadFrame("sent a world that does not fit this node")


def _has_programs(world: World, hello: Hello, settings: RendezvousSettings) -> bool:
    """Return whether a world has the job's programs, and this node's ports are those of its ``Hello``."""
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
