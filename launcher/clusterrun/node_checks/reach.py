"""Whether nodes reach each other: each connects to all addresses of its peers, at a free port."""

import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from msgspec import Struct

from clusterrun.node_checks.findings import Node
from clusterrun.node_checks.meeting import listen
from clusterrun.processes import start_thread

SECONDS_TO_CONNECT = 5.0
SECONDS_TO_ANSWER = 10.0
ROUND_TRIPS = 10

MOST_IN_PAIRS = 64
"""Nodes of which each calls each; in larger jobs a node calls its neighbours in a ring."""

CALLS_AT_ONCE = 16


class Call(Struct, frozen=True):
    """One address of another node, as seen from this one."""

    to: int
    """A node rank."""
    address: str
    fault: str
    """``timed out``; "" if it answers."""
    seconds: float
    """The shortest round trip; 0.0 if it does not answer."""


class Door:
    """A port of this node, where other nodes get back what they send."""

    def __init__(self) -> None:
        self.greeting = secrets.token_hex(8)
        """What it says first: by an address that several machines have, another one may answer."""
        self._server = listen(0)
        self.port: int = self._server.getsockname()[1]
        start_thread(self._serve)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                start_thread(partial(self._echo, connection))

    def _echo(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(f"{self.greeting}\n".encode())
            while data := connection.recv(1):
                connection.sendall(data)


def peers_of(rank: int, size: int) -> list[int]:
    """Return the node ranks that a node calls: all others, or its neighbours in a large job."""
    if size <= MOST_IN_PAIRS:
        return [peer for peer in range(size) if peer != rank]
    return sorted({(rank + 1) % size, (rank - 1) % size})


def call_all(rank: int, nodes: Sequence[Node]) -> list[Call]:
    """Call all addresses of this node's peers."""
    wanted = list(_addresses(rank, nodes))
    if not wanted:
        return []
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool:
        return list(pool.map(lambda each: _call(each[0], each[1], nodes[each[0]]), wanted))


def _addresses(rank: int, nodes: Sequence[Node]) -> Iterator[tuple[int, str]]:
    # Docker's bridge has the same address on every machine.
    own = set(nodes[rank].addresses)
    for peer in peers_of(rank, len(nodes)):
        known = dict.fromkeys((*nodes[peer].main_addresses, *nodes[peer].addresses))
        yield from ((peer, address) for address in known if address not in own)


def _call(peer: int, address: str, node: Node) -> Call:
    try:
        with socket.create_connection((address, node.port), SECONDS_TO_CONNECT) as connection:
            connection.settimeout(SECONDS_TO_ANSWER)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection.makefile("rb") as file:
                if file.readline(64).decode(errors="replace").strip() != node.greeting:
                    return Call(peer, address, "another machine answers", 0.0)
                return Call(peer, address, "", min(_round_trips(connection)))
    except OSError as error:
        return Call(peer, address, (error.strerror or str(error)).lower(), 0.0)


def _round_trips(connection: socket.socket) -> Iterator[float]:
    for _ in range(ROUND_TRIPS):
        began = time.monotonic()
        connection.sendall(b".")
        if not connection.recv(1):
            raise ConnectionResetError("closed")
        yield time.monotonic() - began
