"""An agent's membership in a multi-node job, from the first connection to node 0 to the verdict."""

import os
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.errors import LauncherError
from clusterrun.job.values import LOOPBACK
from clusterrun.loop import NEVER, Loop
from clusterrun.network.addresses import Address, interface_of, is_own
from clusterrun.network.channel import OutgoingChannel
from clusterrun.network.dialer import Dialer
from clusterrun.network.handshake import BadFrame
from clusterrun.network.join_failures import error_of, node_zero_silent_error
from clusterrun.network.joining_node import JoiningNode
from clusterrun.network.member import Member, NodeZeroLoss
from clusterrun.network.rendezvous_port import PortInUse
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

SPARE_NOTICE = "this node is a spare: it waits to take the place of a lost node"
ELASTIC_NOTICE = (
    "this node is waiting to join: it is admitted when all workers restart and there is room"
)

SECONDS_AFTER_TIMEOUT = 5.0
"""Node 0 ends the rendezvous at the timeout; a member that receives no message then ends this much
later."""

SECONDS_TO_FIND_LOCAL_NODE_ZERO = 1.0
"""For another agent on this machine that has the rendezvous port, and so is node 0, to answer."""

SECONDS_TO_FINISH = 0.2
"""For members to learn from node 0 that the job does not start."""

SECONDS_FOR_VERDICT = 3.0
"""For members to receive the verdict from node 0."""


class Dialing(Struct, eq=False):
    """The agent connects to node 0."""

    dialer: Dialer
    is_rankless: bool = False
    """The agent becomes node 0 if node 0's address belongs to this machine."""
    busy: PortInUse | None = None
    """Why it did not become node 0: another program has the port."""
    busy_deadline: float = NEVER
    """Until when that program must turn out to be node 0."""
    deadline: float = NEVER
    """Until when node 0 must answer a node that it has declared lost before; NEVER for other nodes."""

    @property
    def due(self) -> float:
        return min(self.dialer.due, self.busy_deadline, self.deadline)

    def close(self) -> None:
        self.dialer.close()


class HelloSent(Struct, eq=False):
    """The agent has sent its ``Hello``. If the peer is not node 0 of its job, it continues to dial."""

    member: Member
    dialing: Dialing
    deadline: float
    """When to give up."""
    is_refused: bool = False
    """The peer is node 0 of another job."""

    @property
    def due(self) -> float:
        return min(self.member.due, self.deadline)

    def close(self) -> None:
        self.member.channel.close()
        self.dialing.close()


class Joined(Struct, eq=False):
    """The agent is a member of its job: it works, or waits to be admitted."""

    member: Member

    @property
    def due(self) -> float:
        return self.member.due

    def close(self) -> None:
        self.member.channel.shut_down()


State = Dialing | HelloSent | Joined | CoordinatorServer


