"""The program that ``clusterrun doctor`` runs once on each node: checks it, and the nodes together.

The nodes exchange values by the job's store (torch's TCPStore, at MASTER_ADDR and MASTER_PORT). Each
gives what it is and then what it finds; node 0 collects that, and says what follows. What torch may
crash or hang in is done by a child. The program prints a ``NodeResult`` in a line of JSON, which the
command that has started the job reads.
"""

import faulthandler
import os
import platform
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec
from msgspec import Struct

from clusterrun.bounds import Count, Line, Name, as_line, as_name
from clusterrun.clients.doctor import compare, this_machine
from clusterrun.clients.doctor.compare import NodeFacts, TriedAddress
from clusterrun.clients.doctor.speed import Exchanged, TorchFacts
from clusterrun.clients.doctor.this_machine import (
    BY_PREFIX,
    EXACT,
    LOOPBACK_PREFIXES,
    SECONDS_TO_RESOLVE,
    Finding,
    Health,
    Level,
    failure,
    usable_interfaces,
    version_of,
)
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.network.addresses import Interfaces, own_interfaces, plain_address
from clusterrun.processes import AskedChild, TimeLimited

if TYPE_CHECKING:
    from torch.distributed import Store

CHILD = (sys.executable, "-P", "-m", "clusterrun.clients.doctor.speed")

SECONDS_FOR_TORCH = 60.0
"""For its first import, perhaps from a network file system, and for the products."""
SECONDS_FOR_ENTRY = 20.0
"""How long node 0 waits for the others' values once it has its own."""
SECONDS_FOR_NODE_0 = 90.0
"""How long the others wait for node 0, which may wait for each of them several times."""
SECONDS_TO_EXCHANGE = 60.0
SECONDS_IN_ALL = 300.0
"""A node that takes longer prints where it hangs, and ends."""
SECONDS_TO_READ = 5.0

SECONDS_TO_LOOK = 5.0
SECONDS_TO_CONNECT = 5.0
CALLS_AT_ONCE = 32
BACKLOG = 1024

MOST_IN_PAIRS = 64
"""Nodes of which each calls each; in larger jobs a node calls its neighbours in a ring."""

LINK_LOCAL = ("169.254.", "fe80:")

NEEDED_TO_EXCHANGE = ("answers", "ports", "version of", "matrix product", *BY_PREFIX, *EXACT)
"""With a failure in one of these, nothing is measured: it would fail, too, or hang."""

GivenT = TypeVar("GivenT", bound=Struct)


class Nodes(Struct, frozen=True):
    """Node 0 says which nodes there are."""

    ranks: tuple[Count, ...]
    """One for each node; a scheduler may have started several tasks there."""
    nodes: tuple[NodeFacts, ...]
    """In the same order."""
    files: tuple[Line, ...]
    """Node 0's, in the folders that all nodes may share."""


class NodeFindings(Struct, frozen=True):
    """What a node finds on its own, and of the others."""

    findings: tuple[Finding, ...]
    calls: tuple[TriedAddress, ...]
    resolved: Mapping[Name, tuple[Name, ...]]
    """What the hosts' names lead to."""
    sees: tuple[bool, ...]
    """Whether each of node 0's files is there."""


class Go(Struct, frozen=True):
    """Node 0 says who goes on, and by what they add up."""

    at: float
    """Node 0's clock, read when all others wait for this."""
    ranks: tuple[Count, ...]
    backend: Name
    """"": nothing is measured."""


class Measured(Struct, frozen=True):
    """What a node has measured."""

    ahead: float
    """Seconds of its clock, compared with node 0's."""
    exchanged: Exchanged


class EndOfChecks(Struct, frozen=True):
    """Node 0 ends the checks."""

    has_failed: bool


class NodeResult(Struct, frozen=True):
    """What the program prints, in one line, for the command that has started the job."""

    has_failed: bool
    """Whether a usual job would fail."""
    health: Health | None
    """The table: of all nodes on node 0; of this one where it could not take part; else None."""


