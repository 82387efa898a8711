"""One call of one address of node 0, up to the greeting."""

import os
import select
import socket
from contextlib import suppress

from clusterrun.coordination.messages import (
    FromCoordinator,
)
from clusterrun.rendezvous.names.addresses import Address
from clusterrun.rendezvous.wire.connection import Connection
from clusterrun.rendezvous.wire.frames import (
    FROM_COORDINATOR,
)
from clusterrun.rendezvous.wire.handshake import NONCE_BYTES, greet_coordinator


class Call:
    """A connection on its way."""

    def __init__(self, address: Address, port: int, token: bytes) -> None:
        """Begin to connect, and greet as soon as that is done.

        Raises:
            OSError: the address can't be reached from here.

        """
        self.address = address
        self.port = port
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            sock.settimeout(0)
            with suppress(BlockingIOError):
                sock.connect(address.at(port))
        except OSError:
            sock.close()
            raise
        greeting = greet_coordinator(token, os.urandom(NONCE_BYTES))
        self.connection: Connection[FromCoordinator] = Connection(sock, FROM_COORDINATOR, greeting)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self.connection.fileno()

    @property
    def connected(self) -> bool:
        """Whether somebody has accepted the connection: our first words are on their way."""
        return self.connection.all_sent

    @property
    def mask(self) -> int:
        """What to wait for."""
        return select.EPOLLIN | (select.EPOLLOUT if self.connection.wants_write else 0)

    def messages(self) -> list[FromCoordinator]:
        """Go on as far as it goes now, and return what node 0 says.

        Raises:
            HandshakeFailed: it is not one to talk to.
            BadFrame: it says what no clusterrun would.

        """
        self.connection.flush()
        return self.connection.receive()
