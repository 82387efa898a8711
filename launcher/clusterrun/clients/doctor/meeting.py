"""The workers of a job, in rounds: each gives rank 0 a value, and all get what rank 0 concludes.

They meet at MASTER_ADDR and MASTER_PORT, where the workers of a training job do. It needs no torch, which
may be what is wrong. Only workers that prove the job's secret take part: another program that connects is
not read, and keeps nobody waiting.
"""

import math
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.msgpack import Decoder

from clusterrun.bounds import Count
from clusterrun.network.channel import How, WaitingChannel
from clusterrun.network.handshake import (
    BadFrame,
    Handshake,
    coordinator_handshake,
    member_handshake,
)

SECONDS_TO_MEET = 60.0
SECONDS_BETWEEN_TRIES = 0.05
SECONDS_FOR_RANK_0 = 600.0
"""Rank 0 alone judges who is late: it may wait for each of the others."""
SECONDS_TO_SEND = 10.0

MOST_STRANGERS = 64
"""Connections that have not proved the secret, above the number of workers; then the oldest is closed."""

LONGEST = 1 << 26
"""Bytes of a message: rank 0's has all nodes."""

GivenT = TypeVar("GivenT", bound=Struct)
ConclusionT = TypeVar("ConclusionT", bound=Struct)


class Introduction(Struct, frozen=True, tag=True):
    """A worker's first message, and the answer to it."""

    rank: Count
    """The sender's."""


class Silent(Exception):
    """A worker does not answer."""

    def __init__(self, rank: int, how: str) -> None:
        super().__init__(f"rank {rank} {how}")
        self.rank = rank
        self.how = how
        """``does not answer within 60 s``."""


Peer = WaitingChannel[Any]
"""The connection to another worker."""


class WorkersMeeting:
    """One worker's part in it."""

    def __init__(self, rank: int, peers: Sequence[Peer]) -> None:
        """Take the connections: of rank 0 to all others in their order, of others to rank 0."""
        self.rank = rank
        self._peers = list(peers)

    @property
    def address(self) -> str:
        """This worker's address on a connection of the meeting."""
        return self._peers[0].local_address

    def share(
        self,
        own: GivenT,
        conclude: Callable[[list[GivenT]], ConclusionT],
        kind: type[ConclusionT],
        seconds: float,
    ) -> ConclusionT:
        """Give rank 0 this rank's value; return what it concludes from all values, on all ranks.

        Args:
            own: the value.
            conclude: called on rank 0, with the values of all ranks in their order.
            kind: what it returns.
            seconds: how long rank 0 waits for the others' values once it has its own.

        Raises:
            Silent: a rank does not give its value in time, or is gone.

        """
        if self.rank:
            self._peers[0].send(own)
            return self._next(0, self._peers[0], kind, SECONDS_FOR_RANK_0)
        deadline, values = time.monotonic() + seconds, [own]
        for rank, peer in enumerate(self._peers, 1):
            values.append(self._next(rank, peer, type(own), seconds, deadline))
        conclusion = conclude(values)
        for peer in self._peers:
            peer.send(conclusion)
        for peer in self._peers:
            peer.drain(SECONDS_TO_SEND)
        return conclusion

    def go_on_with(self, ranks: Sequence[int]) -> None:
        """Let only these ranks go on, numbered from 0 in their order; rank 0 and this one are of them."""
        if self.rank:
            self.rank = ranks.index(self.rank)
            return
        for rank, peer in enumerate(self._peers, 1):
            if rank not in ranks:
                peer.close()
        self._peers = [self._peers[rank - 1] for rank in ranks if rank]

    def close(self) -> None:
        for peer in self._peers:
            peer.close()

    def _next(
        self, rank: int, peer: Peer, kind: type[GivenT], seconds: float, deadline: float = math.inf
    ) -> GivenT:
        try:
            found = peer.next(kind, max(0.0, min(seconds, deadline - time.monotonic())))
        except BadFrame as error:
            raise Silent(rank, str(error)) from None
        if found is not None:
            return found
        if peer.end is None:
            raise Silent(rank, f"does not answer within {seconds:g} s")
        if peer.end is How.CLOSED:
            raise Silent(rank, "has closed its connection")
        raise Silent(rank, f"is gone: {peer.trouble or peer.end.value}")


