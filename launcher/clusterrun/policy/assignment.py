"""Which node has which rank in the next attempt, and the world that follows from it.

A world of fixed size keeps its node ranks: a waiting node takes a lost node's rank, and all others
keep theirs. An elastic world consists of the nodes that are present.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from msgspec.structs import replace

from clusterrun.bounds import GlobalRank, NodeRank, counted
from clusterrun.job.job import MAIN
from clusterrun.job.values import is_loopback
from clusterrun.planning.plan import ProgramOnNode, ProgramWorld, World
from clusterrun.policy.members import Members, Node
from clusterrun.policy.notices import listed, lost
from clusterrun.policy.outcome import MAX_REPLACEMENTS, Replacement, RestartProgress
from clusterrun.policy.settings import RendezvousSettings


class RankAssignment:
    """Chooses the participants of the next attempt, and counts lost nodes."""

    def __init__(self, members: Members, settings: RendezvousSettings) -> None:
        self.rejoin_timeout = settings.elasticity.rejoin_timeout
        """Seconds for which the job waits for another node if too few are left."""
        self._losses = 0
        """Participants that were lost without ending the job."""
        self._members = members
        self._settings = settings

    def next_participants(self) -> list[Node] | None:
        """Return the participants of the next attempt, by rank; None if too few nodes are left."""
        members, settings = self._members, self._settings
        if not settings.job.is_elastic:
            return _same_ranks(members.participants, members.waiting)
        present = [*members.present, *members.waiting]
        return present[: elastic_size(len(present), settings)] or None

    def why_end(self) -> str:
        """Return why the lost nodes end the job; "" if they do not, or not before a timeout."""
        gone = self._members.lost
        if gone and gone[0].lost and not self._settings.job.survives_node_loss:
            return lost(gone[0].lost)
        return "" if self.rejoin_timeout or self.next_participants() else self.why_too_few()

    def why_too_few(self) -> str:
        """Return why the job ends because too few nodes are left."""
        members, settings, gone = self._members, self._settings, self._members.lost
        timeout = self.rejoin_timeout
        within = f" within {timeout:g} s (--rejoin-timeout)" if timeout else ""
        if settings.job.is_elastic:
            left = len(members.participants) - len(gone) + len(members.waiting)
            minimum = f"the minimum is {settings.job.workers.nnodes.minimum}"
            return f"{counted(left, 'node')} left, and {minimum}{within}"
        nodes = listed(f"node {each.rank} ({each.hello.host})" for each in gone)
        return f"no other node has taken the place of {nodes}{within}"

    def count_losses(self, participants: list[Node], restarts: int) -> RestartProgress:
        """Count the lost nodes; return what all nodes report when these participants start."""
        gone, is_elastic = self._members.lost, self._settings.job.is_elastic
        self._losses += len(gone)
        replacements = tuple(
            Replacement(node, "" if is_elastic else participants[node.node_rank].hello.host)
            for node in (each.lost for each in gone[:MAX_REPLACEMENTS])
            if node is not None
        )
        nodes = len(participants) if is_elastic else 0
        return RestartProgress(restarts, self._losses, replacements, nodes)


def elastic_size(present: int, settings: RendezvousSettings) -> int:
    """Return the number of nodes of an elastic world; 0 if too few are present."""
    nodes = min(present, settings.job.nnodes)
    return nodes if nodes >= settings.job.workers.nnodes.minimum else 0


def _same_ranks(participants: Collection[Node], waiting: Collection[Node]) -> list[Node] | None:
    """Return the participants with each lost one replaced; None if one cannot be."""
    chosen, free = list(participants), list(waiting)
    for rank, node in enumerate(participants):
        if node.is_present:
            continue
        replacement = _replacement(rank, node, free)
        if replacement is None:
            return None
        free.remove(replacement)
        chosen[rank] = replacement
    return chosen


def _replacement(rank: int, node: Node, free: Iterable[Node]) -> Node | None:
    """Return what replaces a lost node: the same host if it is back, else the first that fits."""
    # A different number of workers, or a different role, would change the ranks on other nodes.
    size = node.hello.workers, node.hello.role
    fitting = [each for each in free if (each.hello.workers, each.hello.role) == size]
    same_host = (each for each in fitting if each.hello.host == node.hello.host)
    same_rank = (each for each in fitting if each.hello.rank == rank)
    return next(same_host, next(same_rank, next(iter(fitting), None)))


def assign_programs(
    participants: Collection[Node], names: Iterable[str], own_address: str
) -> tuple[ProgramWorld, ...]:
    """Return the programs of a job with services, and set each node's ``service_workers``.

    Args:
        participants: the nodes, by rank.
        names: the programs' names, in the order of their workers' numbers.
        own_address: node 0's.

    """
    found, first = [], 0
    for each in participants:
        each.service_workers = ()
    for name in names:
        nodes = []
        number = first
        for rank, each in enumerate(participants):
            for offer in (it for it in each.hello.programs if it.name == name):
                address = _address(each, own_address)
                count = len(offer.ports)
                nodes.append(
                    ProgramOnNode(NodeRank(rank), address, count, offer.ports, offer.master_port)
                )
                if name != MAIN:
                    each.service_workers += tuple(range(number, number + count))
                number += count
        found.append(ProgramWorld(name, first, tuple(nodes)))
        first = number
    return tuple(found)


def _with_main_port(programs: tuple[ProgramWorld, ...], port: int) -> tuple[ProgramWorld, ...]:
    """Return the programs with ``port`` as the main program's master port, if node 0 runs it."""
    if not programs or not programs[0].nodes or programs[0].nodes[0].node_rank:
        return programs
    first, *others = programs[0].nodes
    main = replace(programs[0], nodes=(replace(first, master_port=port), *others))
    return (main, *programs[1:])


def _address(node: Node, own_address: str) -> str:
    """Return the address at which other nodes reach this one.

    It is the address that the node connects from, or an IPv4 address of the same interface: most
    servers listen on 0.0.0.0, which does not accept IPv6.
    """
    if not node.address:
        return own_address
    # A proxy on the same machine, as in a service mesh, hides the address.
    if is_loopback(node.address) and not is_loopback(own_address):
        return node.hello.host
    same_interface = (each for each in node.hello.interfaces if node.address in each)
    addresses = next(same_interface, ()) if ":" in node.address else ()
    return next((each for each in addresses if ":" not in each), node.address)


def worlds(
    participants: Collection[Node],
    run_id: str,
    attempt: int,
    master: tuple[str, int],
    programs: tuple[ProgramWorld, ...] = (),
) -> list[World]:
    """Return each node's world in an attempt, by rank; ``master``: node 0's address and port."""
    # Nodes that keep logs on their own disks may have logs of fewer attempts.
    kept = max(each.hello.kept_attempts for each in participants)
    programs = _with_main_port(programs, master[1])
    of_role, first_of_role = Counter[str](), Counter[str]()
    for each in participants:
        of_role[each.hello.role] += each.hello.workers
    found = []
    for rank, each in enumerate(participants):
        role, workers = each.hello.role, each.hello.workers
        world = World(
            run_id=run_id,
            attempt=attempt,
            node_rank=NodeRank(rank),
            nodes=len(participants),
            first_rank=GlobalRank(each.first_rank),
            local_size=workers,
            size=of_role.total(),
            first_role_rank=GlobalRank(first_of_role[role]),
            # The node may run services only.
            role_size=of_role[role] or 1,
            master_addr=master[0],
            master_port=master[1],
            kept_attempts=kept,
            programs=programs,
        )
        found.append(world)
        first_of_role[role] += workers
    return found
