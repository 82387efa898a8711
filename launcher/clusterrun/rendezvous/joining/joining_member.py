"""A node that joins as a member: it connects to node 0, sends its hello and waits for its place.

It may wait for as long as the job runs, as a spare: it sends heartbeats, and does nothing else.
"""

import select
from signal import SIGTERM
from typing import TYPE_CHECKING

from msgspec.structs import replace

from clusterrun.domain.signal_names import signal_name
from clusterrun.errors import RendezvousError
from clusterrun.network.addresses import Address, interface_of
from clusterrun.network.channel import BadFrame, How, Outgoing
from clusterrun.policy.event_source import NEVER
from clusterrun.policy.events import SignalReceived
from clusterrun.policy.heartbeat import HeartbeatTimer, MemberLease
from clusterrun.policy.messages import (
    FromCoordinator,
    Heartbeat,
    HeartbeatAnswer,
    KeepWaiting,
    Notice,
    Paused,
    Refusal,
    Refused,
    RequestSuspension,
    Succession,
    SuspensionPossible,
    Verdict,
    WorldFormed,
)
from clusterrun.policy.outcome import NodeLost
from clusterrun.policy.succession import NO_SUCCESSOR
from clusterrun.rendezvous.joining.dialer import Dialer
from clusterrun.rendezvous.joining.join_failures import CLOSED_BY_NODE_ZERO, node_zero_silent
from clusterrun.rendezvous.joining.join_timeout import JoinTimeout
from clusterrun.rendezvous.joining.joining_node import JoiningNode

if TYPE_CHECKING:
    # Few jobs go on without their node 0.
    from clusterrun.rendezvous.failover import Failover, Seeker

SPARE = "this node is a spare: it waits to take the place of a lost node"
ELASTIC = "this node waits for a place: it is let in when all workers restart"

SECONDS_AFTER_TIMEOUT = 5.0
"""Node 0 ends the wait at the timeout; a member that does not learn of it ends this much later."""