class Alone(Exception):
    """This node takes no part in the comparison: why."""


class Exchange:
    """One node's part in the exchange of values; node 0 has rank 0."""

    def __init__(self, store: "Store", rank: int) -> None:
        self.rank = rank
        self._store = store

    def gather(self, own: GivenT, ranks: Sequence[int]) -> list[GivenT | None]:
        """Give node 0 a value; return on node 0 those of ``ranks`` in their order, None if late."""
        name = type(own).__name__
        self._store.set(f"{name}/{self.rank}", msgspec.json.encode(own).decode())
        if self.rank:
            return []
        until = time.monotonic() + SECONDS_FOR_ENTRY
        return [own if rank == 0 else self._value(type(own), f"/{rank}", until) for rank in ranks]

    def announce(self, value: Struct) -> None:
        """Give a value to all others."""
        self._store.set(type(value).__name__, msgspec.json.encode(value).decode())

    def announced(self, kind: type[GivenT]) -> GivenT:
        """Return what node 0 announces.

        Raises:
            Alone: it does not.

        """
        value = self._value(kind, "", time.monotonic() + SECONDS_FOR_NODE_0)
        if value is None:
            raise Alone(f"node 0 does not answer within {SECONDS_FOR_NODE_0:g} s, or is gone")
        return value

    def leave(self, others: int = 0) -> None:
        """Count this node out; node 0 serves the store until all ``others`` have done so."""
        with suppress(RuntimeError):
            self._store.add("left", 1)
            until = time.monotonic() + SECONDS_TO_READ
            while self._store.add("left", 0) <= others and time.monotonic() < until:
                time.sleep(0.02)

    def _value(self, kind: type[GivenT], of: str, until: float) -> GivenT | None:
        key = f"{kind.__name__}{of}"
        left = timedelta(seconds=max(0.001, until - time.monotonic()))
        # torch's timeout and a lost connection are both RuntimeErrors.
        with suppress(RuntimeError, msgspec.MsgspecError):
            self._store.wait([key], left)
            return msgspec.json.decode(self._store.get(key), type=kind)
        return None


def result_of_this_node(log_dir: str, environ: Mapping[str, str]) -> NodeResult:
    """Take part in the checks; ``log_dir`` is "" if there are no log files."""
    try:
        torch = _usable_torch(environ)
        rank, others = int(environ["RANK"]), int(environ["WORLD_SIZE"]) - 1
        exchange = Exchange(_open_store(environ), rank)
        return _compare(exchange, torch, others, log_dir, environ)
    except Alone as why:
        advice = (
            "nodes are compared by torch's store: install torch, and reach node 0 at MASTER_ADDR"
        )
        alone = failure("comparison", f"not with other nodes: {why}", advice)
        findings = (*this_machine.check_this_machine(log_dir, environ), alone)
        return NodeResult(has_failed=True, health=Health(socket.gethostname(), findings=findings))


def _usable_torch(environ: Mapping[str, str]) -> TorchFacts:
    found = asked_child(TorchFacts, SECONDS_FOR_TORCH, environ, "torch")
    if isinstance(found, str):
        raise Alone(f"torch can't be used: {found}")
    return found


def asked_child(
    kind: type[GivenT], seconds: float, environ: Mapping[str, str], *words: str
) -> GivenT | str:
    """Return what the child prints; where it fails, crashes or hangs, how, in a line."""
    try:
        child = AskedChild((*CHILD, *words), seconds, environ)
    except OSError as error:
        return f"no process can be started: {error.strerror}"
    answer = child.wait()
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(answer, type=kind)
    if child.is_late:
        return f"no answer within {seconds:g} s"
    last = child.errors.decode(errors="replace").rstrip().rpartition("\n")[2]
    return as_line(last or "its process crashes")


