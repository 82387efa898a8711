"""A member's side of its connection to the coordinator: messages, heartbeats, and the lease of workers."""

from collections.abc import Iterable

from msgspec import Struct

from clusterrun.loop import NEVER
from clusterrun.network.channel import How, Outgoing
from clusterrun.network.dialer import Dialer
from clusterrun.network.joining_node import JoiningNode
from clusterrun.network.joining_port import PortBusy
from clusterrun.network.seeking import Seeking
from clusterrun.policy.heartbeat import HeartbeatTimer, MemberLease
from clusterrun.policy.messages import (
    AgentMessage,
    FromCoordinator,
    Heartbeat,
    HeartbeatAnswer,
    NextAttempt,
    Paused,
    Verdict,
    WorldFormed,
)

NO_MAJORITY = "reaches no more than half of the nodes"
"""How a coordinator is lost that has no lease to give."""

HEARTBEATS_AT_LATEST = 2
"""Intervals within which a coordinator that runs sends something."""


class Dialing(Struct, eq=False):
    """It calls node 0, and knows no coordinator yet."""

    dialer: Dialer
    has_no_rank: bool = False
    """If node 0's address belongs to this machine, it is node 0."""
    busy: PortBusy | None = None
    """Why it is not, though the address does: another program has the port."""
    busy_until: float = NEVER
    """Until then that program must turn out to be node 0."""

    @property
    def due(self) -> float:
        return min(self.dialer.due, self.busy_until)

    def close(self) -> None:
        self.dialer.close()


class Joined:
    """It is a member: it waits for its place, or works."""

    def __init__(
        self,
        channel: Outgoing,
        node: JoiningNode,
        now: float,
        *,
        goes_back_to: Dialing | Seeking,
        has_worked: bool,
    ) -> None:
        """Begin as the member that has just introduced itself to a coordinator.

        Args:
            channel: to the coordinator, which has answered.
            node: this one.
            now: seconds of the agent's clock.
            goes_back_to: how the coordinator was found.
            has_worked: it has had a place, before another coordinator was lost.

        """
        terms = node.terms
        channel.give_up_after(terms.rhythm.timeout)
        self.channel = channel
        self.latest_end = NEVER
        """When it gives up, if the job has not begun."""
        self.goes_back_to: Dialing | Seeking | None = goes_back_to
        """If this is not its node 0, or is a successor that ends before it could go on; None: it has
        found the coordinator of its job."""
        self.is_refused = False
        """This is another job's node 0."""
        self._has_worked = has_worked
        """It has, or has had, a place."""
        self._outlives_nodes = terms.job.outlives_nodes
        self._rhythm = terms.rhythm
        self._renew_lease = node.outside.renew_lease
        self._since = now
        self._heartbeat = HeartbeatTimer(terms.rhythm, now)
        self._lease = MemberLease()
        """Of its workers, if the others may go on without it."""
        self._held: list[FromCoordinator] = []
        """An attempt for which there is no lease yet, and what came after it."""

    @property
    def due(self) -> float:
        return min(self._heartbeat.due, self.latest_end)

    @property
    def was_paused(self) -> bool:
        """Whether the coordinator has not answered since this agent was paused."""
        return self._lease.was_paused

    @property
    def heard_at(self) -> float:
        """When something of the coordinator was read last."""
        return self._heartbeat.heard_at

    def send(self, message: AgentMessage) -> None:
        self.channel.send(message)
        if isinstance(message, Paused):
            self._lease.was_paused = True

    def receive(self, now: float) -> list[FromCoordinator]:
        """Return what has come, but for answers to heartbeats and what waits for a lease.

        Raises:
            BadFrame: the other side sent bytes that no clusterrun sends.

        """
        messages = self.channel.receive()
        if messages and self._outlives_nodes and self._has_worked and self.goes_back_to is None:
            # Silent is who renews no lease: see ``_renew``.
            self._heartbeat.heard_at = now
        elif messages:
            self._heartbeat.received(now)
        return self._leased(messages, now)

    def beat(self, now: float) -> None:
        """Send a heartbeat if it is due."""
        if self._heartbeat.is_heartbeat_due(now):
            self.channel.send(Heartbeat(now, self._lease.seen))

    def is_lost(self, now: float) -> bool:
        """Return whether the coordinator is gone, or has been silent for too long."""
        return self.channel.end is not None or self._heartbeat.is_lost(now)

    def how_lost(self, now: float) -> str:
        """Return how, for messages."""
        if self.channel.end not in {None, How.UNREACHABLE}:
            return "is gone"
        heard = now - self.heard_at < HEARTBEATS_AT_LATEST * self._rhythm.interval
        return NO_MAJORITY if heard and self._has_worked else self._rhythm.silence

    def has_found_its_job(self) -> None:
        """Stay with this coordinator."""
        if self.goes_back_to is not None:
            self.goes_back_to.close()
            self.goes_back_to, self.latest_end = None, NEVER

    def close(self) -> None:
        self.channel.close()
        if self.goes_back_to is not None:
            self.goes_back_to.close()

    def begins(self, now: float) -> None:
        """Let workers run, for the first time."""
        self._has_worked = True
        if not self._outlives_nodes:
            return
        if self._lease.ends > now:
            self._renew(now)
        else:
            # The connection has ended already: no worker may run.
            self._renew_lease(0.0)

    def node_zero_pauses(self, now: float, *, paused: bool) -> None:
        """Expect nothing of a coordinator whose user has paused it, or go on with it."""
        if not paused:
            self._heartbeat.resume(now)
            return
        self._heartbeat.pause()
        if self._has_worked:
            self._renew_lease(None)

    def _leased(self, messages: Iterable[FromCoordinator], now: float) -> list[FromCoordinator]:
        """Take answers to heartbeats; return the other messages, up to an attempt without a lease."""
        waits, lease = bool(self._held), self._lease
        for message in messages:
            match message:
                case HeartbeatAnswer():
                    lease.answered(message, now)
                    self._renew(now)
                case WorldFormed(world) if world.attempt == 0:
                    # The hello counts as a heartbeat that was answered: before, nobody knew a
                    # successor with whom to go on without this node.
                    lease.ends = max(lease.ends, self._since + self._rhythm.timeout)
                    self._held.append(message)
                case _:
                    self._held.append(message)
        at = len(self._held)
        if self._outlives_nodes and lease.ends <= now:
            if any(isinstance(each, Verdict) for each in self._held):
                self._forget_attempt()
                at = len(self._held)
            needing = (at for at, each in enumerate(self._held) if self._needs_lease(each))
            at = next(needing, at)
        taken, self._held = self._held[:at], self._held[at:]
        if self._held and not waits:
            # The answer brings the lease.
            self.channel.send(Heartbeat(now, lease.seen))
        return taken

    def _forget_attempt(self) -> None:
        """Begin nothing: the attempt that waits for a lease is over."""
        if any(isinstance(each, WorldFormed) for each in self._held):
            self.has_found_its_job()
        over = NextAttempt | WorldFormed
        self._held = [each for each in self._held if not isinstance(each, over)]

    def _needs_lease(self, message: FromCoordinator) -> bool:
        # Of a world whose node 0 is lost at once, the agent reports the loss; no worker may run.
        is_first = isinstance(message, WorldFormed) and self.channel.end is None
        return is_first or isinstance(message, NextAttempt)

    def _renew(self, now: float) -> None:
        """Let the workers run as long as the coordinator allows."""
        ends = self._lease.ends
        if self._outlives_nodes and self._has_worked and ends > now:
            self._renew_lease(ends - now)
            self._heartbeat.leased(now, ends)
