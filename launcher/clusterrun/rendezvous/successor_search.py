"""An agent's search for a successor of the coordinator that it has lost, from the loss on."""

import select

from clusterrun.domain.world import World
from clusterrun.network.channel import Channel
from clusterrun.policy.event_source import NEVER
from clusterrun.policy.messages import FromCoordinator
from clusterrun.policy.outcome import NodeLost
from clusterrun.rendezvous.coordinator_server import CoordinatorServer
from clusterrun.rendezvous.failover import Failover, Seeker


class SuccessorSearch:
    """Waits until no worker of this agent is left, then searches; ``close`` ends it."""

    def __init__(
        self, failover: Failover, how: str, at: float, heard_at: float, *, has_ended: bool
    ) -> None:
        """Take up a loss; ``failover`` has a claim.

        Args:
            failover: what this agent has and knows.
            how: how the coordinator was lost.
            at: when, on the agent's clock, in seconds.
            heard_at: when something of it was read last.
            has_ended: its kernel has closed the connection, so that its process is gone.

        """
        self.lost: NodeLost = failover.lost(how)
        """The lost coordinator."""
        self.is_over = False
        """A successor is followed, which may be this node itself."""
        self._failover = failover
        self._at = at
        self._heard_at = heard_at
        self._has_ended = has_ended
        self._seeker: Seeker | None = None
        self._epoll: select.epoll | None = None

    @property
    def due(self) -> float:
        """When ``turn`` has something to do, even if no descriptor is ready."""
        return NEVER if self._seeker is None else self._seeker.due

    def begin(self, world: World, epoll: select.epoll) -> None:
        """Search, now that no worker is left; ``epoll`` then watches what the search waits for."""
        claim = self._failover.claim(world)
        if claim is None or self._seeker is not None:
            return
        self._seeker = self._failover.search(
            claim, self.lost, self._at, self._heard_at, has_ended=self._has_ended
        )
        self._epoll = epoll
        epoll.register(self._seeker, select.EPOLLIN)

    def turn(self, now: float) -> Channel[FromCoordinator] | CoordinatorServer | None:
        """Do what can be done now.

        Return the connection to the successor, or the server if this node is it; None if neither is
        found yet or, with ``has_failed``, ever.
        """
        if self._seeker is None:
            return None
        self._seeker.turn(now)
        found = None if self._seeker.has_failed else self._seeker.server or self._seeker.connection
        self.is_over = found is not None
        return found

    @property
    def has_failed(self) -> bool:
        """Whether no successor can go on."""
        return self._seeker is not None and self._seeker.has_failed

    def go_on(self, heard_at: float) -> None:
        """Turn to the next successor: the one that was followed, and heard last, has ended."""
        self.is_over = False
        if self._seeker is not None:
            self._seeker.has_ended(heard_at)

    def close(self) -> None:
        """Close all but what ``turn`` has returned."""
        if self._seeker is not None:
            if self._epoll is not None and not self._epoll.closed:
                self._epoll.unregister(self._seeker)
            self._seeker.close()
            self._seeker = None
