"""What an agent holds and knows in case its coordinator is lost, and its search for a successor."""

from msgspec.structs import replace

from clusterrun.loop import NEVER, Loop, Ready
from clusterrun.network.addresses import numeric_address
from clusterrun.network.channel import How, Outgoing
from clusterrun.network.handshake import BadFrame
from clusterrun.network.joining_node import JoiningNode
from clusterrun.network.joining_port import open_free_port
from clusterrun.planning.plan import World
from clusterrun.policy.coordinator import Coordinator
from clusterrun.policy.events import Event
from clusterrun.policy.messages import (
    Claim,
    Hello,
    LeftCoordinator,
    Standby,
    Succession,
    SuccessionKnown,
    Successor,
)
from clusterrun.policy.outcome import NodeLost
from clusterrun.policy.succession import Search
from clusterrun.ports import WorkersPort

SECONDS_BETWEEN_CALLS = 0.1


class Failover:
    """Belongs to one agent; ``close`` releases its ports."""

    def __init__(self) -> None:
        """Hold the ports of its ``Standby``."""
        self.joining_port = open_free_port()
        self._workers_port = WorkersPort()
        self.known: Succession | None = None
        """How the job goes on; None: the coordinator has not sent it."""
        self._since = 0
        self._left: list[Outgoing] = []

    @property
    def standby(self) -> Standby:
        return Standby(self.joining_port.number, self._workers_port.number)

    def learn(self, known: Succession, channel: Outgoing) -> None:
        """Take what the coordinator sends about its successors, and confirm it."""
        channel.send(SuccessionKnown(known.attempt))
        if self.known is None:
            self._since = known.attempt
        self.known = known

    def claim(self, world: World | None) -> Claim | None:
        """Return this agent's claim to its place in ``world``; None: it can follow no successor."""
        known = self.known
        if known is None or not known.successors or (world and world.attempt > known.attempt):
            return None
        has_place = world is not None and world.attempt == known.attempt
        rank = world.node_rank if world is not None and has_place else None
        return Claim(known.attempt, known.coordinator, rank, self._since, world is not None)

    def leave(self, channel: Outgoing) -> None:
        """Leave a coordinator that is lost, and may run: it must not take this agent for ended.

        Its end of the connection is closed only when this process ends.
        """
        channel.send(LeftCoordinator())
        self._left.append(channel)

    def close(self) -> None:
        self.joining_port.release()
        self._workers_port.release()
        for each in self._left:
            each.close()


class Seeking:
    """The search of one agent; it begins once no worker of the agent is left."""

    def __init__(  # noqa: PLR0913 - what the agent knows of the loss
        self,
        node: JoiningNode,
        loop: Loop[Event],
        ready: Ready[Event],
        known: Succession,
        *,
        how: str,
        heard_at: float,
        has_ended: bool,
    ) -> None:
        """Take up the loss of the coordinator.

        Args:
            node: this one; its hello offers its ports.
            loop: the agent's.
            ready: what the loop is to call when ``turn`` has something to do.
            known: how the job goes on.
            how: how the coordinator was lost.
            heard_at: when something of it was read last.
            has_ended: its kernel has closed the connection, so that its process is gone.

        """
        self.lost = NodeLost(known.node_rank, known.host, how)
        """The lost coordinator."""
        self._node = node
        self._loop = loop
        self._ready = ready
        self._known = known
        self._heard_at = heard_at
        self._claim: Claim | None = None
        ended = {known.node_rank} if has_ended else set()
        seconds = node.terms.rhythm.timeout
        self._search = Search(node.hello.identity, known.successors, loop.clock(), seconds, ended)
        self._outgoing: Outgoing | None = None
        self._call_again = 0.0

    def begin(self, claim: Claim | None) -> None:
        """Search, now that no worker is left."""
        self._claim = self._claim or claim

    @property
    def due(self) -> float:
        """When ``turn`` has something to do, even if no descriptor is ready."""
        if self._claim is None or self.has_failed:
            return NEVER
        again = self._call_again if self._outgoing is None else NEVER
        return min(self._search.due, again)

    @property
    def has_failed(self) -> bool:
        """Whether no successor can go on."""
        return self._claim is not None and self._search.successor is None

    def turn(self, now: float) -> Outgoing | Coordinator | None:
        """Do what can be done now.

        Return the channel to the successor that has answered and got the claim; or the coordinator, if
        this agent is to be it; None if neither is found yet or, with ``has_failed``, ever.
        """
        if self._claim is None:
            return None
        before = self._search.first
        self._search.time_passed(now)
        if self._search.first != before:
            self.close()
        while (successor := self._search.successor) is not None:
            if self._search.gathers:
                return self._gathering(now)
            answered = self._call(successor, now)
            if answered is not None or self._search.successor is successor:
                return answered
        return None

    def go_on(self, heard_at: float) -> None:
        """Turn to the next successor: the one that was followed, and heard last, has ended."""
        self._heard_at = heard_at
        self._search.has_ended()

    def close(self) -> None:
        """Hang up; what ``turn`` has returned stays open."""
        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None

    @property
    def _hello(self) -> Hello:
        """The first message to a successor."""
        if self._claim is None:
            raise AssertionError("an agent that searches has a claim")
        claim = replace(self._claim, age=self._loop.clock() - self._heard_at)
        return replace(self._node.hello, claim=claim)

    def _call(self, successor: Successor, now: float) -> Outgoing | None:
        if self._outgoing is None and now >= self._call_again:
            self._call_again = now + SECONDS_BETWEEN_CALLS
            self._outgoing = self._connected(successor)
        outgoing = self._outgoing
        if outgoing is None:
            return None
        try:
            outgoing.receive()
        except BadFrame:
            self.close()
            return None
        if outgoing.end is not None:
            self.close()
            if outgoing.end is How.REFUSED:
                self._search.has_ended()
        elif outgoing.is_ready:
            self._outgoing = None
            outgoing.send(self._hello)
            return outgoing
        else:
            outgoing.watch(self._loop, self._ready)
        return None

    def _connected(self, successor: Successor) -> Outgoing | None:
        try:
            [address, *_] = numeric_address(successor.address)
            return Outgoing(address, successor.port, self._node.token)
        except ConnectionRefusedError:
            self._search.has_ended()
        except (OSError, ValueError):
            # There is no route to it: it may have one again soon.
            pass
        return None

    def _gathering(self, now: float) -> Coordinator:
        return Coordinator.succeeding(
            self._node.terms,
            self._hello,
            self._known,
            self.lost,
            ended=self._search.ended,
            at=now,
            until=self._search.ends,
        )
