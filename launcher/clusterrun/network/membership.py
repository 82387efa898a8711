"""An agent's membership in its job of several nodes: from the first call of node 0 to the verdict."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from clusterrun.errors import LauncherError, RendezvousError
from clusterrun.job.values import LOOPBACK
from clusterrun.loop import NEVER, Loop
from clusterrun.network.addresses import Address, interface_of, is_own
from clusterrun.network.channel import How, Outgoing
from clusterrun.network.dialer import Dialer
from clusterrun.network.handshake import BadFrame
from clusterrun.network.join_failures import CLOSED_BY_NODE_ZERO, error_of, node_zero_silent
from clusterrun.network.joined import Dialing, Joined
from clusterrun.network.joining_node import JoiningNode
from clusterrun.network.joining_port import PortBusy
from clusterrun.network.seeking import Failover, Seeking
from clusterrun.network.server import CoordinatorServer, open_ports
from clusterrun.planning.plan import World
from clusterrun.policy.coordinator import Coordinator
from clusterrun.policy.events import (
    CoordinatorLost,
    CoordinatorSent,
    CoordinatorSought,
    Event,
    LookOrdered,
    PlaceAwaited,
    WorldJoined,
)
from clusterrun.policy.fates import bounded
from clusterrun.policy.messages import (
    AgentMessage,
    Ask,
    Done,
    End,
    EndedExternally,
    FromCoordinator,
    KeepWaiting,
    LookOrder,
    NextAttempt,
    Notice,
    Order,
    Paused,
    Refusal,
    Refused,
    Succession,
    Verdict,
    WorldFormed,
)
from clusterrun.policy.notices import ended_while_waiting
from clusterrun.policy.outcome import HelperFailed, Interrupted, NodeLost, Reason, Succeeded
from clusterrun.policy.succession import NO_SUCCESSOR
from clusterrun.ports import WorkersPort

SPARE = "this node is a spare: it waits to take the place of a lost node"
ELASTIC = "this node waits for a place: it is let in when all workers restart"

SECONDS_AFTER_TIMEOUT = 5.0
"""Node 0 ends the wait at the timeout; a member that does not learn of it ends this much later."""

SECONDS_TO_FIND_NODE_ZERO_HERE = 1.0
"""How long another agent of this machine, which has taken the port first, may take to answer."""

SECONDS_TO_FINISH = 0.2
"""How long node 0 stays so that members can learn that the job does not begin."""

SECONDS_FOR_VERDICT = 3.0
"""How long node 0 stays so that members can receive the verdict."""

State = Dialing | Joined | Seeking | CoordinatorServer


class Membership:
    """The membership of one agent, in its loop. What happens in the job comes as events."""

    def __init__(self, node: JoiningNode, loop: Loop[Event]) -> None:
        """Begin to join.

        Raises:
            PortBusy: this is node 0, and no port is free for the coordinator.
            RendezvousError: another program listens on the port that was given for the workers.
            MachineError: this is node 0, and may not open a file for each node.

        """
        self._node = node
        self._loop = loop
        self._terms = node.terms
        self._outside = node.outside
        self._failover: Failover | None = None
        """None: the job ends if the coordinator is lost."""
        self._world: World | None = None
        """This node's part in the newest attempt, as seen from here; None: it has had none."""
        self._formed_at = ""
        """MASTER_ADDR of the first world, as this node knows it."""
        self._interface = ""
        self._node_zero = ""
        """The coordinator's host, once the job has begun."""
        self._has_workers = False
        """They may run: it has not reported that none is left."""
        self._has_ended = False
        """The job has, or goes on without this node: nothing more will come."""
        self._has_succeeded = False
        """The job has; what workers have left here may still run."""
        if node.terms.job.outlives_nodes:
            self._failover = Failover()
            hello = replace(node.hello, standby=self._failover.standby)
            self._node = node._replace(hello=hello)
        self._state: State
        rank = node.hello.rank
        if rank != 0:
            self._state = Dialing(Dialer(self._node, loop, self.events), has_no_rank=rank is None)
        else:
            try:
                self._state = self._node_zero_state()
            except RendezvousError:
                if self._failover is not None:
                    self._failover.close()
                raise
        loop.time(self)

    @property
    def due(self) -> float:
        if self._has_ended:
            return NEVER
        # The server is timed by itself.
        return NEVER if isinstance(self._state, CoordinatorServer) else self._state.due

    def events(self, now: float) -> Iterable[Event]:
        """Do what can be done now, and return what has happened in the job.

        Raises:
            RendezvousError: the nodes contradict each other, or did not all join in time.

        """
        if self._has_ended:
            return
        match self._state:
            case Dialing() as dialing:
                yield from self._dial(dialing, now)
            case Joined() as joined:
                yield from self._exchange(joined, now)
            case Seeking() as seeking:
                yield from self._seek(seeking, now)
            case CoordinatorServer():
                pass

    def send(self, message: AgentMessage) -> Iterable[Event]:
        """Send a message to the coordinator; return what follows at once, if there is none."""
        now = self._loop.clock()
        if isinstance(message, Done):
            self._has_workers = False
        if self._has_ended:
            if self._has_succeeded and isinstance(message, Ask):
                # No other node is there to be asked.
                return (LookOrdered(End(message.number, ()), now),)
            return ()
        match self._state:
            case CoordinatorServer() as server:
                # After what the coordinator has sent before, which may still be queued.
                self._loop.add(server.send(bounded(message), now))
            case Joined() as joined:
                joined.send(bounded(message))
                joined.channel.watch(self._loop, self.events)
            case Seeking() as seeking:
                return tuple(self._send_without_coordinator(message, seeking, now))
        return ()

    def coordinator(self) -> tuple[int, str]:
        """Return the node rank and the host of the coordinator, which may have succeeded node 0."""
        if isinstance(self._state, CoordinatorServer) and self._world is not None:
            return self._world.node_rank, self._node.hello.host
        known = None if self._failover is None else self._failover.known
        return (0, self._node_zero) if known is None else (known.node_rank, known.host)

    def abandon(self, cause: Interrupted | HelperFailed | LauncherError) -> None:
        """Let the other nodes know, if this is node 0, why the job does not begin."""
        if self._world is not None and not isinstance(cause, LauncherError):
            # The world has formed in the same moment.
            self.send(EndedExternally(self._world.attempt, cause))
        elif isinstance(self._state, CoordinatorServer):
            why = ended_while_waiting(self._node.hello.host, cause)
            self._state.abandon(why, self._loop.clock())

    def leave(self) -> None:
        """Disconnect; node 0 first waits some seconds until the others have the verdict."""
        self._end()
        if self._failover is not None:
            self._failover.close()

    # The first call.

    def _node_zero_state(self) -> CoordinatorServer:
        node, now = self._node, self._loop.clock()
        port, workers = open_ports(node)
        terms, number = node.terms, (workers or port).number
        coordinator = Coordinator(terms, node.hello, number, now, has_token=bool(node.token))
        server = CoordinatorServer(
            node, self._loop, coordinator, self._event, port=port, workers=workers
        )
        server.look_for_another()
        return server

    def _dial(self, dialing: Dialing, now: float) -> Iterable[Event]:
        if dialing.has_no_rank:
            addresses = dialing.dialer.look_up(now)
            if not addresses:
                return
            dialing.has_no_rank = False
            interfaces = self._outside.interfaces()
            if any(is_own(address.text, interfaces) for address in addresses):
                try:
                    self._state = self._node_zero_state()
                except PortBusy as busy:
                    dialing.busy, dialing.busy_until = busy, now + SECONDS_TO_FIND_NODE_ZERO_HERE
                else:
                    dialing.dialer.close()
                    return
        channel = dialing.dialer.dial(now)
        if channel is not None:
            yield from self._introduce(dialing, channel, now)
        elif dialing.busy is not None and now >= dialing.busy_until:
            raise dialing.busy

    def _introduce(self, dialing: Dialing, channel: Outgoing, now: float) -> Iterable[Event]:
        # Now, while nothing waits for it: later, the workers would.
        self._interface = interface_of(channel.local_address, self._outside.interfaces())
        addresses = dialing.dialer.addresses
        self._formed_at = master_addr(addresses, channel.address, self._terms.host.value)
        channel.send(replace(self._node.hello, waited=dialing.dialer.elapsed(now)))
        joined = self._joined(channel, now, dialing)
        joined.latest_end = now + self._terms.job.joining.rdzv_timeout + SECONDS_AFTER_TIMEOUT
        yield from self._exchange(joined, now)

    def _joined(self, channel: Outgoing, now: float, found_by: Dialing | Seeking) -> Joined:
        """Become the member of a coordinator that has answered."""
        self._state = joined = Joined(
            channel, self._node, now, goes_back_to=found_by, has_worked=self._world is not None
        )
        return joined

    # A member.

    def _exchange(self, joined: Joined, now: float) -> Iterable[Event]:
        """Read what the coordinator has sent, send a heartbeat if it is due, and notice its loss."""
        why, messages = "", list[FromCoordinator]()
        try:
            messages = joined.receive(now)
        except BadFrame as error:
            why = f"it {error}"
        for message in messages:
            if isinstance(joined.goes_back_to, Dialing) and not isinstance(message, JOINING):
                why = "it ends a job that has not started"
                break
            if isinstance(message, Refused) and (why := self._refused(joined, message)):
                break
            yield from self._event(message, now)
            if self._has_ended:
                return
        if now >= joined.latest_end:
            raise node_zero_silent(self._terms)
        joined.beat(now)
        if why or joined.is_lost(now):
            yield from self._lose(joined, why, now)
        else:
            joined.channel.watch(self._loop, self.events)

    def _refused(self, joined: Joined, refused: Refused) -> str:
        """Return why to call another port; "" if a successor has gone on without this node.

        Raises:
            LauncherError: this is its job, and it can't join.

        """
        if not isinstance(joined.goes_back_to, Dialing):
            return ""
        several = len(self._terms.ports.value) > 1
        joined.is_refused = True
        if refused.refusal is not Refusal.TRY_ELSEWHERE or not several:
            raise error_of(refused)
        return refused.text

    def _lose(self, joined: Joined, why: str, now: float) -> Iterable[Event]:
        """Call again, search for a successor, or end. ``why``: what is wrong with what was received."""
        channel = joined.channel
        # It may stay open, with nothing more to read.
        self._loop.forget(channel.fileno())
        before = joined.goes_back_to
        if isinstance(before, Dialing):
            silent = "" if channel.end else f"node 0 {self._terms.rhythm.silence}"
            why = why or silent or channel.trouble or CLOSED_BY_NODE_ZERO
            before.dialer.reject(channel, why, now)
            if not joined.is_refused:
                # It was node 0.
                before.busy, before.busy_until = None, NEVER
            self._state = before
            return
        how = joined.how_lost(now)
        has_ended = channel.end is How.CLOSED
        if before is not None:
            # The successor is lost, too, before it could go on.
            yield from self._lose_successor(joined, before, now, has_ended=has_ended)
            return
        failover, known = self._failover, None
        if failover is not None and not joined.was_paused and failover.claim(self._world):
            known = failover.known
        if failover is None or known is None:
            rank, host = self.coordinator()
            self._has_ended = True
            if failover is None:
                # So that node 0, if it runs, notices at once.
                channel.close()
            yield CoordinatorLost(NodeLost(rank, host, how), now)
            return
        seeking = Seeking(
            self._node,
            self._loop,
            self.events,
            known,
            how=how,
            heard_at=joined.heard_at,
            has_ended=has_ended,
        )
        failover.leave(channel)
        self._state = seeking
        yield CoordinatorSought(seeking.lost, now)
        if not self._has_workers:
            yield from self._begin_search(seeking, now)

    # After the loss of the coordinator.

    def _lose_successor(
        self, joined: Joined, seeking: Seeking, now: float, *, has_ended: bool
    ) -> Iterable[Event]:
        if not has_ended:
            yield from self._give_up(seeking, now)
            return
        joined.channel.close()
        seeking.go_on(joined.heard_at)
        self._state = seeking
        if self._world is None:
            yield CoordinatorSought(seeking.lost, now)
        yield from self._seek(seeking, now)

    def _begin_search(self, seeking: Seeking, now: float) -> Iterable[Event]:
        if self._failover is not None:
            seeking.begin(self._failover.claim(self._world))
        yield from self._seek(seeking, now)

    def _seek(self, seeking: Seeking, now: float) -> Iterable[Event]:
        match seeking.turn(now):
            case Coordinator() as coordinator if self._failover is not None:
                seeking.close()
                workers = WorkersPort()
                port = self._failover.joining_port
                self._state = CoordinatorServer(
                    self._node, self._loop, coordinator, self._event, port=port, workers=workers
                )
            case Outgoing() as channel:
                if self._world is None:
                    yield PlaceAwaited(now)
                yield from self._exchange(self._joined(channel, now, seeking), now)
            case None if seeking.has_failed:
                yield from self._give_up(seeking, now)

    def _give_up(self, seeking: Seeking, now: float, why: str = NO_SUCCESSOR) -> Iterable[Event]:
        """End, since no successor can go on with this node."""
        self._end()
        yield CoordinatorLost(seeking.lost, now, why)

    def _send_without_coordinator(
        self, message: AgentMessage, seeking: Seeking, now: float
    ) -> Iterable[Event]:
        """Search once no worker is left, unless this node is to end anyway."""
        ends = isinstance(message, EndedExternally) or (
            isinstance(message, Done) and message.external_cause is not None
        )
        if ends:
            yield from self._give_up(seeking, now)
        elif isinstance(message, Done):
            yield from self._begin_search(seeking, now)

    # What the coordinator has sent.

    def _event(self, message: FromCoordinator, now: float) -> Iterable[Event]:
        """Return what a message means for the agent, and do what it means for the membership."""
        match message:
            case Notice(text):
                self._outside.notice(text)
            case KeepWaiting(host):
                self._node_zero = host
                if isinstance(self._state, Joined):
                    self._state.has_found_its_job()
                self._outside.notice(ELASTIC if self._terms.job.is_elastic else SPARE)
                yield PlaceAwaited(now)
            case WorldFormed(world, host):
                self._node_zero = host
                yield WorldJoined(self._begin_first(world), now)
            case NextAttempt(world):
                yield CoordinatorSent(replace(message, world=self._begin(world)), now)
            case Succession():
                self._learn(message)
            case Refused(_, text):
                if isinstance(self._state, Joined) and isinstance(
                    self._state.goes_back_to, Seeking
                ):
                    # A successor has gone on without this node.
                    yield from self._give_up(self._state.goes_back_to, now, text)
            case Paused(paused):
                if isinstance(self._state, Joined):
                    self._state.node_zero_pauses(now, paused=paused)
            case Verdict(reason):
                self._is_judged(reason)
                yield CoordinatorSent(message, now)
            case _ if isinstance(message, LookOrder):
                yield LookOrdered(message, now)
            case _ if isinstance(message, Order):
                yield CoordinatorSent(message, now)

    def _begin_first(self, formed: World) -> World:
        """Return the first world of this node, with an interface if libraries need its name."""
        state, named = self._state, self._terms.host.value
        if isinstance(state, CoordinatorServer):
            self._formed_at = state.master_addr
            # If no other machine has connected, all nodes are on this one.
            reached_at = state.reached_at or LOOPBACK
            self._interface = interface_of(reached_at, self._outside.interfaces())
        if formed.master_addr != named:
            # Another node has succeeded node 0.
            self._formed_at = formed.master_addr
        if self._outside.resolves_for_others(self._node.hello.host, self._loop.clock):
            self._interface = ""
        world = self._begin(formed)
        if isinstance(state, Joined):
            state.has_found_its_job()
            # Now: the look-up of this node's name may have taken seconds.
            state.begins(self._loop.clock())
        return world

    def _begin(self, world: World) -> World:
        """Return a world as it is seen from here: node 0's address, and this node's interface."""
        is_named = world.master_addr == self._terms.host.value
        address = self._formed_at if is_named else world.master_addr
        self._world = replace(world, master_addr=address, interface=self._interface)
        self._has_workers = True
        return self._world

    def _learn(self, known: Succession) -> None:
        if self._failover is None or not isinstance(self._state, Joined):
            return
        self._failover.learn(known, self._state.channel)
        # A successor has gone on.
        self._state.has_found_its_job()

    # Ends.

    def _is_judged(self, reason: Reason) -> None:
        """Take note that the job is over."""
        self._has_succeeded = isinstance(reason, Succeeded)
        if self._has_succeeded and self._failover is not None:
            # What workers have left may run for longer than a lease.
            self._outside.renew_lease(None)
        if isinstance(self._state, Joined):
            # At once: node 0 waits until all have disconnected.
            self._end()

    def _end(self) -> None:
        """Expect nothing more."""
        self._has_ended = True
        self._loop.untime(self)
        if isinstance(self._state, CoordinatorServer):
            has_begun = self._world is not None
            self._state.finish(SECONDS_FOR_VERDICT if has_begun else SECONDS_TO_FINISH)
        else:
            self._state.close()


JOINING = (Notice, Refused, WorldFormed, KeepWaiting, Succession)
"""What node 0 sends to a member before it has a place or waits for one."""


def master_addr(addresses: Sequence[Address], answered: Address, name: str) -> str:
    """Return node 0's name, or the address that has answered if the name may lead elsewhere."""
    # A worker's library tries the addresses of a name in turn, and waits long for a dead one:
    # also for one behind that of node 0, whose port refuses until rank 0 listens. A second
    # address of the same family is most often that of another machine, or of none.
    first, *others = addresses
    only_this_one = answered != first or any(each.family == first.family for each in others)
    return answered.text if only_this_one else name
