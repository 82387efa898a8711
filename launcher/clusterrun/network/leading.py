"""Node 0, or its successor: the agent that runs the coordinator, and listens for the others."""

from collections.abc import Callable, Iterable

from clusterrun.errors import RendezvousError
from clusterrun.loop import NEVER, Loop, Ready
from clusterrun.network.addresses import is_own, loopback_address
from clusterrun.network.channel import BadFrame, Outgoing
from clusterrun.network.dialer import Dialer
from clusterrun.network.joining_node import JoiningNode
from clusterrun.network.joining_port import JoiningPort, open_joining_port
from clusterrun.network.server import Conditions, Server
from clusterrun.policy import job_events
from clusterrun.policy.coordinator import Coordinator
from clusterrun.policy.events import Event
from clusterrun.policy.job import Job
from clusterrun.policy.joining import SECONDS_TO_FIRST_NOTICE
from clusterrun.policy.members import OWN
from clusterrun.policy.messages import (
    AgentMessage,
    FromCoordinator,
    Notice,
    Refusal,
    Refused,
    WorldFormed,
)
from clusterrun.ports import WorkersPort

SECONDS_TO_REFUSE_LATECOMERS = 0.7
"""Nodes that start a little later should learn why the job can't start, too."""


class Leading:
    """The coordinator with its own agent, which is a member in memory, and all connections."""

    def __init__(  # noqa: PLR0913 - what the node has found out
        self,
        node: JoiningNode,
        loop: Loop[Event],
        job: Job,
        event: Callable[[FromCoordinator, float], Iterable[Event]],
        *,
        port: JoiningPort,
        workers: WorkersPort | None,
    ) -> None:
        """Listen.

        Args:
            node: this one.
            loop: the agent's.
            job: the policy.
            event: returns what a message to this node's own agent means for it.
            port: where the others join; taken over.
            workers: where the workers meet; taken over. None: at ``port``, once all have joined.

        Raises:
            MachineError: the limit of open files is too low for a connection to each node.

        """
        self.job = job
        self._loop = loop
        self._workers = workers
        self._event = event
        self._refused: RendezvousError | None = None
        self._latest_end = NEVER
        self._is_over = False
        self._duplicate_check: DuplicateCheck | None = None
        is_fresh = workers is not None and not workers.is_chosen
        next_port = workers.next if workers is not None and is_fresh else (lambda: job.port)
        self._coordinator = Coordinator(job, next_port, node.outside.notice)
        conditions = Conditions(
            node.token, node.outside.renew_lease, node.outside.interfaces, self._mail
        )
        self.server = Server(port, self._coordinator, conditions, loop)

    def watch_for_another(self, node: JoiningNode, ready: Ready[Event]) -> None:
        """Find out whether another machine at node 0's address is node 0, too."""
        self._duplicate_check = DuplicateCheck(node, self._loop, ready)

    @property
    def due(self) -> float:
        check = self._duplicate_check
        return min(self._latest_end, NEVER if check is None else check.due)

    @property
    def master_addr(self) -> str:
        """MASTER_ADDR of this node's workers in the first attempt."""
        check = self._duplicate_check
        return self.job.terms.host.value if check is None else check.master_addr

    def events(self, now: float) -> Iterable[Event]:
        """Do what can be done now.

        Raises:
            RendezvousError: the nodes contradict each other, or did not all join in time.

        """
        check = self._duplicate_check
        if check is not None:
            check.turn(now)
            if check.failure is not None and self._refused is None:
                self.abandon(check.failure.message, now, check.failure.hint)
        return self._mail(now)

    def send(self, message: AgentMessage, now: float) -> Iterable[Event]:
        """Give the coordinator a message of its own agent; return what it answers at once."""
        self.server.received(OWN, message, now)
        return self._mail(now)

    def abandon(self, why: str, now: float, hint: str = "") -> None:
        """Tell all members that the job does not begin."""
        self.server.happens(job_events.Abandoned(why, now, hint))

    def finish(self, seconds: float) -> None:
        """Let members read what was sent last, for at most ``seconds``, and close everything."""
        self._is_over = True
        self._end_check()
        self.server.finish(seconds)
        if self._workers is not None:
            self._workers.release()

    def _mail(self, now: float) -> Iterable[Event]:
        """Return what the coordinator has sent to its own agent, as events."""
        events = list[Event]()
        if self._is_over:
            return events
        for message in self._coordinator.take_mail():
            match message:
                case Refused(_, text, hint):
                    self._refused = RendezvousError(text, hint)
                    self._latest_end = now + SECONDS_TO_REFUSE_LATECOMERS
                case _:
                    events += self._event(message, now)
                    if isinstance(message, WorldFormed):
                        self._end_check()
        if self._refused and (self.server.all_are_informed or now >= self._latest_end):
            raise self._refused
        return events

    def _end_check(self) -> None:
        if self._duplicate_check is not None:
            self._duplicate_check.close()
            self._duplicate_check = None


def open_ports(node: JoiningNode) -> tuple[JoiningPort, WorkersPort | None]:
    """Return where the other nodes join, and where the workers meet if that is another port.

    Raises:
        PortBusy: no port is free for the coordinator.
        RendezvousError: another program listens on the port that was given for the workers.

    """
    terms = node.terms
    # At a loopback address no other machine needs to reach the coordinator.
    only_at = loopback_address(terms.host.value)
    joining = open_joining_port(terms.ports, node.hello.host, only_at)
    if not terms.keeps_joining_port:
        return joining, None
    try:
        return joining, WorkersPort(terms.workers_port)
    except RendezvousError:
        joining.release()
        raise


class DuplicateCheck:
    """Calls node 0's address if that belongs to another machine: ``--node-rank 0`` may be on two.

    A second node 0 there refuses this one, because both have rank 0, and both report it. Behind a
    service's address it may be this node itself.
    """

    def __init__(self, node: JoiningNode, loop: Loop[Event], ready: Ready[Event]) -> None:
        self.failure: RendezvousError | None = None
        self.master_addr = node.terms.host.value
        """The name, or an address of this machine if the name has addresses of others, too."""
        self._node = node
        self._loop = loop
        self._ready = ready
        self._dialer: Dialer | None = Dialer(node, loop, ready, patiently=True)
        self._has_looked = False
        self._outgoing: Outgoing | None = None
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
            self._loop.forget(self._outgoing.fileno())
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
            self.master_addr = own[0].text
        if own:
            self.close()
            return
        host, address = self._node.terms.host, dialer.addresses[0].text
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
                case Refused(Refusal.TRY_ELSEWHERE, text) if len(self._node.terms.ports.value) > 1:
                    why = text
                case Refused(refusal, text, hint):
                    if refusal is Refusal.GIVE_UP:
                        self.failure = RendezvousError(text, hint)
                    self.close()
                    return
                case Notice():
                    continue
                case _:
                    self.close()
                    return
        if why or outgoing.end is not None:
            self._outgoing = None
            dialer.reject(outgoing, why, now)
        else:
            self._loop.watch(outgoing.fileno(), self._ready, writes=outgoing.wants_write)
