"""Finds out whether another machine at node 0's address is node 0, too."""

from clusterrun.errors import RendezvousError
from clusterrun.loop import NEVER, Loop, Ready
from clusterrun.network.addresses import is_own
from clusterrun.network.channel import OutgoingChannel
from clusterrun.network.dialer import Dialer
from clusterrun.network.handshake import BadFrame
from clusterrun.network.joining_node import JoiningNode
from clusterrun.policy.events import Event
from clusterrun.policy.joining import SECONDS_TO_FIRST_NOTICE
from clusterrun.policy.messages import HeartbeatAnswer, Notice, Refusal, Refused


class DuplicateCheck:
    """Calls node 0's address if that belongs to another machine: ``--node-rank 0`` may be on two.

    A second node 0 there refuses this one, because both have rank 0, and both report it. Behind a
    service's address it may be this node itself.
    """

    def __init__(self, node: JoiningNode, loop: Loop[Event], ready: Ready[Event]) -> None:
        self.failure: RendezvousError | None = None
        self.master_addr = node.settings.host.value
        """The name, or an address of this machine if the name has addresses of others, too."""
        self._node = node
        self._loop = loop
        self._ready = ready
        self._dialer: Dialer | None = Dialer(node, loop, ready, retries_forever=True)
        self._has_looked = False
        self._outgoing: OutgoingChannel | None = None
        self._warning = ""
        self._warning_due = loop.clock() + SECONDS_TO_FIRST_NOTICE

    @property
    def due(self) -> float:
        if self._dialer is None:
            return NEVER
        waits = self._dialer.due if self._outgoing is None else NEVER
        return min(waits, self._warning_due if self._warning else NEVER)

    def turn(self, now: float) -> None:
        if self._dialer is None:
            return
        if not self._has_looked:
            if self._dialer.look_up(now):
                self._has_looked = True
                self._look_at_addresses(self._dialer)
            return
        try:
            self._exchange(self._dialer, now)
        except RendezvousError:
            # The token or the version of what answers there is another.
            self.close()
        if self._warning and now >= self._warning_due:
            # Not at once: a service's address belongs to no machine either, and leads here.
            self._node.outside.notice(self._warning)
            self._warning = ""

    def close(self) -> None:
        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None
        if self._dialer is not None:
            self._dialer.close()
            self._dialer = None
        self._warning = ""

    def _look_at_addresses(self, dialer: Dialer) -> None:
        interfaces = self._node.outside.interfaces()
        own = [address for address in dialer.addresses if is_own(address.text, interfaces)]
        if own and len(own) < len(dialer.addresses):
            self.master_addr = own[0].host
        if own:
            self.close()
            return
        host, address = self._node.settings.host, dialer.addresses[0].text
        resolves = "" if host.value == address else f" resolves to {address}, which"
        self._warning = (
            f"{self._node.hello.host} is node 0, but {host}{resolves} is none of its addresses"
        )

    def _exchange(self, dialer: Dialer, now: float) -> None:
        if self._outgoing is None:
            self._outgoing = dialer.dial(now)
            if self._outgoing is None:
                return
            self._outgoing.send(self._node.hello)
        outgoing, why = self._outgoing, ""
        try:
            messages = outgoing.receive()
        except BadFrame as error:
            messages, why = [], f"it {error}"
        for message in messages:
            match message:
                case Refused(Refusal.TRY_NEXT_PORT, text) if (
                    len(self._node.settings.ports.value) > 1
                ):
                    why = text
                case Refused(refusal, text, hint):
                    if refusal is Refusal.GIVE_UP:
                        self.failure = RendezvousError(text, hint)
                    self.close()
                    return
                case Notice() | HeartbeatAnswer():
                    continue
                case _:
                    self.close()
                    return
        if why or outgoing.end is not None:
            self._outgoing = None
            dialer.reject(outgoing, why, now)
        else:
            outgoing.watch(self._loop, self._ready)
