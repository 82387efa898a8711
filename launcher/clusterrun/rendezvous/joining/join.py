"""Joins the nodes of a job: ``join`` returns the other nodes once all have joined."""

import os
import select
import signal
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from msgspec.structs import replace

from clusterrun.domain.signal_names import ENDING_SIGNALS
from clusterrun.domain.world import World
from clusterrun.network.addresses import interface_of
from clusterrun.network.channel import Outgoing
from clusterrun.policy.event_source import NEVER, EventSource
from clusterrun.policy.events import HelperLost, SignalReceived, StopWanted
from clusterrun.policy.messages import Verdict, WorldFormed
from clusterrun.policy.outcome import HelperFailed, Interrupted
from clusterrun.policy.terms import Terms
from clusterrun.rendezvous.agent_hooks import AgentHooks
from clusterrun.rendezvous.assumed import LOOPBACK
from clusterrun.rendezvous.joining.join_timeout import JoinTimeout
from clusterrun.rendezvous.joining.joining_member import JoiningMember
from clusterrun.rendezvous.joining.joining_node import JoiningNode
from clusterrun.rendezvous.joining.node_zero import JoiningNodeZero
from clusterrun.rendezvous.joining.rankless_node import RanklessNode
from clusterrun.rendezvous.peers import Peers
from clusterrun.rendezvous.ports.joining_port import PortBusy

if TYPE_CHECKING:
    from clusterrun.rendezvous.failover import Failover

SECONDS_TO_FIND_NODE_ZERO_HERE = 1.0
"""How long another agent of this machine, which has taken the port first, may take to answer."""

JoinStep = RanklessNode | JoiningNodeZero | JoiningMember
"""What a node waits for: ``turn`` does what is possible when the descriptor is readable or at the
time ``due``, until ``finished``."""

EndOfWait = Interrupted | HelperFailed | Verdict
"""A signal, the end of a helper process, or that of the job in which this node waited for a place."""


def join(node: JoiningNode) -> Peers | EndOfWait:
    """Join, and wait until all nodes of the job have joined.

    Returns:
        The other nodes; or what has ended the wait.

    Raises:
        RendezvousError: the nodes contradict each other, or did not all join in time.

    """
    if not node.terms.reforming.lives_on:
        return _join(node, None)
    # Few jobs go on without their node 0.
    from clusterrun.rendezvous.failover import Failover

    with ExitStack() as undo:
        failover = Failover(*node)
        undo.callback(failover.close)
        joined = _join(node._replace(hello=failover.hello), failover)
        if isinstance(joined, Peers):
            undo.pop_all()
    return joined


def _join(node: JoiningNode, failover: "Failover | None") -> Peers | EndOfWait:
    timeout = JoinTimeout(node.terms.timeout, node.hooks.clock())
    if node.hello.rank is None:
        return _join_without_rank(node, timeout, failover)
    if node.hello.rank == 0:
        return _join_as_node_zero(node, failover)
    return _join_as_member(node, timeout, failover)


def _join_without_rank(
    node: JoiningNode, timeout: JoinTimeout, failover: "Failover | None"
) -> Peers | EndOfWait:
    """Join as node 0 if this machine has node 0's address and no other agent here is node 0."""
    with closing(RanklessNode(node, timeout, node.hooks.clock())) as rankless:
        if ended := wait_for(rankless, node.hooks):
            return ended
    if rankless.failure is not None:
        raise rankless.failure
    if not rankless.is_node_zero:
        return _join_as_member(node, timeout, failover)
    try:
        return _join_as_node_zero(node, failover)
    except PortBusy as busy:
        return _join_as_member(node, timeout, failover, busy)


def _join_as_node_zero(node: JoiningNode, failover: "Failover | None") -> Peers | EndOfWait:
    terms, _, _, hooks = node
    node_zero = JoiningNodeZero(node, hooks.clock())
    if ended := wait_for(node_zero, hooks):
        node_zero.abandon(ended, hooks.clock())
        return ended
    formed = _formed(node_zero)
    node_zero.close_all_but_server()
    # If no other machine has connected, all nodes are on this one.
    interface = interface_of(node_zero.server.reached_at or LOOPBACK, hooks.interfaces())
    return Peers(
        _seen_from_here(node, formed, node_zero.master_addr, interface),
        formed.host,
        node_zero.connection,
        early=node_zero.early,
        server=node_zero.server,
        rhythm=terms.rhythm,
        lives_on=terms.reforming.lives_on,
        failover=failover,
        named=terms.host.value,
        hooks=hooks,
    )


