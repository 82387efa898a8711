"""What was found on the nodes of a job, and what the nodes know of each other."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from clusterrun.domain.counts import counted
from clusterrun.machine.health.finding import Finding, Level


class JobFinding(Struct, frozen=True):
    """One line of the table of several nodes."""

    level: Level
    what: str
    found: str
    advice: str = ""
    """What to do; "" if it is well."""
    nodes: tuple[str, ...] = ()
    """The nodes that it is about; () for all."""


class JobHealth(Struct, frozen=True):
    """All findings of a job's nodes, as ``clusterrun doctor --json`` prints them."""

    nodes: tuple[str, ...]
    """The names of the nodes, by node rank."""
    findings: tuple[JobFinding, ...]

    @property
    def has_failed(self) -> bool:
        return any(each.level is Level.FAILURE for each in self.findings)


class Answer(Struct, frozen=True):
    """What the worker of a node prints, in one line, for the command that has started the job."""

    has_failed: bool
    health: JobHealth | None
    """The table; None on all nodes but node 0."""


class Node(Struct, frozen=True):
    """What a worker tells of itself and its node."""

    host: str
    local_rank: int
    address: str
    """Its address on the connection to node 0."""
    interfaces: Mapping[str, tuple[str, ...]]
    """The addresses that other nodes may know, by interface."""
    chosen: Mapping[str, tuple[str, ...]]
    """The interfaces that ``*_SOCKET_IFNAME`` name, by variable; () if there is none of that name."""
    port: int
    greeting: str
    """What answers at that port first."""
    versions: Mapping[str, str]
    """By what has them: ``torch``. What is not installed is left out."""
    gpus: int
    """Those that torch can use."""

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(address for known in self.interfaces.values() for address in known)

    @property
    def main_addresses(self) -> tuple[str, ...]:
        """Those that a job uses: of the chosen interfaces, else that on the way to node 0."""
        names = dict.fromkeys(name for chosen in self.chosen.values() for name in chosen)
        chosen = [address for name in names for address in self.interfaces.get(name, ())]
        return tuple(chosen) or (self.address,)

    @property
    def interface(self) -> str:
        """The interface on the way to node 0."""
        names = (name for name, known in self.interfaces.items() if self.address in known)
        return next(names, "loopback")


def labels_of(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return a name for each node: its host's, with the node rank where two hosts have one name."""
    names = [node.host for node in nodes]
    return tuple(
        name if names.count(name) == 1 else f"{name}/{rank}" for rank, name in enumerate(names)
    )


def merged(labels: Sequence[str], by_node: Sequence[Sequence[Finding]]) -> Iterator[JobFinding]:
    """Yield what each node found on its own: what is well once, the rest with its nodes."""
    well: dict[str, list[Finding]] = {}
    bad: dict[Finding, list[str]] = {}
    for label, findings in zip(labels, by_node, strict=True):
        for finding in findings:
            if finding.level is Level.OK:
                well.setdefault(finding.what.partition(" (")[0], []).append(finding)
            else:
                bad.setdefault(finding, []).append(label)
    for what, found in well.items():
        texts = {finding.found for finding in found}
        how_many = "all nodes" if len(found) >= len(labels) else counted(len(found), "node")
        one = f"{how_many}: {found[0].found}" if len(texts) == 1 else how_many
        yield JobFinding(Level.OK, what, one)
    for finding, names in bad.items():
        text = f"{', '.join(names)}: {finding.found}"
        yield JobFinding(finding.level, finding.what, text, finding.advice, tuple(names))
