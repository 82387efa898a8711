"""Checks whether two machines run as node 0 of the same job."""

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
    """Connects to node 0's address if it does not belong to this node 0.

    If ``--node-rank 0`` was set on two machines, the other one refuses this one's ``Hello``, because
    both have rank 0, and both report the error. If the address is that of a Kubernetes service, this
    node may reach itself.
    """

    def __init__(self, node: JoiningNode, loop: Loop[Event], ready: Ready[Event]) -> None:
        self.failure: RendezvousError | None = None
        self.master_addr = node.settings.host.value
        """Node 0's name; an address of this machine if other machines' addresses share the name."""
        self._node = node
        self._loop = loop
        self._ready = ready
        self._dialer: Dialer | None = Dialer(node, loop, ready, retries_forever=True)
        self._is_resolved = False
        self._outgoing: OutgoingChannel | None = None
        self._warning: str | None = None
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
        if not self._is_resolved:
            if self._dialer.look_up(now):
                self._is_resolved = True
                self._compare_addresses(self._dialer)
            return
        try:
            self._exchange(self._dialer, now)
        except RendezvousError:
            # A clusterrun with a different token or version answers there.
            self.close()
        if self._warning and now >= self._warning_due:
            # Not at once: the address of a Kubernetes service is on no machine, and reaches this node.
            self._node.context.notice(self._warning)
            self._warning = None

    def close(self) -> None:
        if self._outgoing is not None:
            self._outgoing.close()
            self._outgoing = None
        if self._dialer is not None:
            self._dialer.close()
            self._dialer = None
        self._warning = None

    def _compare_addresses(self, dialer: Dialer) -> None:
        interfaces = self._node.context.interfaces()
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
