"""The program that ``clusterrun doctor`` runs once on each node, to check it and compare all nodes.

Nodes exchange values by the job's store (torch's TCPStore, at MASTER_ADDR and MASTER_PORT). In each of
three rounds, for facts, findings and measurements, node 0 collects one value per node and distributes
all of them, so each node draws the same conclusions. Calls to torch that may crash or hang run in a
child process. The program prints a ``NodeResult`` as a line of JSON for the command that started it.
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
from clusterrun.clients.doctor.compare import (
    ConnectionAttempt,
    NodeFacts,
    NodeFindings,
    NodeMeasurements,
)
from clusterrun.clients.doctor.this_machine import (
    LOOPBACK_PREFIXES,
    NCCL_IFNAME,
    SECONDS_TO_RESOLVE,
    SOCKET_IFNAMES,
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
"""For the first import, perhaps from a network file system, and for the matrix products."""
SECONDS_FOR_VALUE = 20.0
"""How long node 0 waits for the others' values once it has its own."""
SECONDS_FOR_NODE_0 = 90.0
"""How long the others wait for node 0, which may wait for each of them several times."""
SECONDS_TO_EXCHANGE = 60.0
MAX_SECONDS = 300.0
"""After this time, the program prints its stacks and exits."""
SECONDS_TO_LEAVE = 5.0

SECONDS_PER_FILE = 5.0
SECONDS_TO_CONNECT = 5.0
MAX_CONCURRENT_CONNECTIONS = 32
BACKLOG = 1024

MAX_ALL_TO_ALL_NODES = 64
"""Up to this many nodes, each connects to each. In larger jobs, nodes connect to ring neighbours."""

LINK_LOCAL = ("169.254.", "fe80:")

BLOCKS_MEASURING = ("answers", "ports", "version of", "matrix product", *SOCKET_IFNAMES)
"""After a failure in one of these findings, nothing is measured, because torch would fail or hang."""

SharedT = TypeVar("SharedT", bound=Struct)


class NodeResult(Struct, frozen=True):
    """The result that the program prints."""

    has_failed: bool
    """Whether a typical job would fail."""
    health: Health | None
    """On node 0 the findings for all nodes. On another node None, or its own if it was not compared."""


class NotCompared(Exception):
    """This node can't be compared with others; the message says why."""


class StoreExchange:
    """One rank's side of an exchange of values through torch's store."""

    def __init__(self, store: "Store", rank: int, size: int) -> None:
        self.rank = rank
        self._size = size
        self._others = {*range(1, size)}
        """On rank 0, the ranks that have not been late yet."""
        self._store = store

    def share(self, own: SharedT) -> tuple[list[SharedT | None], float]:
        """Share a value; return the values of all ranks, None for a late one, and node 0's clock.

        Node 0 reads its clock (seconds since the epoch) while the other ranks wait for these values.

        Raises:
            NotCompared: node 0 does not answer, or has not waited for this rank.

        """
        kind, name = type(own), type(own).__name__
        self._store.set(f"{name}/{self.rank}", msgspec.json.encode(own).decode())
        if self.rank == 0:
            until = time.monotonic() + SECONDS_FOR_VALUE
            shared: list[SharedT | None] = [own, *[None] * (self._size - 1)]
            for rank in sorted(self._others):
                shared[rank] = self._wait_for_value(f"{name}/{rank}", kind, until)
                if shared[rank] is None:
                    self._others.remove(rank)
            value = msgspec.json.encode((time.time(), shared))
            self._store.set(name, value.decode())
            return shared, time.time()
        until = time.monotonic() + SECONDS_FOR_NODE_0
        found = self._wait_for_value(name, tuple[float, list[kind | None]], until)  # type: ignore[valid-type]
        if found is None:
            raise NotCompared(f"node 0 does not answer within {SECONDS_FOR_NODE_0:g} s, or is gone")
        clock, shared = found
        if shared[self.rank] is None:
            raise NotCompared(f"node 0 waited only {SECONDS_FOR_VALUE:g} s for this node")
        return shared, clock

    def leave(self, ranks: int) -> None:
        """Leave the exchange; rank 0, which serves the store, waits until all ``ranks`` have left."""
        with suppress(RuntimeError):
            left = self._store.add("left", 1)
            until = time.monotonic() + SECONDS_TO_LEAVE
            while self.rank == 0 and left < ranks and time.monotonic() < until:
                time.sleep(0.02)
                left = self._store.add("left", 0)

    def _wait_for_value(self, key: str, kind: Any, until: float) -> Any:
        """Return a value of this kind; None if it is late or of another kind."""
        left = timedelta(seconds=max(0.001, until - time.monotonic()))
        # torch raises RuntimeError for a timeout and for a lost connection.
        with suppress(RuntimeError, msgspec.MsgspecError):
            self._store.wait([key], left)
            return msgspec.json.decode(self._store.get(key), type=kind)
        return None