def meet(environ: Mapping[str, str], token: str, kinds: Any) -> WorkersMeeting:
    """Return this worker's part in the meeting of its job, by the variables of a worker.

    Args:
        environ: the variables.
        token: the job's; "" if it has none. The run id, which node 0 gives to the nodes that join, is a
            part of the secret, too.
        kinds: the messages of all rounds, a union.

    Raises:
        Silent: not all ranks come in time.

    """
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    host, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    secret = f"{token}\n{environ['TORCHELASTIC_RUN_ID']}".encode()
    decoder = Decoder(Introduction | kinds)
    if rank == 0:
        return WorkersMeeting(0, _accept_all(port, size, secret, decoder))
    return WorkersMeeting(rank, [_call(host, port, rank, secret, decoder)])


def _accept_all(port: int, size: int, secret: bytes, decoder: Decoder[Any]) -> list[Peer]:
    deadline = time.monotonic() + SECONDS_TO_MEET
    found: dict[int, Peer] = {}
    unknown: list[Peer] = []
    with listen(port) as server:
        server.settimeout(0)
        while missing := set(range(1, size)) - found.keys():
            left = deadline - time.monotonic()
            if left <= 0:
                raise Silent(min(missing), f"does not connect within {SECONDS_TO_MEET:g} s")
            poll = select.poll()
            for descriptor in (server.fileno(), *(peer.fileno() for peer in unknown)):
                poll.register(descriptor, select.POLLIN)
            poll.poll(1000 * left)
            with suppress(BlockingIOError, ConnectionAbortedError):
                connection, _ = server.accept()
                unknown.append(_peer(decoder, connection, coordinator_handshake(secret)))
            for peer in list(unknown):
                rank = _rank_of(peer)
                if rank is None and len(unknown) <= MOST_STRANGERS + size:
                    continue
                unknown.remove(peer)
                if rank in missing:
                    missing.remove(rank)
                    found[rank] = peer
                    peer.send(Introduction(0))
                else:
                    peer.close()
    for peer in unknown:
        peer.close()
    return [found[rank] for rank in range(1, size)]


def _peer(decoder: Decoder[Any], connection: socket.socket, handshake: Handshake) -> Peer:
    peer = WaitingChannel(decoder, connection, handshake)
    peer.longest, peer.most_unsent = LONGEST, math.inf
    return peer


def _rank_of(peer: Peer) -> int | None:
    """Return the rank of who has connected; None if it is not known yet, -1 if it is a stranger."""
    try:
        introduction = peer.next(Introduction, 0.0)
    except BadFrame:
        return -1
    if introduction is None:
        return None if peer.end is None else -1
    return introduction.rank


def _call(host: str, port: int, rank: int, secret: bytes, decoder: Decoder[Any]) -> Peer:
    deadline = time.monotonic() + SECONDS_TO_MEET
    fault, is_strangers = "", False
    while True:
        peer: Peer | None = None
        try:
            connection = socket.create_connection((host, port), SECONDS_TO_MEET)
            peer = _peer(decoder, connection, member_handshake(secret))
            peer.send(Introduction(rank))
            if peer.next(Introduction, max(0.0, deadline - time.monotonic())):
                return peer
            fault = "it does not answer"
        except OSError as error:
            fault = str(error)
        except BadFrame:
            is_strangers = True
        if peer is not None:
            peer.close()
        # Node 0's worker may start later.
        if time.monotonic() > deadline:
            # The last try may have had no time for an answer.
            fault = "another program answers" if is_strangers else fault
            raise Silent(0, f"can't be reached at {host}: {fault}")
        time.sleep(SECONDS_BETWEEN_TRIES)


def listen(port: int) -> socket.socket:
    """Return a socket that listens on all addresses of this machine; port 0 chooses one.

    Raises:
        OSError: the port is taken.

    """
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
