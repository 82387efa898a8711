"""The program that ``clusterrun doctor`` runs once on each node: checks it, and the nodes together.

The nodes exchange values by the job's store (torch's TCPStore, at MASTER_ADDR and MASTER_PORT). Each
gives what it is, then what it finds and what it measures; node 0 hands the values of all to all, so
that each draws the same conclusions. What torch may crash or hang in is done by a child. The program prints a ``NodeResult`` in a line of JSON, which the
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
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from clusterrun.bounds import as_line, as_name
from clusterrun.clients.doctor import compare, this_machine
from clusterrun.clients.doctor.compare import ConnectionAttempt, Measured, NodeFacts, NodeFindings
from clusterrun.clients.doctor.this_machine import (
    BY_PREFIX,
    EXACT,
    LOOPBACK_PREFIXES,
    SECONDS_TO_RESOLVE,
    Health,
    Level,
    failure,
    usable_interfaces,
    version_of,
)
from clusterrun.clients.doctor.torch_program import NetworkSpeeds, TorchFacts
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.network.addresses import Interfaces, own_interfaces, plain_address
from clusterrun.processes import TimeLimitedCalls, TimeLimitedChild

if TYPE_CHECKING:
    from torch.distributed import Store

CHILD = (sys.executable, "-P", "-m", "clusterrun.clients.doctor.torch_program")

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

MAX_IN_PAIRS = 64
"""Nodes of which each calls each; in larger jobs a node calls its neighbours in a ring."""

LINK_LOCAL = ("169.254.", "fe80:")

NEEDED_TO_EXCHANGE = ("answers", "ports", "version of", "matrix product", *BY_PREFIX, *EXACT)
"""With a failure in one of these, nothing is measured: it would fail, too, or hang."""

SharedT = TypeVar("SharedT", bound=Struct)


class NodeResult(Struct, frozen=True):
    """What the program prints, in one line, for the command that has started the job."""

    has_failed: bool
    """Whether a usual job would fail."""
    health: Health | None
    """The table: of all nodes on node 0; of this one where it could not take part; else None."""


class Alone(Exception):
    """This node takes no part in the comparison: why."""


class Exchange:
    """One rank's part in the exchange of values."""

    def __init__(self, store: "Store", rank: int, size: int) -> None:
        self.rank = rank
        self._size = size
        self._others = {*range(1, size)}
        """Those that have not been late yet."""
        self._store = store

    def share(self, own: SharedT) -> tuple[list[SharedT | None], float]:
        """Give a value; return those of all ranks, None for one that is late, and node 0's clock.

        The clock is read when all ranks that are not late wait for these values.

        Raises:
            Alone: node 0 does not answer, or has not waited for this rank.

        """
        kind, name = type(own), type(own).__name__
        self._store.set(f"{name}/{self.rank}", msgspec.json.encode(own).decode())
        if self.rank == 0:
            until = time.monotonic() + SECONDS_FOR_ENTRY
            shared: list[SharedT | None] = [own, *[None] * (self._size - 1)]
            for rank in sorted(self._others):
                shared[rank] = self._value(f"{name}/{rank}", kind, until)
                if shared[rank] is None:
                    self._others.remove(rank)
            value = msgspec.json.encode((time.time(), shared))
            self._store.set(name, value.decode())
            return shared, time.time()
        until = time.monotonic() + SECONDS_FOR_NODE_0
        found = self._value(name, tuple[float, list[kind | None]], until)  # type: ignore[valid-type]
        if found is None:
            raise Alone(f"node 0 does not answer within {SECONDS_FOR_NODE_0:g} s, or is gone")
        clock, shared = found
        if shared[self.rank] is None:
            raise Alone(f"node 0 has not waited longer than {SECONDS_FOR_ENTRY:g} s")
        return shared, clock

    def leave(self, ranks: int) -> None:
        """Count this rank out; rank 0, which serves the store, waits until all ``ranks`` have left."""
        with suppress(RuntimeError):
            left = self._store.add("left", 1)
            until = time.monotonic() + SECONDS_TO_READ
            while self.rank == 0 and left < ranks and time.monotonic() < until:
                time.sleep(0.02)
                left = self._store.add("left", 0)

    def _value(self, key: str, kind: Any, until: float) -> Any:
        """Return a value of this kind; None if it is not there in time, or is another one."""
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
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        return _compare(Exchange(_open_store(environ), rank, size), torch, log_dir, environ)
    except Alone as why:
        advice = (
            "nodes are compared by torch's store: install torch, and reach node 0 at MASTER_ADDR"
        )
        alone = failure("comparison", f"not compared with other nodes: {why}", advice)
        findings = (*this_machine.check_this_machine(log_dir, environ), alone)
        return NodeResult(has_failed=True, health=Health(socket.gethostname(), findings=findings))


def _usable_torch(environ: Mapping[str, str]) -> TorchFacts:
    found = run_child(TorchFacts, SECONDS_FOR_TORCH, environ, "torch")
    if isinstance(found, str):
        raise Alone(f"torch can't be used: {found}")
    return found


