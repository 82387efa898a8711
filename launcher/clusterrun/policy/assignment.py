"""Who works in the next attempt.

A place is a node rank with its ranks. A world keeps its size, so that each lost node's place goes to
a node that waits and all others keep theirs; an elastic one has the nodes that there are.
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


class Places:
    """Who works in the next attempt, and what was lost until now."""

    def __init__(self, members: Members, settings: RendezvousSettings) -> None:
        self.patience = settings.elasticity.rejoin_timeout
        """Seconds for which a place may stay empty."""
        self.losses = 0
        """Nodes with a place that were lost and did not end the job."""
        self._members = members
        self._terms = settings

    def next(self) -> list[Node] | None:
        """Return who works in the next attempt, by rank.

        Those that are lost keep their places until others take them.

        Returns:
            None if a place stays empty, or if too few nodes are left for an elastic world.

        """
        members, settings = self._members, self._terms
        if not settings.job.is_elastic:
            return _same_places(members.places, members.waiting)
        present = [*members.present, *members.waiting]
        return present[: elastic_size(len(present), settings)] or None

    def why_not(self) -> str:
        """Return why the lost nodes end the job, whoever is left; "" if they do not."""
        gone = self._members.lost
        if gone and gone[0].lost and not self._terms.job.survives_node_loss:
            return lost(gone[0].lost)
        return ""

    def why_empty(self) -> str:
        """Return why lost nodes end the job: nothing takes their places."""
        members, settings, gone = self._members, self._terms, self._members.lost
        within = f" within {self.patience:g} s (--rejoin-timeout)" if self.patience else ""
        if settings.job.is_elastic:
            left = len(members.places) - len(gone) + len(members.waiting)
            minimum = f"the minimum is {settings.job.workers.nnodes.minimum}"
            return f"{counted(left, 'node')} left, and {minimum}{within}"
        places = listed(f"node {each.rank} ({each.hello.host})" for each in gone)
        return f"no other node has taken the place of {places}{within}"

    def count_losses(self, chosen: list[Node], restarts: int) -> RestartProgress:
        """Count the lost nodes, and return what all report when the next attempt begins in these places."""
        self.losses += len(self._members.lost)
        is_elastic = self._terms.job.is_elastic
        replacements = tuple(
            Replacement(each.lost, "" if is_elastic else chosen[each.lost.node_rank].hello.host)
            for each in self._members.lost[:MAX_REPLACEMENTS]
            if each.lost is not None
        )
        nodes = len(chosen) if is_elastic else 0
        return RestartProgress(restarts, self.losses, replacements, nodes)


def elastic_size(present: int, settings: RendezvousSettings) -> int:
    """Return how many of the present nodes an elastic world has; 0: they are too few."""
    nodes = min(present, settings.job.nnodes)
    return nodes if nodes >= settings.job.workers.nnodes.minimum else 0


def _same_places(places: Collection[Node], waiting: Collection[Node]) -> list[Node] | None:
    chosen, free = list(places), list(waiting)
    for rank, node in enumerate(places):
        if node.here:
            continue
        substitute = _substitute(rank, node, free)
        if substitute is None:
            return None
        free.remove(substitute)
        chosen[rank] = substitute
    return chosen


def _substitute(rank: int, node: Node, free: Iterable[Node]) -> Node | None:
    """Return who takes the place of a node: itself if it is back, else the first that fits."""
    # Another number of workers, or another role, would move the ranks of other nodes.
    size = node.hello.workers, node.hello.role
    fitting = [each for each in free if (each.hello.workers, each.hello.role) == size]
    same_host = (each for each in fitting if each.hello.host == node.hello.host)
    same_rank = (each for each in fitting if each.hello.rank == rank)
    return next(same_host, next(same_rank, next(iter(fitting), None)))


def programs_in(
    places: Collection[Node], names: Iterable[str], own_address: str
) -> tuple[ProgramWorld, ...]:
    """Return the programs of a job with services, and note on each node which workers it has.

    ``names`` are theirs, in the order of their workers' numbers; ``own_address`` is node 0's.
    """
    found, first = [], 0
    of_services: dict[int, list[int]] = {rank: [] for rank in range(len(places))}
    for name in names:
        nodes = []
        number = first
        for rank, each in enumerate(places):
            for offer in (it for it in each.hello.programs if it.name == name):
                address = _address(each, own_address)
                count = len(offer.ports)
                nodes.append(
                    ProgramOnNode(NodeRank(rank), address, count, offer.ports, offer.master_port)
                )
                if name != MAIN:
                    of_services[rank] += range(number, number + count)
                number += count
        found.append(ProgramWorld(name, first, tuple(nodes)))
        first = number
    for rank, each in enumerate(places):
        each.of_services = tuple(of_services[rank])
    return tuple(found)


def with_main_port(programs: tuple[ProgramWorld, ...], port: int) -> tuple[ProgramWorld, ...]:
    """Return the programs where the ranks of the main one meet at ``port`` of node 0, if it is there."""
    if not programs or not programs[0].nodes or programs[0].nodes[0].node_rank:
        return programs
    first, *others = programs[0].nodes
    main = replace(programs[0], nodes=(replace(first, master_port=port), *others))
    return (main, *programs[1:])


def _address(node: Node, own_address: str) -> str:
    """Return where other nodes reach this one: where it connects from, by IPv4 if it can.

    Most servers listen at 0.0.0.0, which is not an address of IPv6.
    """
    if not node.address:
        return own_address
    # A proxy on the same machine, as in a service mesh, hides it.
    if is_loopback(node.address) and not is_loopback(own_address):
        return node.hello.host
    beside = (each for each in node.hello.interfaces if node.address in each)
    known = next(beside, ()) if ":" in node.address else ()
    return next((each for each in known if ":" not in each), node.address)


def worlds(
    places: Collection[Node],
    run_id: str,
    attempt: int,
    master: tuple[str, int],
    programs: tuple[ProgramWorld, ...] = (),
) -> list[World]:
    """Return each node's part in an attempt, by rank; its workers meet at the address ``master``."""
    # Where nodes keep logs on their own disks, one may have fewer.
    kept = max(each.hello.kept_attempts for each in places)
    programs = with_main_port(programs, master[1])
    of_role, first_of_role = Counter[str](), Counter[str]()
    for each in places:
        of_role[each.hello.role] += each.hello.workers
    found = []
    for rank, each in enumerate(places):
        role, workers = each.hello.role, each.hello.workers
        world = World(
            run_id=run_id,
            attempt=attempt,
            node_rank=NodeRank(rank),
            nodes=len(places),
            first_rank=GlobalRank(each.first_rank),
            local_size=workers,
            size=of_role.total(),
            first_role_rank=GlobalRank(first_of_role[role]),
            # A node may have services alone.
            role_size=of_role[role] or 1,
            master_addr=master[0],
            master_port=master[1],
            kept_attempts=kept,
            programs=programs,
        )
        found.append(world)
        first_of_role[role] += workers
    return found
