"""What an agent holds and knows in case its coordinator is lost, and its search for a successor."""

import select
from typing import NamedTuple

from msgspec.structs import replace

from clusterrun.domain.world import World
from clusterrun.network.addresses import numeric_address
from clusterrun.network.channel import BadFrame, Channel, How, Outgoing
from clusterrun.network.handshake import HandshakeFailed
from clusterrun.policy import succession as policy
from clusterrun.policy.event_source import NEVER
from clusterrun.policy.job import Job
from clusterrun.policy.messages import (
    Claim,
    FromCoordinator,
    Hello,
    LeftCoordinator,
    Standby,
    Succession,
    SuccessionKnown,
    Successor,
)
from clusterrun.policy.outcome import NodeLost
from clusterrun.policy.succession import Call, Gather, Search
from clusterrun.policy.terms import Terms
from clusterrun.rendezvous.agent_hooks import AgentHooks
from clusterrun.rendezvous.coordinator_server import CoordinatorServer
from clusterrun.rendezvous.ports.held_port import HeldPort, hold_free_port
from clusterrun.rendezvous.ports.joining_port import JoiningPort, open_free_port

SECONDS_BETWEEN_CALLS = 0.1


class Agent(NamedTuple):
    """What an agent shows and needs to follow another coordinator."""

    terms: Terms
    hello: Hello
    token: bytes
    hooks: AgentHooks


class HeldPorts(NamedTuple):
    """The ports of ``Standby``."""

    joining: JoiningPort
    workers: HeldPort

    @property
    def standby(self) -> Standby:
        return Standby(self.joining.number, self.workers.number)

    def release(self) -> None:
        self.joining.release()
        self.workers.release()


class Failover:
    """Belongs to one agent; ``close`` releases its ports."""

    def __init__(self, terms: Terms, hello: Hello, token: bytes, hooks: AgentHooks) -> None:
        """Hold the ports."""
        self.ports = HeldPorts(open_free_port(), hold_free_port())
        self.hello = replace(hello, standby=self.ports.standby)
        """The agent's first message, which offers them."""
        self._agent = Agent(terms, self.hello, token, hooks)
        self._known: Succession | None = None
        self._since = 0
        self._left: list[Channel[FromCoordinator]] = []

    def learn(self, known: Succession, connection: Channel[FromCoordinator]) -> None:
        """Take what the coordinator sends about its successors by ``connection``, and confirm it."""
        connection.send(SuccessionKnown(known.attempt))
        if self._known is None:
            self._since = known.attempt
        self._known = known

    @property
    def coordinator(self) -> tuple[int, str] | None:
        """The node rank and the host of the coordinator, if it has sent them."""
        known = self._known
        return None if known is None else (known.node_rank, known.host)

    def lost(self, how: str) -> NodeLost:
        """Return the lost coordinator, for messages; ``claim`` has returned a claim."""
        return NodeLost(self._succession.node_rank, self._succession.host, how)

    def claim(self, world: World | None) -> Claim | None:
        """Return this agent's claim to its place in ``world``; None: it can follow no successor."""
        known = self._known
        if known is None or not known.successors or (world and world.attempt > known.attempt):
            return None
        has_place = world is not None and world.attempt == known.attempt
        rank = world.node_rank if world is not None and has_place else None
        return Claim(known.attempt, known.coordinator, rank, self._since, world is not None)

    def leave(self, connection: Channel[FromCoordinator]) -> None:
        """Leave a coordinator that is lost, and may run: it must not take this agent for ended.

        Its end of the connection is closed only when this process ends.
        """
        connection.send(LeftCoordinator())
        self._left.append(connection)

    def search(
        self, claim: Claim, lost: NodeLost, at: float, heard_at: float, *, has_ended: bool
    ) -> "Seeker":
        """Begin to search.

        Args:
            claim: to this agent's place.
            lost: the lost coordinator.
            at: now.
            heard_at: when something of it was read last.
            has_ended: its kernel has closed the connection.

        """
        agent = self._agent._replace(hello=replace(self.hello, claim=claim))
        ended = frozenset({lost.node_rank} if has_ended else ())
        return Seeker(
            agent,
            self._succession,
            self.ports.joining,
            lost,
            ended=ended,
            began=at,
            heard_at=heard_at,
        )

    @property
    def _succession(self) -> Succession:
        if self._known is None:
            raise AssertionError("a claim belongs to a known succession")
        return self._known

    def close(self) -> None:
        self.ports.release()
        for each in self._left:
            each.close()