def _join_as_member(
    node: JoiningNode,
    timeout: JoinTimeout,
    failover: "Failover | None",
    busy: PortBusy | None = None,
) -> Peers | EndOfWait:
    """Connect to node 0; ``busy`` is the error if node 0 should be on this machine and is not."""
    terms, _, _, hooks = node
    now = hooks.clock()
    with closing(JoiningMember(node, timeout, now, failover)) as member:
        if busy is not None:
            if ended := wait_for(member, hooks, now + SECONDS_TO_FIND_NODE_ZERO_HERE):
                return ended
            if not member.is_connected and not member.finished:
                raise busy
        if ended := wait_for(member, hooks):
            return ended
        if member.verdict is not None:
            return member.verdict
        formed = _formed(member)
        outgoing = member.take_connection()
    master_addr = _master_addr(member, outgoing, terms)
    return Peers(
        _seen_from_here(node, formed, master_addr, member.interface),
        formed.host,
        outgoing,
        early=member.early,
        server=None,
        rhythm=terms.rhythm,
        lives_on=terms.reforming.lives_on,
        failover=failover,
        lease=member.lease,
        named=terms.host.value,
        hooks=hooks,
    )


def _seen_from_here(
    node: JoiningNode, formed: WorldFormed, master_addr: str, interface: str
) -> World:
    """Return the world with the address of node 0, and the interface if libraries need its name."""
    if formed.world.master_addr != node.terms.host.value:
        # Another node has succeeded node 0.
        master_addr = formed.world.master_addr
    needed = not node.hooks.resolves_for_others(node.hello.host, node.hooks.clock)
    return replace(formed.world, master_addr=master_addr, interface=interface if needed else "")


def _master_addr(member: JoiningMember, outgoing: Outgoing, terms: Terms) -> str:
    """Return node 0's name, or the address that has answered if the name may lead elsewhere."""
    # A worker's library tries the addresses of a name in turn, and waits long for a dead one:
    # also for one behind that of node 0, whose port refuses until rank 0 listens. A second
    # address of the same family is most often that of another machine, or of none.
    first, *others = member.addresses
    only_this_one = outgoing.address != first or any(a.family == first.family for a in others)
    return outgoing.address.text if only_this_one else terms.host.value


def _formed(node: JoiningMember | JoiningNodeZero) -> WorldFormed:
    if node.formed is not None:
        return node.formed
    node.close()
    raise node.failure or AssertionError("joining ended without a reason")


def wait_for(
    step: JoinStep, hooks: AgentHooks, until: float = NEVER
) -> Interrupted | HelperFailed | None:
    """Wait for ``step`` or until a time; return what has ended the wait before, if anything."""
    with select.epoll() as epoll:
        epoll.register(hooks.signals, select.EPOLLIN)
        epoll.register(step, select.EPOLLIN)
        for helper in hooks.helpers:
            # EPOLLHUP alone, which needs no mask: what a living one sends is for the agent.
            epoll.register(helper, 0)
        for requests in hooks.requests:
            epoll.register(requests, select.EPOLLIN)
        now = hooks.clock()
        while not step.finished and now < until:
            due = min(step.due, until, *(each.due for each in hooks.requests))
            ready = {fd for fd, _ in epoll.poll(None if due == NEVER else max(0.0, due - now))}
            now = hooks.clock()
            ended = [each for each in hooks.helpers if each.fileno() in ready]
            sources: tuple[EventSource, ...] = (hooks.signals, *ended, *hooks.requests)
            for source in sources:
                if end := _end_of_wait(source, now, hooks, step):
                    return end
            step.turn(now)
    return None


def _end_of_wait(
    source: EventSource, now: float, hooks: AgentHooks, step: JoinStep
) -> Interrupted | HelperFailed | None:
    for event in source.events(now):
        match event:
            case SignalReceived() if isinstance(step, JoiningMember) and step.passes_on(event):
                continue
            case SignalReceived(number) if number in ENDING_SIGNALS:
                return Interrupted(number)
            case SignalReceived(signal.SIGTSTP):
                os.kill(os.getpid(), signal.SIGSTOP)
            case SignalReceived():
                hooks.keep(event)
            case StopWanted():
                return Interrupted(signal.SIGTERM)
            case HelperLost(name, how, number):
                return HelperFailed(name, how, number)
            case _:
                continue
    return None
