"""An agent's membership in its job of several nodes: from the first call of node 0 to the verdict."""

import os
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.errors import LauncherError
from clusterrun.job.values import LOOPBACK
from clusterrun.loop import NEVER, Loop
from clusterrun.network.addresses import Address, interface_of, is_own
from clusterrun.network.channel import ChannelEnd, OutgoingChannel
from clusterrun.network.dialer import Dialer
from clusterrun.network.handshake import BadFrame
from clusterrun.network.join_failures import CLOSED_BY_NODE_ZERO, error_of, node_zero_silent_error
from clusterrun.network.joining_node import JoiningNode
from clusterrun.network.joining_port import PortInUse
from clusterrun.network.member import Loss, Member
from clusterrun.network.server import CoordinatorServer, open_ports
from clusterrun.planning.plan import World
from clusterrun.policy.coordinator import Coordinator
from clusterrun.policy.events import (
    CoordinatorLost,
    CoordinatorSent,
    Event,
    QueryReceived,
    WaitListed,
    WorldJoined,
)
from clusterrun.policy.messages import (
    AgentMessage,
    EndedExternally,
    FromCoordinator,
    GivenUp,
    KeepWaiting,
    NextAttempt,
    Notice,
    Order,
    Paused,
    QueryMessage,
    Refusal,
    Refused,
    Verdict,
    WorldFormed,
)
from clusterrun.policy.notices import LineLimit, ended_while_waiting
from clusterrun.policy.outcome import HelperFailed, Interrupted, NodeLost, Reason, Succeeded
from clusterrun.policy.queries import EndOfAnswers, Query
from clusterrun.policy.results import bounded

SPARE = "this node is a spare: it waits to take the place of a lost node"
ELASTIC = "this node is waiting to join: it is admitted when all workers restart"

SECONDS_AFTER_TIMEOUT = 5.0
"""Node 0 ends the wait at the timeout; a member that does not learn of it ends this much later."""

SECONDS_TO_FIND_NODE_ZERO_HERE = 1.0
"""How long another agent of this machine, which has taken the port first, may take to answer."""

SECONDS_TO_FINISH = 0.2
"""How long node 0 stays so that members can learn that the job does not begin."""

SECONDS_FOR_VERDICT = 3.0
"""How long node 0 stays so that members can receive the verdict."""


class Dialing(Struct, eq=False):
    """It calls node 0, and is not a member yet."""

    dialer: Dialer
    has_no_rank: bool = False
    """If node 0's address belongs to this machine, it is node 0."""
    busy: PortInUse | None = None
    """Why it is not, though the address does: another program has the port."""
    busy_until: float = NEVER
    """Until then that program must turn out to be node 0."""
    latest_end: float = NEVER
    """When node 0 must have answered that has given up this node before."""

    @property
    def due(self) -> float:
        return min(self.dialer.due, self.busy_until, self.latest_end)

    def close(self) -> None:
        self.dialer.close()


class HelloSent(Struct, eq=False):
    """It has introduced itself to what may be node 0 of its job; if not, it dials on."""

    member: Member
    dialing: Dialing
    latest_end: float
    """When it gives up."""
    is_refused: bool = False
    """This is another job's node 0."""

    @property
    def due(self) -> float:
        return min(self.member.due, self.latest_end)

    def close(self) -> None:
        self.member.channel.close()
        self.dialing.close()


class Joined(Struct, eq=False):
    """It is a member of its job, with a place or without one."""

    member: Member

    @property
    def due(self) -> float:
        return self.member.due

    def close(self) -> None:
        self.member.channel.shut_down()


State = Dialing | HelloSent | Joined | CoordinatorServer