def run_child(
    kind: type[SharedT], seconds: float, environ: Mapping[str, str], *words: str
) -> SharedT | str:
    """Return what the child prints; where it fails, crashes or hangs, how, in a line."""
    try:
        child = TimeLimitedChild((*CHILD, *words), seconds, environ)
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
    exchange: Exchange, torch: TorchFacts, log_dir: str, environ: Mapping[str, str]
) -> NodeResult:
    # It takes connections until the end: the kernel accepts them.
    with _listening() as server, _shared_files(log_dir, exchange.rank) as files:
        own = _facts(torch, server.getsockname()[1], files, environ)
        facts, _ = exchange.share(own)
        ranks, nodes = compare.first_rank_of_each_node(facts)
        # Another task may check this node.
        at = ranks.index(exchange.rank) if exchange.rank in ranks else None
        given = NodeFindings() if at is None else _findings(at, nodes, log_dir, environ)
        findings, clock = exchange.share(given)
        ahead = time.time() - clock
    labels = compare.labels_of(nodes)
    table = list(compare.compare_nodes(facts, nodes, [findings[rank] for rank in ranks]))
    backend = compare.backend_of(nodes)
    may_hang = any(
        each.level is Level.FAILURE and each.what.startswith(NEEDED_TO_EXCHANGE) for each in table
    )
    exchanged: NetworkSpeeds | str = NetworkSpeeds()
    if at is not None and len(nodes) > 1 and not may_hang:
        words = ("links", backend, str(at), str(len(nodes)))
        exchanged = run_child(NetworkSpeeds, SECONDS_TO_EXCHANGE, environ, *words)
    if isinstance(exchanged, str):
        exchanged = NetworkSpeeds(fault=exchanged)
    measured, _ = exchange.share(Measured(ahead, exchanged))
    exchange.leave(sum(each is not None for each in facts))
    table += compare.compare_measured(labels, backend, [measured[rank] for rank in ranks])
    health = Health(nodes=labels, findings=tuple(table))
    return NodeResult(health.has_failed, health if exchange.rank == 0 else None)


# What a node is.


def _facts(
    torch: TorchFacts, port: int, files: Sequence[str], environ: Mapping[str, str]
) -> NodeFacts:
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
        files=tuple(map(as_line, files)),
    )


def _address_to(host: str) -> str:
    """Return this machine's address on the way to a host; nothing is sent."""
    for family, _, _, _, where in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as way:
            way.connect(where)
            return plain_address(way.getsockname()[0])
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


@contextmanager
def _shared_files(log_dir: str, rank: int) -> Iterator[list[str]]:
    """Have node 0 write files to the folders that all nodes may share. A file server may hang there."""
    folders = dict.fromkeys((Path.cwd(), Path(log_dir).absolute())) if rank == 0 else ()
    files = [folder / f".clusterrun-doctor-{secrets.token_hex(8)}" for folder in folders]
    limit = TimeLimitedCalls(SECONDS_TO_LOOK)
    for file in files:
        limit.run(partial(_write, file))
    try:
        yield list(map(str, files))
    finally:
        for file in files:
            limit.run(partial(_remove, file))


def _write(file: Path) -> None:
    with suppress(OSError):
        # Where it can't be written, no node sees it.
        file.write_text(file.name)


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink()


# What a node finds.


def _findings(
    own: int, nodes: Sequence[NodeFacts], log_dir: str, environ: Mapping[str, str]
) -> NodeFindings:
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        calls = tuple(pool.map(lambda each: call(*each), _addresses(own, nodes)))
    hosts = [nodes[peer].host for peer in peers_of(own, len(nodes))]
    resolve = partial(_resolve_all, hosts)
    limit = TimeLimitedCalls(SECONDS_TO_LOOK)
    return NodeFindings(
        findings=tuple(this_machine.check_this_machine(log_dir, environ)),
        calls=calls,
        resolved=TimeLimitedCalls(SECONDS_TO_RESOLVE).run(resolve) or {},
        sees=tuple(bool(limit.run(partial(_holds, Path(file)))) for file in nodes[0].files),
    )


def peers_of(own: int, size: int) -> list[int]:
    """Return the nodes that a node calls: all others, or its neighbours in a large job."""
    if size <= MAX_IN_PAIRS:
        return [peer for peer in range(size) if peer != own]
    return sorted({(own + 1) % size, (own - 1) % size})


def _addresses(own: int, nodes: Sequence[NodeFacts]) -> Iterator[tuple[int, str, int]]:
    # Docker's bridge has the same address on every machine.
    here = set(nodes[own].addresses)
    for peer in peers_of(own, len(nodes)):
        known = dict.fromkeys((*nodes[peer].main_addresses, *nodes[peer].addresses))
        yield from ((peer, each, nodes[peer].port) for each in known if each not in here)


def call(peer: int, address: str, port: int) -> ConnectionAttempt:
    """Connect to a node at one of its addresses."""
    try:
        socket.create_connection((address, port), SECONDS_TO_CONNECT).close()
    except OSError as error:
        return ConnectionAttempt(peer, address, as_line((error.strerror or str(error)).lower()))
    return ConnectionAttempt(peer, address, "")


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
