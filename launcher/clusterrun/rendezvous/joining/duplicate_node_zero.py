"""Node 0's lookout for another node 0: ``--node-rank 0`` on two machines makes two jobs of one."""

import select

from clusterrun.coordination.messages import Refusal
from clusterrun.coordination.wait_limits import SECONDS_TO_FIRST_NOTICE, Patience
from clusterrun.errors import RendezvousError
from clusterrun.rendezvous.joining.joining_member import Member
from clusterrun.rendezvous.joining.joining_node import Candidate
from clusterrun.rendezvous.names.addresses import is_own
from clusterrun.rendezvous.names.resolver import Lookup

NEVER = float("inf")


class Lookout:
    """Calls the address of node 0 where it is another machine's, as any other member.

    Whoever answers there, not being ourselves by way of a service's address, refuses us for the
    rank that we have in common, and so both learn of it.
    """

    def __init__(self, candidate: Candidate, now: float) -> None:
        """Begin with the name of node 0."""
        host = candidate.settings.host.value
        self.failure: RendezvousError | None = None
        self.master_addr = host
        """What the workers are to be told: the name, or an address of ours if it has others, too."""
        self._candidate = candidate
        self._remark = ""
        self._remark_due = now + SECONDS_TO_FIRST_NOTICE
        self._epoll = select.epoll()
        self._lookup: Lookup | None = Lookup(host, self._epoll, now, candidate.hooks.resolve)
        self._member: Member | None = None

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when ``turn`` has something to do."""
        return self._epoll.fileno()

    @property
    def due(self) -> float:
        """When ``turn`` is to be called even if nothing happens."""
        if self._member is not None:
            return min(self._member.due, self._remark_due if self._remark else NEVER)
        if self._lookup is not None:
            return 0.0 if self._lookup.addresses else self._lookup.due
        return NEVER

    def turn(self, now: float) -> None:
        """Do all that can be done now."""
        if self._lookup is not None:
            self._lookup.turn(now)
            if self._lookup.addresses:
                self._look(self._lookup, now)
        elif self._member is not None:
            self._member.turn(now)
            if self._member.finished:
                self._hear(self._member)
            elif self._remark and now >= self._remark_due:
                # Not at once: a service's address is none of ours either, and leads to us.
                self._candidate.hooks.notice(self._remark)
                self._remark = ""

    def close(self) -> None:
        """Look no more."""
        for watched in (self._lookup, self._member):
            if watched is not None:
                watched.close()
        self._lookup = self._member = None
        self._epoll.close()

    def _look(self, lookup: Lookup, now: float) -> None:
        """Call the address if it is not ours."""
        lookup.close()
        self._lookup = None
        interfaces = self._candidate.hooks.interfaces()
        own = [address for address in lookup.addresses if is_own(address, interfaces)]
        if own and len(own) < len(lookup.addresses):
            self.master_addr = own[0].text
        if own:
            return
        where = f"{self._candidate.settings.host} is {lookup.addresses[0].text}"
        self._remark = f"this is node 0, but {where}, no address of {self._candidate.hello.host}"
        deaf = self._candidate.hooks._replace(notice=lambda _: None)
        self._member = Member(self._candidate._replace(hooks=deaf), Patience(NEVER, now), now)
        self._epoll.register(self._member, select.EPOLLIN)

    def _hear(self, member: Member) -> None:
        if member.refusal is Refusal.GIVE_UP:
            self.failure = member.failure
        self._epoll.unregister(member)
        member.close()
        self._member = None