def _open_store(environ: Mapping[str, str]) -> "Store":
    from torch.distributed import TCPStore

    try:
        return TCPStore(
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            is_master=environ["RANK"] == "0",
            wait_for_workers=False,
            timeout=timedelta(seconds=SECONDS_FOR_NODE_0),
        )
    except RuntimeError as error:
        raise Alone(as_line(str(error).partition("\n")[0])) from None


def _compare(
    exchange: Exchange, torch: TorchFacts, others: int, log_dir: str, environ: Mapping[str, str]
) -> NodeResult:
    # It takes connections until the end: the kernel accepts them.
    with _listening() as server, _SharedFiles(log_dir, is_first=exchange.rank == 0) as files:
        own = _facts(torch, server.getsockname()[1], environ)
        table = Table(exchange, files.folders)
        table.after_facts(exchange.gather(own, range(others + 1)), files.paths)
        known = exchange.announced(Nodes)
        if exchange.rank not in known.ranks:
            if own.node in {node.node for node in known.nodes}:
                # Another task checks this node.
                return _last(exchange)
            raise Alone(f"node 0 has not waited longer than {SECONDS_FOR_ENTRY:g} s")
        table.after_entries(
            exchange.gather(_entry(exchange.rank, known, log_dir, environ), known.ranks)
        )
        go = exchange.announced(Go)
        ahead = time.time() - go.at
    if exchange.rank not in go.ranks:
        raise Alone(f"node 0 has not waited longer than {SECONDS_FOR_ENTRY:g} s")
    exchanged: Exchanged | str = Exchanged()
    if go.backend:
        words = ("links", go.backend, str(go.ranks.index(exchange.rank)), str(len(go.ranks)))
        exchanged = asked_child(Exchanged, SECONDS_TO_EXCHANGE, environ, *words)
    if isinstance(exchanged, str):
        exchanged = Exchanged(fault=exchanged)
    table.after_measured(exchange.gather(Measured(ahead, exchanged), go.ranks), go)
    return _last(exchange, table)


def _last(exchange: Exchange, table: "Table | None" = None) -> NodeResult:
    verdict = exchange.announced(EndOfChecks)
    is_first = table is not None and exchange.rank == 0
    exchange.leave(table.others if table is not None and is_first else 0)
    return NodeResult(verdict.has_failed, table.health if table is not None and is_first else None)


