"""Joining: from what a node is told to its place in the world, or to why there is none."""

from msgspec.structs import replace

from clusterrun.coordination.messages import WorldFormed
from clusterrun.coordination.wait_limits import Patience
from clusterrun.domain.outcome import Interrupted
from clusterrun.rendezvous.joining.agent_hooks import AgentHooks
from clusterrun.rendezvous.joining.interruptible_wait import wait_for
from clusterrun.rendezvous.joining.joining_member import Member
from clusterrun.rendezvous.joining.joining_node import Candidate, hello_of
from clusterrun.rendezvous.joining.node_zero import NodeZero
from clusterrun.rendezvous.joining.rankless_node import Seeker
from clusterrun.rendezvous.joining.settings import Introduction, RendezvousSettings
from clusterrun.rendezvous.names.addresses import interface_of
from clusterrun.rendezvous.peers import Peers
from clusterrun.rendezvous.ports.joining_port import PortBusy

LOOPBACK = "127.0.0.1"

SECONDS_TO_FIND_NODE_ZERO_HERE = 1.0
"""For another agent of this machine to answer at the port that it has taken before us."""


def join(
    settings: RendezvousSettings, introduction: Introduction, hooks: AgentHooks, token: bytes
) -> Peers | Interrupted:
    """Join the other nodes, and wait until all are there.

    Args:
        settings: where and when they meet.
        introduction: what this node says of itself.
        hooks: signals, people and time.
        token: what proves that a node belongs to the job; b"" for no proof.

    Returns:
        The other nodes, with this node's place among them; or the signal that came first.

    Raises:
        RendezvousError: the nodes contradict each other, or have not come in time.

    """
    hello = hello_of(introduction, settings.said_nodes)
    candidate = Candidate(settings, hello, token, hooks)
    patience = Patience(settings.timeout, hooks.clock())
    if hello.rank is None:
        return _join_without_rank(candidate, patience)
    if hello.rank == 0:
        return _join_as_node_zero(candidate)
    return _join_as_member(candidate, patience)


def _join_without_rank(candidate: Candidate, patience: Patience) -> Peers | Interrupted:
    """Be node 0, if node 0's address is ours and no other agent of this machine is."""
    hooks = candidate.hooks
    seeker = Seeker(candidate.settings, hooks, patience, hooks.clock())
    if interrupted := wait_for(seeker, candidate):
        return interrupted
    seeker.close()
    if seeker.failure is not None:
        raise seeker.failure
    if not seeker.is_node_zero:
        return _join_as_member(candidate, patience)
    try:
        return _join_as_node_zero(candidate)
    except PortBusy as busy:
        return _join_as_member(candidate, patience, busy)


def _join_as_node_zero(candidate: Candidate) -> Peers | Interrupted:
    hooks = candidate.hooks
    node = NodeZero(candidate, hooks.clock())
    if interrupted := wait_for(node, candidate):
        return interrupted
    formed = _formed(node)
    node.let_go()
    return Peers(
        replace(formed.world, master_addr=node.master_addr),
        # Where nobody came from elsewhere, all nodes are on this machine.
        interface_of(node.server.reached_at or LOOPBACK, hooks.interfaces()),
        formed.host,
        node.connection,
        early=node.early,
        coordination=node.server,
        rhythm=candidate.settings.rhythm,
        hooks=hooks,
    )


def _join_as_member(
    candidate: Candidate, patience: Patience, busy: PortBusy | None = None
) -> Peers | Interrupted:
    """Call node 0; ``busy`` is the error to raise if it should be on this machine and is not."""
    now = candidate.hooks.clock()
    member = Member(candidate, patience, now)
    if busy is not None:
        if interrupted := wait_for(member, candidate, now + SECONDS_TO_FIND_NODE_ZERO_HERE):
            return interrupted
        if not member.is_let_in and not member.finished:
            member.close()
            raise busy
    if interrupted := wait_for(member, candidate):
        return interrupted
    formed = _formed(member)
    call = member.take_call()
    member.close()
    # A worker's library tries the addresses of a name in turn, and waits long for a dead one:
    # also for one behind that of node 0, whose port refuses until rank 0 listens. A second
    # address of the same family is most often another machine's, or nobody's any more.
    first, *others = member.addresses
    only_this_one = call.address != first or any(a.family == first.family for a in others)
    given = candidate.settings.host.value
    return Peers(
        replace(formed.world, master_addr=call.address.text if only_this_one else given),
        member.interface,
        formed.host,
        call.connection,
        early=member.early,
        coordination=None,
        rhythm=candidate.settings.rhythm,
        hooks=candidate.hooks,
    )


def _formed(party: NodeZero | Member) -> WorldFormed:
    if party.formed is not None:
        return party.formed
    party.close()
    raise party.failure or AssertionError("joining ended without a reason")