class Membership:
    """The membership of one agent, in its loop. What happens in the job comes as events."""

    def __init__(self, node: JoiningNode, loop: Loop[Event]) -> None:
        """Begin to join.

        Raises:
            PortInUse: this is node 0, and no port is free for the coordinator.
            RendezvousError: another program listens on the port that was given for the workers.
            MachineError: this is node 0, and may not open a file for each node.

        """
        self._node = node
        self._loop = loop
        self._terms = node.settings
        self._outside = node.outside
        self._world: World | None = None
        """This node's part in the newest attempt, as seen from here; None: it has had none."""
        self._formed_at = ""
        """MASTER_ADDR of the first world, as this node knows it."""
        self._interface = ""
        self.node_zero = node.hello.host if node.hello.rank == 0 else ""
        """Node 0's host, once the job has begun."""
        self._lines = LineLimit()
        self._given_up = False
        """Node 0 has given up this node, which joins again, or has done so."""
        self._has_ended = False
        """The job has, or goes on without this node: nothing more will come."""
        self._has_succeeded = False
        """The job has; what workers have left here may still run."""
        self._state: State
        rank = node.hello.rank
        if rank == 0:
            self._state = self._node_zero_state()
        else:
            self._state = Dialing(Dialer(node, loop, self.events), has_no_rank=rank is None)
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
            case HelloSent() | Joined() as connected:
                yield from self._exchange(connected, now)
            case CoordinatorServer():
                pass

    def send(self, message: AgentMessage) -> Iterable[Event]:
        """Send a message to the coordinator; return what follows at once, if there is none."""
        if self._has_ended:
            if self._has_succeeded and isinstance(message, Query):
                # No other node is there to be asked.
                return (QueryReceived(EndOfAnswers(message.number), self._loop.clock()),)
            return ()
        match self._state:
            case CoordinatorServer() as server:
                # After what the coordinator has sent before, which may still be queued.
                self._loop.add(server.send(bounded(message), self._loop.clock()))
            case Joined(member):
                member.channel.send(bounded(message))
                member.channel.watch(self._loop, self.events)
            case _:
                pass
        return ()

    def date(self, age: float) -> float | None:
        """Return when something happened ``age`` seconds ago, by node 0's clock; None if not known."""
        match self._state:
            case CoordinatorServer():
                return self._loop.clock() - age
            case Joined(member):
                return member.date(age)
            case _:
                return None

    def rejoin(self) -> None:
        """Join again as a node that waits for a place, now that node 0 has given up this one."""
        if not isinstance(self._state, CoordinatorServer):
            self._state.close()
        hello = replace(self._node.hello, identity=os.urandom(8).hex(), rank=None)
        self._node = self._node._replace(hello=hello)
        self._world, self._given_up, self._has_ended = None, True, False
        self._outside.renew_lease(None)
        dialer = Dialer(self._node, self._loop, self.events, retries_forever=True)
        until = self._loop.clock() + self._terms.rhythm.timeout
        self._state = Dialing(dialer, latest_end=until)

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

    # The first call.

    def _node_zero_state(self) -> CoordinatorServer:
        node, now = self._node, self._loop.clock()
        port, workers = open_ports(node)
        settings, number = node.settings, (workers or port).number
        coordinator = Coordinator(settings, node.hello, number, now, has_token=bool(node.token))
        server = CoordinatorServer(
            node, self._loop, coordinator, self._event, port=port, workers=workers
        )
        server.check_for_duplicate()
        return server

    def _dial(self, dialing: Dialing, now: float) -> Iterable[Event]:
        if now >= dialing.latest_end:
            yield from self._end_without_place(now)
            return
        if dialing.has_no_rank:
            addresses = dialing.dialer.look_up(now)
            if not addresses:
                return
            dialing.has_no_rank = False
            interfaces = self._outside.interfaces()
            if any(is_own(address.text, interfaces) for address in addresses):
                try:
                    self._state = self._node_zero_state()
                except PortInUse as busy:
                    dialing.busy, dialing.busy_until = busy, now + SECONDS_TO_FIND_NODE_ZERO_HERE
                else:
                    dialing.dialer.close()
                    return
        channel = dialing.dialer.dial(now)
        if channel is not None:
            yield from self._introduce(dialing, channel, now)
        elif dialing.busy is not None and now >= dialing.busy_until:
            raise dialing.busy

    def _introduce(self, dialing: Dialing, channel: OutgoingChannel, now: float) -> Iterable[Event]:
        # Now, while nothing waits for it: later, the workers would.
        self._interface = interface_of(channel.local_address, self._outside.interfaces())
        addresses = dialing.dialer.addresses
        self._formed_at = master_addr(addresses, channel.address, self._terms.host.value)
        waited, sent = dialing.dialer.elapsed(now), self._outside.lease_clock()
        hello = replace(self._node.hello, waited=waited, at=sent)
        member = Member(channel, self._node, hello, now)
        until = now + self._terms.job.join.rdzv_timeout + SECONDS_AFTER_TIMEOUT
        introduced = HelloSent(member, dialing, min(until, dialing.latest_end))
        self._state = introduced
        yield from self._exchange(introduced, now)

    # A member.

    def _exchange(self, connected: HelloSent | Joined, now: float) -> Iterable[Event]:
        """Read what node 0 has sent, send a heartbeat if it is due, and notice its loss."""
        member, why = connected.member, ""
        try:
            for message in member.receive(now):
                if isinstance(message, Refused):
                    why = self._refused(message)
                    break
                yield from self._event(message, now)
                if self._has_ended or not self._is_with(member):
                    return
        except BadFrame as error:
            why = f"it {error}" if isinstance(self._state, HelloSent) else str(error)
        member.beat(now)
        loss = Loss(why) if why else member.loss(now)
        if loss is not None:
            yield from self._lose(loss, now)
            return
        if isinstance(self._state, HelloSent) and now >= self._state.latest_end:
            if self._given_up:
                yield from self._end_without_place(now)
                return
            raise node_zero_silent_error(self._terms)
        member.channel.watch(self._loop, self.events)

    def _is_with(self, member: Member) -> bool:
        """Return whether this node is still the same member."""
        return isinstance(self._state, HelloSent | Joined) and self._state.member is member

    def _refused(self, refused: Refused) -> str:
        """Return why to call another port.

        Raises:
            LauncherError: this is its job, and it can't join.

        """
        if isinstance(self._state, HelloSent):
            self._state.is_refused = True
        if self._given_up:
            return refused.text
        several = len(self._terms.ports.value) > 1
        if refused.refusal is not Refusal.TRY_NEXT_PORT or not several:
            raise error_of(refused)
        return refused.text

    def _lose(self, loss: Loss, now: float) -> Iterable[Event]:
        """Call again, if this was not yet node 0 of the job; or end."""
        match self._state:
            case HelloSent(member, dialing, is_refused=is_refused):
                channel = member.channel
                how = loss.how
                if loss.is_silent:
                    how = f"node 0 {how}"
                elif how == ChannelEnd.CLOSED.value:
                    how = channel.trouble or CLOSED_BY_NODE_ZERO
                dialing.dialer.reject(channel, how, now)
                if not is_refused:
                    # It was node 0.
                    dialing.busy, dialing.busy_until = None, NEVER
                self._state = dialing
            case Joined(member):
                self._has_ended = True
                at_once = loss.is_silent and self._terms.job.survives_node_loss
                # Node 0, if it runs, notices at once; or when the fork server lets go of the connection.
                member.channel.close()
                yield CoordinatorLost(self._node_zero_lost(loss.how), now, at_once)
            case _:
                pass

    def _end_without_place(self, now: float) -> Iterable[Event]:
        """End, since node 0 has given up this node, and does not let it in again."""
        self._end()
        how = "has gone on without this node, and does not let it join again"
        yield CoordinatorLost(self._node_zero_lost(how), now)

    def _node_zero_lost(self, how: str) -> NodeLost:
        return NodeLost(0, self.node_zero, how, is_task=self._terms.job.tasks is not None)

    # What the coordinator has sent.

    def _event(self, message: FromCoordinator, now: float) -> Iterable[Event]:
        """Return what a message means for the agent, and do what it means for the membership."""
        match message:
            case Notice(text):
                self._print(text, now)
            case KeepWaiting(host):
                self.node_zero = host
                self._has_found_its_job()
                self._print(ELASTIC if self._terms.job.is_elastic else SPARE, now)
                yield WaitListed(now)
            case WorldFormed(world, host):
                self.node_zero = host
                self._has_found_its_job()
                yield WorldJoined(self._begin_first(world), now)
            case NextAttempt(world):
                yield CoordinatorSent(replace(message, world=self._begin(world)), now)
            case Paused(paused):
                if isinstance(self._state, Joined):
                    self._state.member.pauses(now, paused=paused)
            case GivenUp(why) if self._world is None:
                self._print(f"node 0 has declared this node lost, as it {why}; rejoining", now)
                self.rejoin()
            case GivenUp():
                # Node 0 has closed the connection: that it ends is not a loss any more.
                self._has_ended = True
                if isinstance(self._state, Joined):
                    self._loop.forget(self._state.member.channel.fileno())
                yield CoordinatorSent(message, now)
            case Verdict(reason):
                self._is_judged(reason)
                yield CoordinatorSent(message, now)
            case _ if isinstance(message, QueryMessage):
                yield QueryReceived(message, now)
            case _ if isinstance(message, Order):
                yield CoordinatorSent(message, now)

    def _print(self, text: str, now: float) -> None:
        """Print a line of node 0's; no more, after too many from another machine."""
        if isinstance(self._state, CoordinatorServer) or self._lines.allows("", now):
            self._outside.notice(text)

    def _has_found_its_job(self) -> None:
        """Stay with this node 0."""
        if isinstance(self._state, HelloSent):
            self._state.dialing.close()
            self._state = Joined(self._state.member)

    def _begin_first(self, formed: World) -> World:
        """Return the first world of this node, with an interface if libraries need its name."""
        state, interfaces = self._state, self._outside.interfaces()
        if isinstance(state, CoordinatorServer):
            self._formed_at = state.master_addr
            # If no other machine has connected, all nodes are on this one.
            reached_at = state.reached_at or LOOPBACK
            self._interface = interface_of(reached_at, interfaces)
        host = self._node.hello.host
        if self._outside.resolves_for_others(host, self._loop.clock, interfaces):
            self._interface = ""
        if isinstance(state, Joined):
            # Now: the look-up of this node's name may have taken seconds.
            state.member.begin_work(self._loop.clock())
        return self._begin(formed)

    def _begin(self, world: World) -> World:
        """Return a world as it is seen from here: node 0's address, and this node's interface."""
        self._world = replace(world, master_addr=self._formed_at, interface=self._interface)
        return self._world

    # Ends.

    def _is_judged(self, reason: Reason) -> None:
        """Take note that the job is over."""
        self._has_succeeded = isinstance(reason, Succeeded)
        if self._has_succeeded:
            # What workers have left may run for longer than a lease.
            self._outside.renew_lease(None)
        if isinstance(self._state, Joined):
            # At once: node 0 waits until all have disconnected.
            self._end()

    def _end(self) -> None:
        """Expect nothing more."""
        self._has_ended = True
        self._loop.remove_timer(self)
        if isinstance(self._state, CoordinatorServer):
            has_begun = self._world is not None
            self._state.finish(SECONDS_FOR_VERDICT if has_begun else SECONDS_TO_FINISH)
        else:
            self._state.close()


def master_addr(addresses: Sequence[Address], answered: Address, name: str) -> str:
    """Return node 0's name, or the address that has answered if the name may lead elsewhere."""
    # A worker's library tries the addresses of a name in turn, and waits long for a dead one:
    # also for one behind that of node 0, whose port refuses until rank 0 listens. A second
    # address of the same family is most often that of another machine, or of none.
    first, *others = addresses
    only_this_one = answered != first or any(each.family == first.family for each in others)
    return answered.host if only_this_one else name