class Table:
    """What node 0 concludes, and announces; on other nodes its methods do nothing."""

    def __init__(self, exchange: Exchange, folders: Sequence[str]) -> None:
        """Take the folders that all nodes may share, as node 0 names them."""
        self._exchange = exchange
        self._folders = folders
        self._findings: list[Finding] = []
        self._known = Nodes((), (), ())
        self._labels: dict[int, str] = {}
        """By rank."""
        self.others = 0
        """The ranks, apart from node 0's, that read the store."""

    @property
    def health(self) -> Health:
        return Health(nodes=tuple(self._labels.values()), findings=tuple(self._findings))

    def after_facts(self, given: Sequence[NodeFacts | None], files: Sequence[str]) -> None:
        """Say which nodes there are."""
        if not given:
            return
        first: dict[int, tuple[int, NodeFacts]] = {}
        for rank, facts in enumerate(given):
            if facts is None:
                self._has_no_answer(f"rank {rank}")
            else:
                first.setdefault(facts.node, (rank, facts))
        self.others = sum(facts is not None for facts in given) - 1
        ranks, nodes = zip(*first.values(), strict=True)
        self._known = Nodes(ranks, nodes, tuple(map(as_line, files)))
        self._labels = dict(zip(ranks, compare.labels_of(nodes), strict=True))
        self._findings += compare.compare_versions(self.health.nodes, nodes)
        self._exchange.announce(self._known)

    def after_entries(self, given: Sequence[NodeFindings | None]) -> None:
        """Compare what the nodes have found; say who goes on, and how."""
        if not given:
            return
        ranks, nodes, entries, labels = [], [], [], []
        for rank, node, entry in zip(self._known.ranks, self._known.nodes, given, strict=True):
            if entry is None:
                self._has_no_answer(self._labels[rank])
                continue
            ranks.append(rank)
            nodes.append(node)
            entries.append(entry)
            labels.append(self._labels[rank])
        self._findings += compare.merged(labels, [each.findings for each in entries])
        self._findings += compare.check_interfaces(labels, nodes)
        if len(nodes) == len(self._known.nodes):
            self._findings += compare.check_calls(labels, nodes, [each.calls for each in entries])
        self._findings += compare.check_names(labels, nodes, [each.resolved for each in entries])
        for number, folder in enumerate(self._folders):
            sees = [each.sees[number] for each in entries]
            self._findings.append(compare.compare_folder(labels, folder, sees))
        self._findings += compare.compare_products(labels, [node.torch for node in nodes])
        has_failed = any(
            each.level is Level.FAILURE and each.what.startswith(NEEDED_TO_EXCHANGE)
            for each in self._findings
        )
        backend = "" if has_failed or len(nodes) == 1 else compare.backend_of(nodes)
        self._exchange.announce(Go(time.time(), tuple(ranks), backend))

    def after_measured(self, given: Sequence[Measured | None], go: Go) -> None:
        """Compare clocks and links; end the checks."""
        if not given:
            return
        labels = [self._labels[rank] for rank in go.ranks]
        for label, each in zip(labels, given, strict=True):
            if each is None:
                self._has_no_answer(label)
        timed = [(label, each) for label, each in zip(labels, given, strict=True) if each]
        self._findings += compare.compare_clocks(
            [label for label, _ in timed], [each.ahead for _, each in timed]
        )
        measured = [each.exchanged for _, each in timed]
        faults = [each.fault for each in measured]
        if any(faults):
            names = [label for label, _ in timed]
            self._findings.append(compare.describe_failed_all_reduce(go.backend, names, faults))
        elif go.backend:
            rates = {(one, two): rate for each in measured for one, two, rate in each.links}
            self._findings += compare.compare_links(labels, rates)
            self._findings.append(compare.describe_all_reduce(go.backend, measured[0].sums))
        self._exchange.announce(EndOfChecks(self.health.has_failed))

    def _has_no_answer(self, label: str) -> None:
        advice = "see what it has printed itself; a file system or a driver may hang there"
        finding = Finding(
            Level.FAILURE, "answers", f"{label}: no answer, see its own lines", advice, (label,)
        )
        self._findings.append(finding)


# What a node is.


def _facts(torch: TorchFacts, port: int, environ: Mapping[str, str]) -> NodeFacts:
    versions = {
        "clusterrun": version_of("clusterrun"),
        "Python": platform.python_version(),
        "torch": version_of("torch"),
        "driver": Tree(ROOT).text("sys/module/nvidia/version"),
        "NCCL": torch.nccl,
    }
    interfaces = own_interfaces()
    return NodeFacts(
        node=int(environ["GROUP_RANK"]),
        host=as_name(socket.gethostname()),
        address=_address_to(environ["MASTER_ADDR"]),
        interfaces=_known_to_others(interfaces),
        chosen=_chosen(tuple(interfaces), environ),
        port=port,
        versions={what: as_name(version) for what, version in versions.items() if version},
        torch=torch,
    )


def _address_to(host: str) -> str:
    """Return this machine's address on the way to a host; nothing is sent."""
    for family, _, _, _, where in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect(where)
            return plain_address(way.getsockname())
    return ""


def _known_to_others(interfaces: Interfaces) -> dict[str, tuple[str, ...]]:
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    hidden = (*LOOPBACK_PREFIXES, *LINK_LOCAL)
    found = {
        name: tuple(each for each in known if not each.startswith(hidden))
        for name, known in interfaces.items()
        if name in up
    }
    return {name: known for name, known in found.items() if known}


