"""Finds a second node 0: ``--node-rank 0`` on two machines would make two jobs of one."""

import select

from clusterrun.errors import RendezvousError
from clusterrun.network.addresses import is_own
from clusterrun.policy.event_source import NEVER
from clusterrun.policy.joining import SECONDS_TO_FIRST_NOTICE
from clusterrun.policy.messages import Refusal
from clusterrun.rendezvous.joining.join_timeout import JoinTimeout
from clusterrun.rendezvous.joining.joining_member import JoiningMember
from clusterrun.rendezvous.joining.joining_node import JoiningNode
from clusterrun.rendezvous.names.resolver import Lookup


class DuplicateNodeZeroCheck:
    """Joins as a member at node 0's address if that belongs to another machine.

    A second node 0 there refuses this one, because both have rank 0, and both report it. Behind a
    service's address it may be this node itself.
    """

    def __init__(self, node: JoiningNode, now: float) -> None:
        host = node.terms.host.value
        self.failure: RendezvousError | None = None
        self.master_addr = host
        """MASTER_ADDR of this node's workers: the name, or an address of this machine if the name
        has addresses of others, too."""
        self._node = node
        self._warning = ""
        self._warning_due = now + SECONDS_TO_FIRST_NOTICE
        self._epoll = select.epoll()
        self._lookup: Lookup | None = Lookup(host, self._epoll, now, node.hooks.resolve)
        self._member: JoiningMember | None = None

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def due(self) -> float:
        if self._member is not None:
            return min(self._member.due, self._warning_due if self._warning else NEVER)
        if self._lookup is not None:
            return 0.0 if self._lookup.addresses else self._lookup.due
        return NEVER

    def turn(self, now: float) -> None:
        if self._lookup is not None:
            self._lookup.turn(now)
            if self._lookup.addresses:
                self._check_addresses(self._lookup, now)
        elif self._member is not None:
            self._member.turn(now)
            if self._member.finished:
                self._end(self._member)
            elif self._warning and now >= self._warning_due:
                # Not at once: a service's address belongs to no machine either, and leads here.
                self._node.hooks.notice(self._warning)
                self._warning = ""

    def close(self) -> None:
        for watched in (self._lookup, self._member):
            if watched is not None:
                watched.close()
        self._lookup = self._member = None
        self._epoll.close()

    def _check_addresses(self, lookup: Lookup, now: float) -> None:
        lookup.close()
        self._lookup = None
        interfaces = self._node.hooks.interfaces()
        own = [address for address in lookup.addresses if is_own(address, interfaces)]
        if own and len(own) < len(lookup.addresses):
            self.master_addr = own[0].text
        if own:
            return
        host, address = self._node.terms.host, lookup.addresses[0].text
        resolves = "" if host.value == address else f" resolves to {address}, which"
        self._warning = (
            f"{self._node.hello.host} is node 0, but {host}{resolves} is none of its addresses"
        )
        silent = self._node.hooks._replace(notice=lambda _: None)
        node = self._node._replace(hooks=silent)
        self._member = JoiningMember(node, JoinTimeout(NEVER, now), now)
        self._epoll.register(self._member, select.EPOLLIN)

    def _end(self, member: JoiningMember) -> None:
        if member.refusal is Refusal.GIVE_UP:
            self.failure = member.failure
        self._epoll.unregister(member)
        member.close()
        self._member = None
