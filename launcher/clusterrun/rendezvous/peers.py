"""The other nodes of a running job, as the agent reports to them and gets events from them."""

import select
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from clusterrun.domain.world import World
from clusterrun.network.channel import FROM_COORDINATOR, BadFrame, Channel, How
from clusterrun.policy.event_source import NEVER
from clusterrun.policy.events import (
    CoordinatorLost,
    CoordinatorSent,
    CoordinatorSought,
    Event,
    LookOrdered,
)
from clusterrun.policy.fates import bounded
from clusterrun.policy.heartbeat import HeartbeatRhythm, HeartbeatTimer, MemberLease
from clusterrun.policy.messages import (
    AgentMessage,
    Done,
    EndedExternally,
    FromCoordinator,
    Heartbeat,
    HeartbeatAnswer,
    LookOrder,
    NextAttempt,
    Notice,
    Order,
    Paused,
    Refused,
    Succession,
    Verdict,
)
from clusterrun.policy.succession import NO_SUCCESSOR
from clusterrun.rendezvous.agent_hooks import AgentHooks
from clusterrun.rendezvous.coordinator_server import CoordinatorServer

if TYPE_CHECKING:
    # Few jobs go on without their node 0.
    from clusterrun.rendezvous.failover import Failover
    from clusterrun.rendezvous.successor_search import SuccessorSearch

NO_MAJORITY = "reaches no more than half of the nodes"
"""How a coordinator is lost that has no lease to give."""

HEARTBEATS_AT_LATEST = 2
"""Intervals within which a coordinator that runs sends something."""

SECONDS_FOR_VERDICT = 3.0
"""How long node 0 stays so that members can receive the verdict."""