def result_of_this_node(log_dir: str, environ: Mapping[str, str]) -> NodeResult:
    """Check this node, and compare it with the others; ``log_dir`` is "" without log files."""
    try:
        torch = _require_torch(environ)
        rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        return _compare(StoreExchange(_open_store(environ), rank, size), torch, log_dir, environ)
    except NotCompared as why:
        advice = (
            "nodes are compared through torch's store: install torch, and make sure that this node"
            " can reach node 0 at MASTER_ADDR"
        )
        alone = failure("comparison", f"not compared with other nodes: {why}", advice)
        findings = (*this_machine.check_this_machine(log_dir, environ), alone)
        return NodeResult(has_failed=True, health=Health(socket.gethostname(), findings=findings))


def _require_torch(environ: Mapping[str, str]) -> TorchFacts:
    found = run_child(TorchFacts, SECONDS_FOR_TORCH, environ, "torch")
    if isinstance(found, str):
        raise NotCompared(f"torch can't be used: {found}")
    return found


def run_child(
    kind: type[SharedT], seconds: float, environ: Mapping[str, str], *words: str
) -> SharedT | str:
    """Run torch_program; return what it prints, or a line that says how it has failed."""
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
        raise NotCompared(as_line(str(error).partition("\n")[0])) from None


def _compare(
    exchange: StoreExchange, torch: TorchFacts, log_dir: str, environ: Mapping[str, str]
) -> NodeResult:
    # The kernel accepts connections to this socket until the block ends.
    with _listen() as server, _shared_files(log_dir, exchange.rank) as files:
        own = _node_facts(torch, server.getsockname()[1], files, environ)
        facts, _ = exchange.share(own)
        ranks, nodes = compare.first_rank_of_each_node(facts)
        # If the scheduler started several tasks on this node, only the first checks it.
        at = ranks.index(exchange.rank) if exchange.rank in ranks else None
        given = NodeFindings() if at is None else _node_findings(at, nodes, log_dir, environ)
        findings, clock = exchange.share(given)
        ahead = time.time() - clock
    labels = compare.node_labels(nodes)
    table = list(compare.compare_nodes(facts, nodes, [findings[rank] for rank in ranks]))
    backend = compare.backend_of(nodes)
    skips_measuring = any(
        each.level is Level.FAILURE and each.what.startswith(BLOCKS_MEASURING) for each in table
    )
    speeds: NetworkSpeeds | str = NetworkSpeeds()
    if at is not None and len(nodes) > 1 and not skips_measuring:
        words = ("links", backend, str(at), str(len(nodes)))
        speeds = run_child(NetworkSpeeds, SECONDS_TO_EXCHANGE, environ, *words)
    if isinstance(speeds, str):
        speeds = NetworkSpeeds(fault=speeds)
    measured, _ = exchange.share(NodeMeasurements(ahead, speeds))
    exchange.leave(sum(each is not None for each in facts))
    table += compare.compare_measured(labels, backend, [measured[rank] for rank in ranks])
    health = Health(nodes=labels, findings=tuple(table))
    return NodeResult(health.has_failed, health if exchange.rank == 0 else None)


# Facts about this node.


def _node_facts(
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
        address=_local_address_to(environ["MASTER_ADDR"]),
        interfaces=_reachable_addresses(interfaces),
        chosen=_interfaces_from_variables(tuple(interfaces), environ),
        port=port,
        versions={what: as_name(version) for what, version in versions.items() if version},
        torch=torch,
        files=tuple(map(as_line, files)),
    )


def _local_address_to(host: str) -> str:
    """Return this machine's source address for traffic to a host; nothing is sent."""
    for family, _, _, _, address in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(address)
            return plain_address(sock.getsockname()[0])
    return ""


