"""Who works in the next attempt and who waits.

A place is a node rank with its ranks. A world keeps its size, so that each lost node's place goes to
a node that waits and all others keep theirs; an elastic one has the nodes that there are.
"""

import signal
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from clusterrun.bounds import GlobalRank, NodeRank, counted
from clusterrun.planning.plan import World
from clusterrun.policy.members import Members, Node
from clusterrun.policy.messages import HostFaults
from clusterrun.policy.notices import listed, lost
from clusterrun.policy.outcome import (
    MOST_REPLACEMENTS,
    Fate,
    Killed,
    NodeLost,
    Replacement,
    RestartProgress,
)
from clusterrun.policy.terms import Terms

MOST_HOSTS = 64
"""Hosts whose faults are counted; most often there is one."""


class Places:
    """Who works in the next attempt, whom it leaves out, and what was lost until now."""

    def __init__(self, members: Members, terms: Terms) -> None:
        self.patience = terms.losing.rejoin_timeout
        """Seconds for which a place may stay empty."""
        self.losses = 0
        """Nodes with a place that were lost and did not end the job."""
        self.faults: dict[str, HostFaults] = {}
        """Failures of workers that faults of their machine have caused (``--exclude-after``), by host:
        a node that leaves and comes back is no better."""
        self._members = members
        self._terms = terms

    def go_on(self, losses: int, faults: Iterable[HostFaults]) -> None:
        """Go on counting after a lost coordinator; newcomers look for the job where that was."""
        self.patience, self.losses = 0.0, losses
        self.faults = {each.host: each for each in faults}

    def next(self) -> list[Node] | None:
        """Return who works in the next attempt, by rank.

        Those that are lost keep their places until others take them.

        Returns:
            None if a place stays empty, or if too few nodes are left for an elastic world.

        """
        members, terms, bad = self._members, self._terms, self.bad()
        if not terms.job.is_elastic:
            return _same_places(members.places, members.waiting, bad)
        present = [*members.present, *members.waiting]
        good = [each for each in present if each not in bad]
        present = good if elastic_size(len(good), terms) else present
        return present[: elastic_size(len(present), terms)] or None

    def why_not(self) -> str:
        """Return why the lost nodes end the job, whoever is left; "" if they do not."""
        gone, most = self._members.losses, self._terms.losing.max_node_losses
        if gone and gone[0].lost and not self._terms.job.outlives_nodes:
            return lost(gone[0].lost)
        if most is not None and self.losses + len(gone) > most:
            return f"--max-node-losses allows {most}"
        return ""

    def why_empty(self) -> str:
        """Return why lost nodes end the job: nothing takes their places."""
        members, terms, gone = self._members, self._terms, self._members.losses
        within = f" within {self.patience:g} s (--rejoin-timeout)" if self.patience else ""
        if terms.job.is_elastic:
            left = len(members.places) - len(gone) + len(members.waiting)
            size = terms.losing.elastic_multiple
            multiple = f", a multiple of {size}" if size > 1 else ""
            minimum = f"the minimum is {terms.job.workers.nnodes.fewest}{multiple}"
            return f"{counted(left, 'node')} left, and {minimum}{within}"
        places = listed(f"node {each.rank} ({each.hello.host})" for each in gone)
        return f"no other node has taken the place of {places}{within}"

    def count_losses(self, chosen: list[Node], restarts: int) -> RestartProgress:
        """Count the lost nodes, and return what all report when the next attempt begins in these places."""
        self.losses += len(self._members.lost)
        is_elastic = self._terms.job.is_elastic
        replacements = tuple(
            Replacement(each, "" if is_elastic else chosen[each.node_rank].hello.host)
            for each in islice(self._given_up(set(chosen)), MOST_REPLACEMENTS)
        )
        nodes = len(chosen) if is_elastic else 0
        return RestartProgress(restarts, self.losses, replacements, nodes)

    def _given_up(self, chosen: Collection[Node]) -> Iterator[NodeLost]:
        members, bad = self._members, self.bad()
        yield from (each.lost for each in members.losses if each.lost)
        for each in members.present:
            if each not in bad or each in chosen:
                continue
            faults = self.faults.get(each.hello.host)
            why = f", as it fails its check: {each.hello.fault}"
            if faults is not None:
                why = f" after {faults.count} failures by its machine ({faults.last})"
            yield NodeLost(each.rank or 0, each.hello.host, f"is left out{why}")

    # Nodes that are left out if others can take their places.

    def note_failure(self, cause: Fate) -> None:
        """Count a failure that ended an attempt, if a fault of the machine was its cause."""
        fault, host = fault_of(cause), cause.host
        if not (self._terms.losing.exclude_after and fault):
            return
        if host in self.faults or len(self.faults) < MOST_HOSTS:
            count = self.faults[host].count if host in self.faults else 0
            self.faults[host] = HostFaults(host, count + 1, fault)

    def may_change_for(self, cause: Fate) -> bool:
        """Return whether another node may take the place of the one with this failure."""
        return self._terms.losing.exclude_after > 0 and fault_of(cause) != ""

    def bad(self) -> frozenset[Node]:
        """Return the nodes that have failed their check, or are on hosts with too many faults.

        Never node 0, since its agent runs the coordinator.
        """
        limit, members = self._terms.losing.exclude_after, self._members
        hosts = {each.host for each in self.faults.values() if each.count >= limit > 0}
        return frozenset(
            each
            for each in members.by_connection.values()
            if (each.hello.fault or each.hello.host in hosts) and each is not members.own
        )


