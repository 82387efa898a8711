"""A node without a rank: it is node 0 if node 0's address belongs to its machine."""

import select

from clusterrun.errors import RendezvousError
from clusterrun.network.addresses import is_own
from clusterrun.rendezvous.joining.join_failures import DialProgress
from clusterrun.rendezvous.joining.join_timeout import JoinTimeout
from clusterrun.rendezvous.joining.joining_node import JoiningNode
from clusterrun.rendezvous.names.resolver import Lookup


class RanklessNode:
    """Looks node 0's address up; ends with ``is_node_zero`` or ``failure``."""

    def __init__(self, node: JoiningNode, timeout: JoinTimeout, now: float) -> None:
        self.is_node_zero: bool | None = None
        self.failure: RendezvousError | None = None
        self._node = node
        self._timeout = timeout
        self._epoll = select.epoll()
        self._lookup = Lookup(node.terms.host.value, self._epoll, now, node.hooks.resolve)

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def finished(self) -> bool:
        return self.is_node_zero is not None or self.failure is not None

    @property
    def due(self) -> float:
        return 0.0 if self._lookup.addresses else min(self._lookup.due, self._timeout.due)

    def turn(self, now: float) -> None:
        self._lookup.turn(now)
        addresses = self._lookup.addresses
        if addresses:
            interfaces = self._node.hooks.interfaces()
            self.is_node_zero = any(is_own(address, interfaces) for address in addresses)
        else:
            self.failure = self._timeout.check(
                self._node, DialProgress((), self._lookup.error, {}), now
            )

    def close(self) -> None:
        self._lookup.close()
        self._epoll.close()