class Peers:
    """A member's connection to the coordinator; on node 0, also the coordinator."""

    wants_write = False
    """Never: ``fileno`` is readable also if something can be sent."""

    def __init__(  # noqa: PLR0913 - what joining has found out
        self,
        world: World,
        node_zero: str,
        connection: Channel[FromCoordinator],
        *,
        early: Sequence[FromCoordinator],
        server: CoordinatorServer | None,
        rhythm: HeartbeatRhythm,
        hooks: AgentHooks,
        lives_on: bool = False,
        failover: "Failover | None" = None,
        lease: MemberLease | None = None,
        named: str = "",
    ) -> None:
        """Take over the connection, and the coordinator on node 0, the host ``node_zero``.

        Args:
            world: this node's part in the job, as seen from here.
            node_zero: the coordinator's host.
            connection: to the coordinator.
            early: messages that have come already.
            server: on node 0, the coordinator.
            rhythm: of heartbeats.
            hooks: the agent's.
            lives_on: the other nodes may go on without this one.
            failover: what this node has and knows to follow a successor of the coordinator.
            lease: what a member's workers have from the coordinator, if the others may go on.
            named: node 0's name in the coordinator's messages, which this node may know better.

        """
        self._world = world
        self._node_zero = node_zero
        self._connection = connection
        self._early = list(early)
        self._server = server
        self._notice = hooks.notice
        self._clock = hooks.clock
        self._renew_lease = hooks.renew_lease
        # Node 0's own agent and its coordinator are one process.
        self._heartbeat = HeartbeatTimer(rhythm, self._clock()) if server is None else None
        self._lives_on = lives_on
        self._lease = lease or MemberLease()
        self._held: list[FromCoordinator] = []
        """An attempt for which there is no lease yet, and what came after it."""
        self._failover = failover
        self._known_as = (named, world.master_addr)
        self._is_done = False
        self._search: SuccessorSearch | None = None
        self._has_verdict = False
        self._over = False
        self._epoll = select.epoll()
        connection.watch(self._epoll)
        if server is not None:
            self._epoll.register(server, select.EPOLLIN)
        elif lives_on:
            now = self._clock()
            if self._lease.ends > now:
                self._renew(now)
            else:
                # The connection is closed already: no worker may run.
                self._renew_lease(0.0)

    @property
    def first_world(self) -> World:
        """The world as it was formed; later attempts have the same nodes."""
        return self._world

    def world(self, attempt: int) -> World:
        """Return this node's world in the n-th attempt, which the coordinator has begun.

        It is that of a later one if there were attempts without this node.
        """
        went_on_without_it = self._lives_on and attempt < self._world.attempt
        if attempt != self._world.attempt and not went_on_without_it:
            raise AssertionError(f"attempt {attempt}, and node 0 is at {self._world.attempt}")
        return self._world

    def coordinator(self) -> tuple[int, str]:
        """Return the node rank and the host of the coordinator, which may have succeeded node 0."""
        if self._failover is None:
            return 0, self._node_zero
        return self._failover.coordinator or (0, self._node_zero)

    @property
    def sources(self) -> "tuple[Peers]":
        return (self,)

    @property
    def due(self) -> float:
        # Messages that have arrived already must not wait for others.
        if self._early:
            return 0.0
        if search := self._running_search:
            return search.due
        if self._server is not None:
            return self._server.due
        return NEVER if self._heartbeat is None else self._heartbeat.due

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def lost(self) -> bool:
        """Whether nothing more will come: after the verdict, or if node 0 is lost."""
        return self._over

    def flush(self) -> None:
        """Do nothing: ``events`` sends."""

    def events(self, now: float) -> Iterator[Event]:
        """Return the coordinator's messages as events; on node 0, also run the coordinator."""
        if self._over:
            return
        if search := self._running_search:
            yield from self._go_on_with(search, now)
            return
        if self._server is not None:
            self._server.turn(now)
        for message in self._messages(now):
            yield from self._event(message, now)
        if how := self._loss(now):
            yield from self._lose(how, now)
        elif not self._over:
            self._connection.watch(self._epoll)

    @property
    def _running_search(self) -> "SuccessorSearch | None":
        """The search for a successor; None if there is a coordinator."""
        return None if self._search is None or self._search.is_over else self._search

    def _lose(self, how: str, now: float) -> Iterator[Event]:
        """Search for a successor of the coordinator, if the job can go on without it."""
        has_ended = self._connection.end is How.CLOSED
        if self._search is not None:
            # The successor is lost, too, before it could go on.
            if not has_ended:
                yield from self._end(now)
                return
            self._connection.close()
            self._search.go_on(self._heard_at(now))
            yield from self._go_on_with(self._search, now)
            return
        failover = self._failover
        if failover is None or self._lease.was_paused or failover.claim(self._world) is None:
            self._over = True
            if not self._lives_on:
                # So that node 0, if it runs, notices at once.
                self._connection.close()
            yield CoordinatorLost(self._node_zero, how, now)
            return
        self._connection.unwatch(self._epoll)
        yield from self._begin_search(failover, how, now, has_ended=has_ended)

    def _begin_search(
        self, failover: "Failover", how: str, now: float, *, has_ended: bool
    ) -> Iterator[Event]:
        from clusterrun.rendezvous.successor_search import SuccessorSearch

        heard_at = self._heard_at(now)
        self._search = search = SuccessorSearch(failover, how, now, heard_at, has_ended=has_ended)
        failover.leave(self._connection)
        yield CoordinatorSought(search.lost.host, how, now, search.lost.node_rank)
        if self._is_done:
            search.begin(self._world, self._epoll)

    def _go_on_with(self, search: "SuccessorSearch", now: float) -> Iterator[Event]:
        match search.turn(now):
            case CoordinatorServer() as server:
                self._server = server
                self._heartbeat = None
                self._follow(Channel(FROM_COORDINATOR, server.own_end))
                self._epoll.register(server, select.EPOLLIN)
            case Channel() as connection:
                if self._heartbeat is not None:
                    self._heartbeat = HeartbeatTimer(self._heartbeat.rhythm, now)
                self._follow(connection)
            case None if search.has_failed:
                yield from self._end(now)

    def _follow(self, connection: Channel[FromCoordinator]) -> None:
        self._connection = connection
        connection.watch(self._epoll)
        self._lease, self._held = MemberLease(), []

    def _heard_at(self, now: float) -> float:
        """Return when something of the coordinator was read last."""
        return now if self._heartbeat is None else self._heartbeat.heard_at

    def _end(self, now: float) -> Iterator[Event]:
        """End, since no successor can go on."""
        self._over = True
        if self._search is not None:
            lost = self._search.lost
            yield CoordinatorLost(lost.host, lost.how, now, lost.node_rank, NO_SUCCESSOR)

    def send(self, message: AgentMessage) -> Iterable[Event]:
        """Send a message; the answer comes by ``events``."""
        if isinstance(message, Done):
            self._is_done = True
        if self._over:
            return ()
        if search := self._running_search:
            return tuple(self._send_without_coordinator(message, search))
        self._connection.send(bounded(message))
        if isinstance(message, Paused):
            self._lease.was_paused = True
            if self._server is not None:
                # Once stopped, this process can't pass it on.
                self._server.turn(self._clock())
        self._connection.watch(self._epoll)
        return ()

    def _send_without_coordinator(
        self, message: AgentMessage, search: "SuccessorSearch"
    ) -> Iterator[Event]:
        """Search once no worker is left, unless this node is to end anyway."""
        ends = isinstance(message, EndedExternally) or (
            isinstance(message, Done) and message.external_cause is not None
        )
        if ends:
            yield from self._end(self._clock())
        elif isinstance(message, Done):
            search.begin(self._world, self._epoll)

    def leave(self) -> None:
        """Disconnect; node 0 first waits some seconds until the others have the verdict."""
        if self._epoll.closed:
            return
        self._over = True
        self._epoll.close()
        self._connection.close()
        if self._search is not None:
            self._search.close()
        if self._failover is not None:
            self._failover.close()
        if self._server is not None:
            self._server.finish(SECONDS_FOR_VERDICT, self._clock)

    def _loss(self, now: float) -> str:
        """Send a heartbeat if it is due; return how node 0 was lost, "" if it was not."""
        if self._has_verdict:
            return ""
        heartbeat, connection = self._heartbeat, self._connection
        if heartbeat is not None and heartbeat.is_heartbeat_due(now):
            connection.send(Heartbeat(now, self._lease.seen))
        silent = heartbeat is not None and (
            heartbeat.is_lost(now) or connection.end is How.UNREACHABLE
        )
        if heartbeat is not None and silent:
            heard = now - heartbeat.heard_at < HEARTBEATS_AT_LATEST * heartbeat.rhythm.interval
            return NO_MAJORITY if heard else heartbeat.rhythm.silence
        return "" if connection.end is None else "is gone"

    def _messages(self, now: float) -> list[FromCoordinator]:
        early, self._early = self._early, []
        try:
            received = self._connection.receive()
        except BadFrame:
            # A coordinator sends no such frame.
            return early
        if received and self._heartbeat is not None:
            if self._lives_on and self._search is None:
                # Silent is who renews no lease: see ``_renew``.
                self._heartbeat.heard_at = now
            else:
                self._heartbeat.received(now)
        return self._with_lease([*early, *received], now)

    def _with_lease(self, messages: Sequence[FromCoordinator], now: float) -> list[FromCoordinator]:
        """Take answers to heartbeats; return the other messages, up to an attempt without a lease."""
        waits = bool(self._held)
        for message in messages:
            if isinstance(message, HeartbeatAnswer):
                self._lease.answered(message, now)
                self._renew(now)
            else:
                self._held.append(message)
        at = len(self._held)
        if self._lives_on and self._heartbeat is not None and self._lease.ends <= now:
            if any(isinstance(each, Verdict) for each in self._held):
                # That attempt is over.
                self._held = [each for each in self._held if not isinstance(each, NextAttempt)]
            begins = (index for index, it in enumerate(self._held) if isinstance(it, NextAttempt))
            at = next(begins, len(self._held))
        taken, self._held = self._held[:at], self._held[at:]
        if self._held and not waits:
            # The answer brings the lease.
            self._connection.send(Heartbeat(now, self._lease.seen))
        return taken

    def _renew(self, now: float) -> None:
        """Let the workers run as long as the coordinator allows."""
        if self._lives_on and self._heartbeat is not None and self._lease.ends > now:
            self._renew_lease(self._lease.ends - now)
            self._heartbeat.leased(now, self._lease.ends)

    def _event(self, message: FromCoordinator, now: float) -> Iterator[Event]:
        match message:
            case NextAttempt(world):
                self._begin_attempt(world)
            case Succession():
                if self._failover is not None:
                    self._failover.learn(message, self._connection)
            case Refused():
                # A successor has gone on without this node.
                yield from self._end(now)
            case Verdict():
                self._has_verdict = True
                if self._server is None:
                    # At once: node 0 waits until all have disconnected.
                    self._over = True
                    self._connection.close()
            case Notice(text):
                self._notice(text)
            case Paused(paused):
                self._wait_for_node_zero(now, paused=paused)
        if isinstance(message, LookOrder):
            yield LookOrdered(message, now)
        elif isinstance(message, Order):
            yield CoordinatorSent(message, now)

    def _begin_attempt(self, world: World) -> None:
        named, known = self._known_as
        address = known if world.master_addr == named or not named else world.master_addr
        self._world = replace(world, master_addr=address, interface=self._world.interface)
        self._is_done = False
        if self._search is not None:
            self._search.close()
            self._search = None

    def _wait_for_node_zero(self, now: float, *, paused: bool) -> None:
        if self._heartbeat is None:
            return
        if paused:
            self._heartbeat.pause()
            self._renew_lease(None)
        else:
            self._heartbeat.resume(now)