class Membership:
    """The membership of one agent, which runs in the agent's loop and produces events."""

    def __init__(self, node: JoiningNode, loop: Loop[Event]) -> None:
        """Start to join.

        Raises:
            PortInUse: this is node 0, and no port is free for the coordinator.
            RendezvousError: another program listens on the port that was set for the workers.
            MachineError: this is node 0, and the limit of open files is too low.

        """
        self._node = node
        self._loop = loop
        self._settings = node.settings
        self._context = node.context
        self._world: World | None = None
        """The world of the newest attempt, as workers on this node see it."""
        self._master_addr = ""
        """MASTER_ADDR of the first attempt on this node."""
        self._interface: str | None = None
        self.node_zero = node.hello.host if node.hello.rank == 0 else ""
        """Node 0's host; "" while it is unknown."""
        self._lines = LineLimit()
        self._has_ended = False
        """The job has ended, or continues without this node: no more messages will come."""
        self._has_succeeded = False
        """The job has succeeded; processes that workers have left on this node may still run."""
        self._state: State
        rank = node.hello.rank
        if rank == 0:
            self._state = self._start_server()
        else:
            self._state = Dialing(Dialer(node, loop, self.events), is_rankless=rank is None)
        loop.add_timer(self)

    @property
    def due(self) -> float:
        if self._has_ended:
            return NEVER
        # The server is a timer of the loop itself.
        return NEVER if isinstance(self._state, CoordinatorServer) else self._state.due

    def events(self, now: float) -> Iterable[Event]:
        """Continue with what is ready, and return the job's events.

        Raises:
            RendezvousError: the nodes disagree, or did not all join in time.

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
        """Send a message to the coordinator; return the answer if there is no coordinator any more."""
        if self._has_ended:
            if self._has_succeeded and isinstance(message, Query):
                # No other node is left to be queried.
                return (QueryReceived(EndOfAnswers(message.number), self._loop.clock()),)
            return ()
        match self._state:
            case CoordinatorServer() as server:
                # After earlier messages of the coordinator, which may still be queued.
                self._loop.add(server.send(bounded(message), self._loop.clock()))
            case Joined(member):
                member.channel.send(bounded(message))
                member.channel.watch(self._loop, self.events)
            case _:
                pass
        return ()

    def node_zero_time(self, age: float) -> float | None:
        """Return the time ``age`` seconds ago by node 0's clock; None if the offset is not known."""
        match self._state:
            case CoordinatorServer():
                return self._loop.clock() - age
            case Joined(member):
                return member.node_zero_time(age)
            case _:
                return None

    def rejoin(self) -> None:
        """Join again as a new node, after node 0 has declared this one lost."""
        if not isinstance(self._state, CoordinatorServer):
            self._state.close()
        hello = replace(self._node.hello, identity=os.urandom(8).hex(), rank=None)
        self._node = self._node._replace(hello=hello)
        self._world, self._has_ended = None, False
        self._context.renew_lease(None)
        dialer = Dialer(self._node, self._loop, self.events, retries_forever=True)
        until = self._loop.clock() + self._settings.rhythm.timeout
        self._state = Dialing(dialer, deadline=until)

    def abandon(self, cause: Interrupted | HelperFailed | LauncherError) -> None:
        """If this is node 0, report to the other nodes why the job does not start."""
        if self._world is not None and not isinstance(cause, LauncherError):
            # The world has formed at the same moment.
            self.send(EndedExternally(self._world.attempt, cause))
        elif isinstance(self._state, CoordinatorServer):
            why = ended_while_waiting(self._node.hello.host, self._settings.job.agent_unit, cause)
            self._state.abandon(why, self._loop.clock())

    def leave(self) -> None:
        """Disconnect; node 0 first waits some seconds for the others to receive the verdict."""
        self._end()

    # Connecting.

    def _start_server(self) -> CoordinatorServer:
        node, now = self._node, self._loop.clock()
        port, workers = open_ports(node)
        settings, number = node.settings, (workers or port).number
        coordinator = Coordinator(settings, node.hello, number, now, has_token=bool(node.token))
        server = CoordinatorServer(
            node, self._loop, coordinator, self._handle_message, port=port, workers=workers
        )
        server.check_for_duplicate()
        return server

    def _dial(self, dialing: Dialing, now: float) -> Iterable[Event]:
        if now >= dialing.deadline:
            yield from self._end_excluded(now)
            return
        if dialing.is_rankless:
            addresses = dialing.dialer.look_up(now)
            if not addresses:
                return
            dialing.is_rankless = False
            interfaces = self._context.interfaces()
            if any(is_own(address.text, interfaces) for address in addresses):
                try:
                    self._state = self._start_server()
                except PortInUse as busy:
                    dialing.busy, dialing.busy_deadline = (
                        busy,
                        now + SECONDS_TO_FIND_LOCAL_NODE_ZERO,
                    )
                else:
                    dialing.dialer.close()
                    return
        channel = dialing.dialer.dial(now)
        if channel is not None:
            yield from self._send_hello(dialing, channel, now)
        elif dialing.busy is not None and now >= dialing.busy_deadline:
            raise dialing.busy

    def _send_hello(
        self, dialing: Dialing, channel: OutgoingChannel, now: float
    ) -> Iterable[Event]:
        # Now, because later the workers would wait for the list of interfaces.
        local, interfaces = channel.local_address, self._context.interfaces()
        self._interface = None if local is None else interface_of(local, interfaces)
        addresses = dialing.dialer.addresses
        self._master_addr = master_addr(addresses, channel.address, self._settings.host.value)
        waited, sent = dialing.dialer.elapsed(now), self._context.lease_clock()
        hello = replace(self._node.hello, waited=waited, at=sent)
        member = Member(channel, self._node, hello, now)
        until = now + self._settings.job.join.rdzv_timeout + SECONDS_AFTER_TIMEOUT
        if last_call := self._settings.job.last_call:
            until += last_call.timeout
        hello_sent = HelloSent(member, dialing, min(until, dialing.deadline))
        self._state = hello_sent
        yield from self._exchange(hello_sent, now)

    # Connected.

    def _exchange(self, connected: HelloSent | Joined, now: float) -> Iterable[Event]:
        """Handle node 0's messages, send a heartbeat if one is due, and detect the loss of node 0."""
        member, why = connected.member, ""
        try:
            for message in member.receive(now):
                if isinstance(message, Refused):
                    why = self._handle_refusal(message)
                    break
                yield from self._handle_message(message, now)
                if self._has_ended or not self._is_current(member):
                    return
        except BadFrame as error:
            why = f"it {error}" if isinstance(self._state, HelloSent) else str(error)
        member.send_due_heartbeat(now)
        loss = NodeZeroLoss(why) if why else member.loss(now)
        if loss is not None:
            yield from self._handle_loss(loss, now)
            return
        if isinstance(self._state, HelloSent) and now >= self._state.deadline:
            if self._state.dialing.deadline < NEVER:
                yield from self._end_excluded(now)
                return
            raise node_zero_silent_error(self._settings)
        member.channel.watch(self._loop, self.events)

    def _is_current(self, member: Member) -> bool:
        """Return whether ``member`` is still this node's connection."""
        return isinstance(self._state, HelloSent | Joined) and self._state.member is member

    def _handle_refusal(self, refused: Refused) -> str:
        """Return why to try another port.

        Raises:
            LauncherError: the peer is node 0 of this job, and this node can't join.

        """
        if isinstance(self._state, HelloSent):
            self._state.is_refused = True
            if self._state.dialing.deadline < NEVER:
                return refused.text
        several = len(self._settings.ports.value) > 1
        if refused.refusal is not Refusal.TRY_NEXT_PORT or not several:
            raise error_of(refused)
        return refused.text

    def _handle_loss(self, loss: NodeZeroLoss, now: float) -> Iterable[Event]:
        """Dial again if this node had not joined; otherwise end."""
        match self._state:
            case HelloSent(member, dialing, is_refused=is_refused):
                channel = member.channel
                how = loss.how
                if loss.is_silent:
                    how = f"{self._settings.first} {how}"
                elif loss.is_closed:
                    how = channel.error_text or f"{self._settings.first} closed the connection"
                dialing.dialer.reject(channel, how, now)
                if not is_refused:
                    # The peer was node 0 of this job.
                    dialing.busy, dialing.busy_deadline = None, NEVER
                self._state = dialing
            case Joined(member):
                self._has_ended = True
                at_once = loss.is_silent and self._settings.job.survives_node_loss
                # Node 0, if it is alive, notices this at once, or when the fork server closes its copy.
                member.channel.close()
                yield CoordinatorLost(self._node_zero_lost(loss.how), now, at_once)
            case _:
                pass

    def _end_excluded(self, now: float) -> Iterable[Event]:
        """End, because node 0 has declared this node lost and does not admit it again."""
        self._end()
        how = "has continued without this node, and does not let it rejoin"
        yield CoordinatorLost(self._node_zero_lost(how), now)

    def _node_zero_lost(self, how: str) -> NodeLost:
        return NodeLost(0, self.node_zero, how, is_task=self._settings.job.tasks is not None)

    # Messages of the coordinator.

    def _handle_message(self, message: FromCoordinator, now: float) -> Iterable[Event]:
        """Update the membership; yield the events that a message is for the agent."""
        match message:
            case Notice(text):
                self._print(text, now)
            case KeepWaiting(host):
                self.node_zero = host
                self._confirm_job()
                self._print(ELASTIC_NOTICE if self._settings.job.is_elastic else SPARE_NOTICE, now)
                yield WaitListed(now)
            case WorldFormed(world, host):
                self.node_zero = host
                self._confirm_job()
                yield WorldJoined(self._first_world(world), now)
            case NextAttempt(world):
                yield CoordinatorSent(replace(message, world=self._localize(world)), now)
            case Paused(paused):
                if isinstance(self._state, Joined):
                    self._state.member.set_paused(now, paused=paused)
            case GivenUp(why) if self._world is None:
                self._print(f"node 0 has declared this node lost, as it {why}; rejoining", now)
                self.rejoin()
            case GivenUp():
                # Node 0 closes the connection: that is not a loss.
                self._has_ended = True
                if isinstance(self._state, Joined):
                    self._loop.forget(self._state.member.channel.fileno())
                yield CoordinatorSent(message, now)
            case Verdict(reason):
                self._handle_verdict(reason)
                yield CoordinatorSent(message, now)
            case _ if isinstance(message, QueryMessage):
                yield QueryReceived(message, now)
            case _ if isinstance(message, Order):
                yield CoordinatorSent(message, now)

    def _print(self, text: str, now: float) -> None:
        """Print a line that node 0 has sent; the number of lines is limited if it is another machine."""
        if isinstance(self._state, CoordinatorServer) or self._lines.allows("", now):
            self._context.notice(text)

    def _confirm_job(self) -> None:
        """Stop dialing: the peer is node 0 of this job."""
        if isinstance(self._state, HelloSent):
            self._state.dialing.close()
            self._state = Joined(self._state.member)

    def _first_world(self, formed: World) -> World:
        """Return the localized first world, with an interface if libraries need its name."""
        state, interfaces = self._state, self._context.interfaces()
        if isinstance(state, CoordinatorServer):
            self._master_addr = state.master_addr
            # If no other machine has connected, all nodes are on this one.
            self._interface = interface_of(state.reached_at or LOOPBACK, interfaces)
        host = self._node.hello.host
        if self._context.resolves_for_others(host, self._loop.clock, interfaces):
            self._interface = None
        if isinstance(state, Joined):
            # Only now, because the lookup of this node's name may have taken seconds.
            state.member.begin_work(self._loop.clock())
        return self._localize(formed)

    def _localize(self, world: World) -> World:
        """Return a world with node 0's address as seen from this node, and this node's interface."""
        self._world = replace(
            world,
            master_addr=self._master_addr,
            interface=self._interface or "",
            programs=tuple(it.with_node_zero_at(self._master_addr) for it in world.programs),
        )
        return self._world

    # The end.

    def _handle_verdict(self, reason: Reason) -> None:
        self._has_succeeded = isinstance(reason, Succeeded)
        if self._has_succeeded:
            # Processes that workers have left may run for longer than a lease.
            self._context.renew_lease(None)
        if isinstance(self._state, Joined):
            # At once, because node 0 waits until all members have disconnected.
            self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._loop.remove_timer(self)
        if isinstance(self._state, CoordinatorServer):
            has_begun = self._world is not None
            self._state.finish(SECONDS_FOR_VERDICT if has_begun else SECONDS_TO_FINISH)
        else:
            self._state.close()


def master_addr(addresses: Sequence[Address], answered: Address, name: str) -> str:
    """Return node 0's name, or the address that has answered if the name has others that may not."""
    # A worker's library tries the addresses of a name in turn and waits long for a dead one, even if
    # that comes after node 0's, whose port refuses connections until rank 0 listens. A second address
    # of the same family most often belongs to another machine or to none.
    first, *others = addresses
    only_this_one = answered != first or any(each.family == first.family for each in others)
    return answered.host if only_this_one else name