class JoiningMember:
    """One descriptor; ``turn`` does what is possible. Ends with ``formed`` or ``failure``."""

    def __init__(
        self,
        node: JoiningNode,
        timeout: JoinTimeout,
        now: float,
        failover: "Failover | None" = None,
    ) -> None:
        self.formed: WorldFormed | None = None
        self.failure: RendezvousError | None = None
        self.refusal: Refusal | None = None
        """How node 0 has refused this node; None if it has not."""
        self.early: list[FromCoordinator] = []
        """Messages received after ``formed``."""
        self.waits_at = ""
        """The host of node 0, if the job runs and this node waits for a place in it."""
        self.verdict: Verdict | None = None
        """How the job has ended meanwhile."""
        self.interface = ""
        """The network interface that leads to node 0."""
        self._node = node
        self._terms, self._hello, _, self._hooks = node
        self._timeout = timeout
        self._epoll = select.epoll()
        self._dialer = Dialer(node, self._epoll, now)
        self._outgoing: Outgoing | None = None
        self._heartbeat = HeartbeatTimer(self._terms.rhythm, now)
        self.lease = MemberLease()
        """Of this node's workers, if the others may go on without it."""
        self._world: WorldFormed | None = None
        """Until there is a lease, ``formed`` waits."""
        self._called_at = now
        self._latest_end = 0.0
        self._failover = failover
        self._seeker: Seeker | None = None
        self._can_suspend = False
        self._has_asked = False

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def due(self) -> float:
        if self._seeker is not None and self._outgoing is None:
            return self._seeker.due
        if self._outgoing is not None:
            return min(self._latest_end, self._heartbeat.due)
        return min(self._dialer.due, self._timeout.due)

    @property
    def finished(self) -> bool:
        ended = self.failure is not None or self.verdict is not None
        return self.formed is not None or ended

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of node 0's name, as last looked up."""
        return self._dialer.addresses

    @property
    def is_connected(self) -> bool:
        """Whether node 0 has answered and not refused this node."""
        return self._outgoing is not None and self.failure is None

    def turn(self, now: float) -> None:
        if self._outgoing is None and self._seeker is not None:
            self._seek(self._seeker, now)
        elif self._outgoing is None:
            self._dial(now)
        else:
            self._exchange(self._outgoing, now)
        if not self.finished:
            self._check_time(now)

    def passes_on(self, signal: SignalReceived) -> bool:
        """Pass a request of a suspension on, if this node waits for a place in a job that runs."""
        is_first = signal.number == SIGTERM and self._can_suspend and not self._has_asked
        is_request = is_first or signal.number == self._terms.suspending.suspend_signal
        if not is_request or not self.waits_at or self._outgoing is None:
            return False
        self._has_asked |= is_first
        self._outgoing.send(RequestSuspension(signal_name(signal.number)))
        self._outgoing.watch(self._epoll)
        return True

    def close(self) -> None:
        self._dialer.close()
        if self._seeker is not None:
            self._seeker.close()
        if self._outgoing is not None:
            self._outgoing.close()
        self._epoll.close()

    def take_connection(self) -> Outgoing:
        """Return the connection to node 0, which belongs to the caller from now on."""
        outgoing = self._outgoing
        if outgoing is None:
            raise AssertionError("node 0 has not answered")
        outgoing.unwatch(self._epoll)
        self._outgoing = None
        return outgoing

    def _dial(self, now: float) -> None:
        outgoing = self._dialer.turn(now)
        self.failure = self._dialer.failure
        if outgoing is None:
            return
        self._outgoing = outgoing
        self._latest_end = now + self._timeout.seconds + SECONDS_AFTER_TIMEOUT
        self._heartbeat, self.lease = HeartbeatTimer(self._terms.rhythm, now), MemberLease()
        outgoing.give_up_after(self._heartbeat.rhythm.timeout)
        outgoing.send(replace(self._hello, waited=self._timeout.elapsed(now)))
        self._called_at = now
        # Now, while nothing waits for it: later, the workers would.
        self.interface = interface_of(outgoing.local_address, self._hooks.interfaces())
        self._exchange(outgoing, now)

    def _exchange(self, outgoing: Outgoing, now: float) -> None:
        error = self._receive(outgoing, now)
        if self.finished:
            return
        if self._heartbeat.is_heartbeat_due(now):
            outgoing.send(Heartbeat(now, self.lease.seen))
        if self._heartbeat.is_lost(now):
            error = error or f"node 0 {self._terms.rhythm.silence}"
        if self.waits_at and (error or outgoing.end is not None):
            silent = outgoing.end in {None, How.UNREACHABLE}
            self._lose(outgoing, self._terms.rhythm.silence if silent else "is gone", now)
        elif error or outgoing.end is not None:
            self._outgoing = None
            why = error or outgoing.trouble or CLOSED_BY_NODE_ZERO
            self._dialer.reject(outgoing, why, now)
        else:
            outgoing.watch(self._epoll)

    def _lose(self, outgoing: Outgoing, how: str, now: float) -> None:
        """Search for a successor of the coordinator, if the job can go on without it."""
        has_ended = outgoing.end is How.CLOSED
        outgoing.unwatch(self._epoll)
        if self._seeker is not None:
            outgoing.close()
            self._outgoing = None
            if has_ended:
                self._seeker.has_ended(self._heartbeat.heard_at)
                self._seek(self._seeker, now)
            else:
                self.verdict = Verdict(self._seeker.lost, "")
            return
        claim = None if self._failover is None else self._failover.claim(None)
        if self._failover is None or claim is None:
            self.verdict = Verdict(NodeLost(0, self.waits_at, how), "")
            return
        lost = self._failover.lost(how)
        self._failover.leave(outgoing)
        self._outgoing = None
        heard_at = self._heartbeat.heard_at
        self._seeker = self._failover.search(claim, lost, now, heard_at, has_ended=has_ended)
        self._epoll.register(self._seeker, select.EPOLLIN)
        self._seek(self._seeker, now)

    def _seek(self, seeker: "Seeker", now: float) -> None:
        seeker.turn(now)
        if seeker.has_failed:
            self.verdict = Verdict(seeker.lost, NO_SUCCESSOR)
        elif seeker.connection is not None:
            self._outgoing = seeker.connection
            self._heartbeat, self.lease = HeartbeatTimer(self._terms.rhythm, now), MemberLease()
            self._outgoing.watch(self._epoll)

    def _receive(self, outgoing: Outgoing, now: float) -> str:
        """Handle all messages; return why the sender is not this job's node 0, "" if it is."""
        try:
            messages = outgoing.receive()
        except BadFrame as error:
            return f"it {error}"
        if messages:
            self._heartbeat.received(now)
        for message in messages:
            match message:
                case HeartbeatAnswer():
                    self.lease.answered(message, now)
                case _ if self._world is not None:
                    self.early.append(message)
                case Notice(text):
                    self._hooks.notice(text)
                case Refused(_, text) if self._seeker is not None:
                    self.verdict = Verdict(self._seeker.lost, text)
                    return ""
                case Succession():
                    self._learn(message, outgoing)
                case Refused():
                    return self._refused(message)
                case WorldFormed():
                    self._world = message
                    self.early = [SuspensionPossible()] if self._can_suspend else []
                    self._ask_for_lease(message, outgoing, now)
                case KeepWaiting(host):
                    self._keep_waiting(host)
                case Verdict() if self.waits_at:
                    self.verdict = message
                    return ""
                case SuspensionPossible() if self.waits_at:
                    self._can_suspend = True
                case Paused(paused) if self.waits_at:
                    self._node_zero_pauses(now, paused=paused)
                case _:
                    return "it ends a job that has not started"
        self._begin_if_leased(outgoing, now)
        return ""

    def _begin_if_leased(self, outgoing: Outgoing, now: float) -> None:
        """Take the world, once workers may run in it; the loss of node 0 is the agent's to report."""
        if self._may_begin(now) or outgoing.end is not None:
            self.formed = self._world

    def _may_begin(self, now: float) -> bool:
        return not self._terms.reforming.lives_on or self.lease.ends > now

    def _ask_for_lease(self, formed: WorldFormed, outgoing: Outgoing, now: float) -> None:
        """Count the hello as a heartbeat that was answered, or send one."""
        if formed.world.attempt == 0:
            # Before, nobody knew a successor with whom to go on without this node.
            until = self._called_at + self._terms.rhythm.timeout
            self.lease.ends = max(self.lease.ends, until)
        elif not self._may_begin(now):
            outgoing.send(Heartbeat(now, self.lease.seen))

    def _learn(self, known: Succession, outgoing: Outgoing) -> None:
        if self._failover is not None:
            self._failover.learn(known, outgoing)
        if self._seeker is not None:
            # A successor has gone on.
            self._epoll.unregister(self._seeker)
            self._seeker.close()
            self._seeker = None

    def _keep_waiting(self, host: str) -> None:
        self.waits_at = host
        self._latest_end = NEVER
        self._hooks.notice(ELASTIC if self._terms.reforming.is_elastic else SPARE)

    def _node_zero_pauses(self, now: float, *, paused: bool) -> None:
        if paused:
            self._heartbeat.pause()
        else:
            self._heartbeat.resume(now)

    def _refused(self, refused: Refused) -> str:
        if refused.refusal is Refusal.TRY_ELSEWHERE and len(self._terms.ports.value) > 1:
            return refused.text
        self.refusal = refused.refusal
        self.failure = RendezvousError(refused.text, refused.hint)
        return refused.text

    def _check_time(self, now: float) -> None:
        if self._outgoing is not None:
            if now >= self._latest_end:
                self.failure = node_zero_silent(self._terms)
        else:
            self.failure = self._timeout.check(self._node, self._dialer.progress, now)