class Seeker:
    """One descriptor; ``turn`` does what is possible. Ends with a connection, a server, or neither."""

    def __init__(  # noqa: PLR0913 - what the agent knows
        self,
        agent: Agent,
        known: Succession,
        joining: JoiningPort,
        lost: NodeLost,
        *,
        ended: frozenset[int],
        began: float,
        heard_at: float,
    ) -> None:
        """Begin to search for a successor of ``lost``, which was lost at ``began``."""
        self.connection: Outgoing | None = None
        """To the successor that has answered and got the claim."""
        self.server: CoordinatorServer | None = None
        """If this agent gathers the others."""
        self.lost = lost
        self._agent = agent
        self._known = known
        self._joining = joining
        self._heard_at = heard_at
        seconds = agent.terms.rhythm.timeout
        self._search = Search(agent.hello.identity, known.successors, began, seconds, ended=ended)
        self._epoll = select.epoll()
        self._outgoing: Outgoing | None = None
        self._call_again = 0.0

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def due(self) -> float:
        if self.finished:
            return NEVER
        again = self._call_again if self._outgoing is None else NEVER
        return min(policy.due(self._search), again)

    @property
    def has_failed(self) -> bool:
        return policy.step(self._search) == policy.GiveUp()

    @property
    def finished(self) -> bool:
        return self.has_failed or self.connection is not None or self.server is not None

    def turn(self, now: float) -> None:
        """Do what can be done now."""
        before = self._search.first
        self._search = policy.time_passed(self._search, now)
        if self._search.first != before:
            self._hang_up()
        while not self.finished:
            match policy.step(self._search):
                case Call(successor):
                    first = self._search.first
                    self._call(successor, now)
                    if self._search.first == first:
                        return
                case Gather():
                    self._gather(now)

    def has_ended(self, heard_at: float) -> None:
        """Go on with the next successor: the one that had answered, and was heard last, has ended."""
        self.connection = None
        self._heard_at = heard_at
        self._search = policy.has_ended(self._search)

    def close(self) -> None:
        """Close all but the connection and the server."""
        self._hang_up()
        self._epoll.close()

    def _call(self, successor: Successor, now: float) -> None:
        if self._outgoing is None:
            if now < self._call_again:
                return
            self._call_again = now + SECONDS_BETWEEN_CALLS
            if not self._connect(successor):
                return
        outgoing = self._outgoing
        if outgoing is None:
            return
        try:
            outgoing.receive()
        except (HandshakeFailed, BadFrame):
            self._hang_up()
            return
        if outgoing.end is not None:
            self._hang_up()
            if outgoing.end is How.REFUSED:
                self._search = policy.has_ended(self._search)
        elif outgoing.is_ready:
            self._claim(outgoing, now)
        else:
            outgoing.watch(self._epoll)

    def _connect(self, successor: Successor) -> bool:
        try:
            [address, *_] = numeric_address(successor.address)
            self._outgoing = Outgoing(address, successor.port, self._agent.token)
        except ConnectionRefusedError:
            self._search = policy.has_ended(self._search)
        except (OSError, ValueError):
            # There is no route to it: it may have one again soon.
            return False
        else:
            self._outgoing.watch(self._epoll)
        return self._outgoing is not None

    def _claiming(self, now: float) -> Hello:
        """Return the first message to a successor."""
        hello = self._agent.hello
        if hello.claim is None:
            raise AssertionError("an agent that searches has a claim")
        return replace(hello, claim=replace(hello.claim, age=now - self._heard_at))

    def _claim(self, outgoing: Outgoing, now: float) -> None:
        outgoing.unwatch(self._epoll)
        outgoing.give_up_after(self._agent.terms.rhythm.timeout)
        outgoing.send(self._claiming(now))
        self._outgoing = None
        self.connection = outgoing

    def _gather(self, now: float) -> None:
        agent, search = self._agent, self._search
        job = Job.succeeding(
            agent.terms,
            self._claiming(now),
            self._known,
            self.lost,
            ended=search.ended,
            at=now,
            until=policy.ends(search),
        )
        self.server = CoordinatorServer(
            self._joining,
            job.terms,
            agent.hello,
            agent.hooks,
            now,
            token=agent.token,
            chosen=hold_free_port(),
            succeeds=job,
        )

    def _hang_up(self) -> None:
        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None