def _reachable_addresses(interfaces: Interfaces) -> dict[str, tuple[str, ...]]:
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    hidden = (*LOOPBACK_PREFIXES, *LINK_LOCAL)
    found = {
        name: tuple(each for each in known if not each.startswith(hidden))
        for name, known in interfaces.items()
        if name in up
    }
    return {name: known for name, known in found.items() if known}


def _interfaces_from_variables(
    names: Sequence[str], environ: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the interfaces that variables make libraries use; NCCL takes the first that matches."""
    chosen = {}
    for variable in SOCKET_IFNAMES:
        if value := environ.get(variable, ""):
            found = usable_interfaces(variable, value, names)
            chosen[variable] = tuple(found[:1] if variable == NCCL_IFNAME else found)
    return chosen


def _listen() -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=BACKLOG, dualstack_ipv6=dual)


@contextmanager
def _shared_files(log_dir: str, rank: int) -> Iterator[list[str]]:
    """On node 0, write a file to each folder that nodes may share; yield their paths."""
    folders = dict.fromkeys((Path.cwd(), Path(log_dir).absolute())) if rank == 0 else ()
    files = [folder / f".clusterrun-doctor-{secrets.token_hex(8)}" for folder in folders]
    limit = TimeLimitedCalls(SECONDS_PER_FILE)
    for file in files:
        limit.run(partial(_write, file))
    try:
        yield list(map(str, files))
    finally:
        for file in files:
            limit.run(partial(_remove, file))


def _write(file: Path) -> None:
    with suppress(OSError):
        # If it can't be written, no node finds it.
        file.write_text(file.name)


def _remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink()


# Checks by this node.


def _node_findings(
    own: int, nodes: Sequence[NodeFacts], log_dir: str, environ: Mapping[str, str]
) -> NodeFindings:
    with ThreadPoolExecutor(MAX_CONCURRENT_CONNECTIONS) as pool:
        attempts = tuple(
            pool.map(lambda each: try_to_connect(*each), _addresses_to_try(own, nodes))
        )
    hosts = [nodes[peer].host for peer in peers_of(own, len(nodes))]
    limit = TimeLimitedCalls(SECONDS_PER_FILE)
    return NodeFindings(
        findings=tuple(this_machine.check_this_machine(log_dir, environ)),
        attempts=attempts,
        resolved=TimeLimitedCalls(SECONDS_TO_RESOLVE).run(
            lambda: {host: this_machine.addresses_of(host) for host in hosts}
        )
        or {},
        sees=tuple(bool(limit.run(partial(_has_own_name, Path(file)))) for file in nodes[0].files),
    )


def peers_of(own: int, size: int) -> list[int]:
    """Return the nodes that a node connects to: all others, or in a large job its neighbours."""
    if size <= MAX_ALL_TO_ALL_NODES:
        return [peer for peer in range(size) if peer != own]
    return sorted({(own + 1) % size, (own - 1) % size})


def _addresses_to_try(own: int, nodes: Sequence[NodeFacts]) -> Iterator[tuple[int, str, int]]:
    # Docker's bridge has the same address on every machine.
    own_addresses = set(nodes[own].addresses)
    for peer in peers_of(own, len(nodes)):
        known = dict.fromkeys((*nodes[peer].main_addresses, *nodes[peer].addresses))
        yield from ((peer, each, nodes[peer].port) for each in known if each not in own_addresses)


def try_to_connect(peer: int, address: str, port: int) -> ConnectionAttempt:
    """Connect to a node at one of its addresses."""
    try:
        socket.create_connection((address, port), SECONDS_TO_CONNECT).close()
    except OSError as error:
        return ConnectionAttempt(peer, address, as_line((error.strerror or str(error)).lower()))
    return ConnectionAttempt(peer, address, "")


def _has_own_name(file: Path) -> bool:
    try:
        return file.read_text() == file.name
    except (OSError, UnicodeDecodeError):
        return False


def main() -> None:
    """Check this node, and print the result; the argument is the log folder, "" without one."""
    faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
    result = result_of_this_node(sys.argv[1], dict(os.environ))
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.flush()
    # Exit at once, even if a thread still waits for a file or a name server.
    os._exit(0)


if __name__ == "__main__":
    main()