def _chosen(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the interfaces that libraries are made to use; NCCL takes the first that matches."""
    chosen = {}
    for variable in (*BY_PREFIX, *EXACT):
        by_prefix = variable in BY_PREFIX
        if value := environ.get(variable, ""):
            found = usable_interfaces(value, names, by_prefix=by_prefix)
            chosen[variable] = tuple(found[:1] if by_prefix else found)
    return chosen


def _listening() -> socket.socket:
    if socket.has_dualstack_ipv6():
        family = socket.AF_INET6
        return socket.create_server(("", 0), family=family, backlog=BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", 0), backlog=BACKLOG)


class _SharedFiles:
    """Files of node 0 in folders that all nodes may share. A file server may hang, on node 0, too."""

    def __init__(self, log_dir: str, *, is_first: bool) -> None:
        logs = [str(Path(log_dir).absolute())] if log_dir else []
        self.folders = list(dict.fromkeys((str(Path.cwd()), *logs)))
        names = [
            Path(folder, f".clusterrun-doctor-{secrets.token_hex(8)}") for folder in self.folders
        ]
        self._limits = {name: TimeLimited(SECONDS_TO_LOOK) for name in names} if is_first else {}

    @property
    def paths(self) -> list[str]:
        return list(map(str, self._limits))

    def __enter__(self) -> Self:
        for file, limit in self._limits.items():
            limit.run(partial(_write, file))
        return self

    def __exit__(self, *_: object) -> None:
        for file, limit in self._limits.items():
            limit.run(partial(_remove, file))


def _write(file: Path) -> None:
    with suppress(OSError):
        # Where it can't be written, no node sees it.
        file.write_text(file.name)


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink()


# What a node finds.


def _entry(rank: int, known: Nodes, log_dir: str, environ: Mapping[str, str]) -> NodeFindings:
    own = known.ranks.index(rank)
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        calls = tuple(pool.map(lambda each: call(*each), _addresses(own, known.nodes)))
    hosts = [known.nodes[peer].host for peer in peers_of(own, len(known.nodes))]
    resolve = partial(_resolve_all, hosts)
    return NodeFindings(
        findings=tuple(this_machine.check_this_machine(log_dir, environ)),
        calls=calls,
        resolved=TimeLimited(SECONDS_TO_RESOLVE).run(resolve) or {},
        sees=tuple(
            TimeLimited(SECONDS_TO_LOOK).run(partial(_holds, Path(file))) or False
            for file in known.files
        ),
    )


def peers_of(own: int, size: int) -> list[int]:
    """Return the nodes that a node calls: all others, or its neighbours in a large job."""
    if size <= MOST_IN_PAIRS:
        return [peer for peer in range(size) if peer != own]
    return sorted({(own + 1) % size, (own - 1) % size})


def _addresses(own: int, nodes: Sequence[NodeFacts]) -> Iterator[tuple[int, str, int]]:
    # Docker's bridge has the same address on every machine.
    here = set(nodes[own].addresses)
    for peer in peers_of(own, len(nodes)):
        known = dict.fromkeys((*nodes[peer].main_addresses, *nodes[peer].addresses))
        yield from ((peer, each, nodes[peer].port) for each in known if each not in here)


def call(peer: int, address: str, port: int) -> TriedAddress:
    """Connect to a node at one of its addresses."""
    try:
        socket.create_connection((address, port), SECONDS_TO_CONNECT).close()
    except OSError as error:
        return TriedAddress(peer, address, as_line((error.strerror or str(error)).lower()))
    return TriedAddress(peer, address, "")


def _resolve_all(hosts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    return {host: this_machine.addresses_of(host) for host in hosts}


def _holds(file: Path) -> bool:
    try:
        return file.read_text() == file.name
    except (OSError, UnicodeDecodeError):
        return False


def main() -> None:
    """Check, and print the result; the only argument is the folder for logs, "" for none."""
    faulthandler.dump_traceback_later(SECONDS_IN_ALL, exit=True)
    result = result_of_this_node(sys.argv[1], dict(os.environ))
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.flush()
    # No thread that waits for a file or a name server may delay the end.
    os._exit(0)


if __name__ == "__main__":
    main()