def elastic_size(present: int, terms: Terms) -> int:
    """Return how many of the present nodes an elastic world has; 0: they are too few."""
    nodes = min(present, terms.job.nnodes)
    nodes -= nodes % terms.losing.elastic_multiple
    return nodes if nodes >= terms.job.workers.nnodes.fewest else 0


def _same_places(
    places: Collection[Node], waiting: Collection[Node], bad: Collection[Node]
) -> list[Node] | None:
    chosen = list(places)
    good = [each for each in waiting if each not in bad]
    others = [each for each in waiting if each in bad]
    lost = (each for each in enumerate(places) if not each[1].here)
    left_out = (each for each in enumerate(places) if each[1].here and each[1] in bad)
    for rank, node in (*lost, *left_out):
        if substitute := _substitute(rank, node, good):
            good.remove(substitute)
            chosen[rank] = substitute
        elif node.here:
            continue
        elif substitute := _substitute(rank, node, others):
            # A bad node is better than none.
            others.remove(substitute)
            chosen[rank] = substitute
        else:
            return None
    return chosen


def _substitute(rank: int, node: Node, free: Iterable[Node]) -> Node | None:
    """Return who takes the place of a node: itself if it is back, else the first that fits."""
    # Another number of workers, or another role, would move the ranks of other nodes.
    size = node.hello.workers, node.hello.role
    fitting = [each for each in free if (each.hello.workers, each.hello.role) == size]
    same_host = (each for each in fitting if each.hello.host == node.hello.host)
    same_rank = (each for each in fitting if each.hello.rank == rank)
    return next(same_host, next(same_rank, next(iter(fitting), None)))


def worlds(
    places: Collection[Node], run_id: str, attempt: int, master: tuple[str, int]
) -> list[World]:
    """Return each node's part in an attempt, by rank; its workers meet at the address ``master``."""
    # Where nodes keep logs on their own disks, one may have fewer.
    kept = max(each.hello.kept_attempts for each in places)
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
            role_size=of_role[role],
            master_addr=master[0],
            master_port=master[1],
            kept_attempts=kept,
        )
        found.append(world)
        first_of_role[role] += workers
    return found


def fault_of(cause: Fate) -> str:
    """Return the fault of the machine that a failure points to; "" if it points to none."""
    if cause.ending == Killed(signal.SIGBUS):
        return cause.machine_fault or "SIGBUS"
    if cause.out_of_memory and cause.ending != Killed(signal.SIGKILL):
        # The OOM killer struck somewhere on the machine, and not this worker.
        return ""
    return cause.machine_fault
