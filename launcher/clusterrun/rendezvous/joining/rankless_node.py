"""A node without a rank, which is node 0 if it has the address that all nodes are told."""

import select

from clusterrun.coordination.wait_limits import Patience
from clusterrun.errors import RendezvousError
from clusterrun.rendezvous.joining.agent_hooks import AgentHooks
from clusterrun.rendezvous.joining.join_failures import Obstacle, not_reached, not_reached_yet
from clusterrun.rendezvous.joining.settings import RendezvousSettings
from clusterrun.rendezvous.names.addresses import is_own
from clusterrun.rendezvous.names.resolver import Lookup


class Seeker:
    """One descriptor; ``turn`` does what can be done. Ends with ``is_node_zero`` or ``failure``."""

    def __init__(
        self,
        settings: RendezvousSettings,
        hooks: AgentHooks,
        patience: Patience,
        now: float,
    ) -> None:
        """Begin to look the address up."""
        self.is_node_zero: bool | None = None
        self.failure: RendezvousError | None = None
        self._settings = settings
        self._hooks = hooks
        self._patience = patience
        self._epoll = select.epoll()
        self._lookup = Lookup(settings.host.value, self._epoll, now, hooks.resolve)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when ``turn`` has something to do."""
        return self._epoll.fileno()

    @property
    def finished(self) -> bool:
        """Whether ``is_node_zero`` or ``failure`` is there."""
        return self.is_node_zero is not None or self.failure is not None

    @property
    def due(self) -> float:
        """When ``turn`` is to be called even if nothing happens."""
        return 0.0 if self._lookup.addresses else min(self._lookup.due, self._patience.due)

    def turn(self, now: float) -> None:
        """Do all that can be done now."""
        self._lookup.turn(now)
        addresses = self._lookup.addresses
        obstacle = Obstacle(addresses, self._lookup.trouble or "no answer yet", {})
        if addresses:
            interfaces = self._hooks.interfaces()
            self.is_node_zero = any(is_own(address, interfaces) for address in addresses)
        elif self._patience.is_over(now):
            self.failure = not_reached(self._settings, obstacle, None)
        elif self._patience.wants_notice(now):
            self._hooks.notice(not_reached_yet(self._settings, obstacle, self._patience.spent(now)))

    def abandon(self, why: str, now: float) -> None:
        """Leave without a word: nobody knows us yet."""
        del why, now
        self.close()

    def close(self) -> None:
        """Close everything."""
        self._lookup.close()
        self._epoll.close()
