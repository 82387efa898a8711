"""The workers of all nodes, in steps: each gives a value, and node 0 or all of them get them all.

They meet at MASTER_ADDR and MASTER_PORT, where those of a training job do. It needs no torch, which
may be what is wrong. Each message is a line of JSON.
"""

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple, TypeVar

import msgspec

SECONDS_TO_MEET = 60.0
SECONDS_BETWEEN_TRIES = 0.05
SECONDS_FOR_RANK_0 = 600.0
"""Rank 0 alone judges who is late: it may wait for each of the others."""
LONGEST_LINE = 1 << 26

ValueT = TypeVar("ValueT")


class Silent(Exception):
    """A worker does not answer."""

    def __init__(self, rank: int, how: str) -> None:
        super().__init__(f"rank {rank} {how}")
        self.rank = rank
        self.how = how
        """``does not answer within 60 s``."""


class Peer(NamedTuple):
    """The connection to another worker."""

    rank: int
    connection: socket.socket
    file: BinaryIO

    def send(self, value: object) -> None:
        """Send a value.

        Raises:
            Silent: the other end is gone, or takes nothing.

        """
        try:
            self.connection.sendall(msgspec.json.encode(value) + b"\n")
        except OSError as error:
            raise Silent(self.rank, f"can't be sent anything: {error}") from None

    def receive(self, kind: type[ValueT], seconds: float) -> ValueT:
        """Return what the other end sends.

        Raises:
            Silent: it sends nothing in time, or has closed the connection.

        """
        self.connection.settimeout(seconds)
        try:
            line = self.file.readline(LONGEST_LINE)
        except TimeoutError:
            raise Silent(self.rank, f"does not answer within {seconds:g} s") from None
        except OSError as error:
            raise Silent(self.rank, f"is gone: {error}") from None
        if not line.endswith(b"\n"):
            raise Silent(self.rank, "has closed its connection")
        return msgspec.json.decode(line, type=kind)


class Meeting:
    """One worker's part in it."""

    def __init__(self, rank: int, peers: Sequence[Peer]) -> None:
        """Take the connections: of rank 0 to all others in their order, of others to rank 0."""
        self.rank = rank
        self.peers = peers

    @property
    def address(self) -> str:
        """This worker's address on a connection of the meeting."""
        text = str(self.peers[0].connection.getsockname()[0]).partition("%")[0]
        return text.removeprefix("::ffff:")

    def collect(self, value: ValueT, kind: type[ValueT], seconds: float) -> list[ValueT]:
        """Return the values of all ranks on rank 0; [] on the others.

        Raises:
            Silent: a rank does not give its value within ``seconds``.

        """
        if self.rank:
            self.peers[0].send(value)
            return []
        return [value, *(peer.receive(kind, seconds) for peer in self.peers)]

    def share(self, value: ValueT, kind: type[ValueT], seconds: float) -> list[ValueT]:
        """Return the values of all ranks, on all of them; none goes on before all have given one.

        Raises:
            Silent: as ``collect``.

        """
        values = self.collect(value, kind, seconds)
        return self.announce(values, list[kind])  # type: ignore[valid-type]

    def announce(self, value: ValueT, kind: type[ValueT]) -> ValueT:
        """Return rank 0's value, on all ranks.

        Raises:
            Silent: rank 0 is gone.

        """
        if self.rank:
            return self.peers[0].receive(kind, SECONDS_FOR_RANK_0)
        for peer in self.peers:
            peer.send(value)
        return value

    def close(self) -> None:
        for peer in self.peers:
            peer.file.close()
            peer.connection.close()


def meet(environ: Mapping[str, str]) -> Meeting:
    """Return this worker's part in the meeting of its job, by the variables of a worker.

    Raises:
        Silent: not all ranks come in time.

    """
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    port = int(environ["MASTER_PORT"])
    if rank == 0:
        return Meeting(0, _accept_all(port, size))
    return Meeting(rank, [peer_on(_call(environ["MASTER_ADDR"], port, rank), 0)])


def _accept_all(port: int, size: int) -> list[Peer]:
    found: dict[int, Peer] = {}
    deadline = time.monotonic() + SECONDS_TO_MEET
    with listen(port) as server:
        while missing := sorted(set(range(1, size)) - found.keys()):
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = server.accept()
                peer = peer_on(connection, -1)
                rank = peer.receive(int, SECONDS_TO_MEET)
            except TimeoutError:
                raise Silent(missing[0], f"does not connect within {SECONDS_TO_MEET:g} s") from None
            except (Silent, msgspec.DecodeError):
                # A stranger.
                continue
            found[rank] = peer._replace(rank=rank)
    return [found[rank] for rank in range(1, size)]


def _call(host: str, port: int, rank: int) -> socket.socket:
    deadline = time.monotonic() + SECONDS_TO_MEET
    while True:
        try:
            connection = socket.create_connection((host, port), SECONDS_TO_MEET)
        except OSError as error:
            # Node 0's worker may start later.
            if time.monotonic() > deadline:
                raise Silent(0, f"can't be reached at {host}: {error}") from None
            time.sleep(SECONDS_BETWEEN_TRIES)
            continue
        connection.sendall(b"%d\n" % rank)
        return connection


def peer_on(connection: socket.socket, rank: int) -> Peer:
    """Return the other end of a connection."""
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Peer(rank, connection, connection.makefile("rb"))


def listen(port: int) -> socket.socket:
    """Return a socket that listens on all addresses of this machine; port 0 chooses one.

    Raises:
        OSError: the port is taken.

    """
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
