"""The steps of the checks of several nodes; all nodes take them in the same order."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from clusterrun.machine.health.finding import Finding, Level
from clusterrun.node_checks import comparison, connections
from clusterrun.node_checks.clocks import measure_clocks
from clusterrun.node_checks.findings import JobFinding, Node, labels_of, merged
from clusterrun.node_checks.meeting import Meeting
from clusterrun.node_checks.reach import Call, call_all, peers_of
from clusterrun.node_checks.shared_folders import look_for
from clusterrun.node_checks.speed_checks import SpeedChecks
from clusterrun.node_checks.speeds import Products, measure_products
from clusterrun.node_checks.this_machine import (
    SECONDS_TO_RESOLVE,
    addresses_of,
    check_this_machine,
)
from clusterrun.processes import TimeLimited

SECONDS_TO_CHECK = 25.0
SECONDS_TO_CALL = 60.0
"""Many addresses that do not answer take turns."""
SECONDS_TO_COMPUTE = 20.0

Resolved = dict[str, tuple[str, ...]]


class Steps:
    """One node's part in them. Only what node 0 finds is of use: it alone gets all answers."""

    def __init__(
        self, meeting: Meeting, nodes: Sequence[Node], log_dir: str, environ: Mapping[str, str]
    ) -> None:
        self._meeting = meeting
        self._nodes = nodes
        self._labels = labels_of(nodes)
        self._log_dir = log_dir
        self._environ = environ

    def all(self) -> Iterator[JobFinding]:
        """Yield what is found; takes part in all steps when it is read to its end.

        Raises:
            Silent: a node does not answer.

        """
        can_add_up = all("torch" in node.versions for node in self._nodes)
        for step in (
            self._versions,
            self._each_node,
            self._connections,
            self._names,
            self._clocks,
            self._folders,
            self._products,
        ):
            for finding in step():
                can_add_up = can_add_up and not _keeps_from_adding_up(finding)
                yield finding
        # It would wait for what can't be reached.
        can_add_up = can_add_up and len(self._nodes) > 1
        if self._meeting.announce(can_add_up, bool):
            yield from SpeedChecks(self._meeting, self._nodes).run(self._labels)

    def _versions(self) -> Iterable[JobFinding]:
        return comparison.compare_versions(self._labels, self._nodes)

    def _each_node(self) -> Iterable[JobFinding]:
        own = tuple(check_this_machine(self._log_dir, self._environ))
        found = self._meeting.collect(own, tuple[Finding, ...], SECONDS_TO_CHECK)
        return merged(self._labels, found) if found else ()

    def _connections(self) -> Iterator[JobFinding]:
        yield from connections.check_interfaces(self._labels, self._nodes)
        # All doors stay open until all calls are made.
        own = call_all(self._meeting.rank, self._nodes)
        calls = self._meeting.collect(own, list[Call], SECONDS_TO_CALL)
        if calls:
            yield from connections.check_calls(self._labels, self._nodes, calls)
            yield from connections.check_round_trips(self._labels, calls)

    def _names(self) -> Iterable[JobFinding]:
        rank, size = self._meeting.rank, len(self._nodes)
        hosts = [self._nodes[peer].host for peer in peers_of(rank, size)]
        own = TimeLimited(SECONDS_TO_RESOLVE).run(partial(_resolve_all, hosts)) or {}
        found = self._meeting.collect(own, Resolved, SECONDS_TO_CALL)
        return connections.check_names(self._labels, self._nodes, found) if found else ()

    def _clocks(self) -> Iterable[JobFinding]:
        offsets = measure_clocks(self._meeting)
        return comparison.compare_clocks(self._labels, offsets) if offsets else ()

    def _folders(self) -> Iterator[JobFinding]:
        logs = str(Path(self._log_dir).absolute()) if self._log_dir else ""
        for folder in dict.fromkeys(filter(None, (str(Path.cwd()), logs))):
            if seen := look_for(self._meeting, Path(folder)):
                yield comparison.compare_folder(self._labels, folder, seen)

    def _products(self) -> Iterable[JobFinding]:
        node = self._nodes[self._meeting.rank]
        own = measure_products(node.gpus) if "torch" in node.versions else Products([])
        found = self._meeting.collect(own, Products, SECONDS_TO_COMPUTE)
        return comparison.compare_products(self._labels, found) if found else ()


def _resolve_all(hosts: Sequence[str]) -> Resolved:
    return {host: addresses_of(host) for host in hosts}


def _keeps_from_adding_up(finding: JobFinding) -> bool:
    # Without torch, or with a broken GPU, a node can't add up.
    is_about_them = finding.what.startswith(("ports", "version of", "host name", "matrix product"))
    return finding.level is Level.FAILURE and (is_about_them or "IFNAME" in finding.what)
