"""A member's end of a connection, from the moment at which it begins to connect."""

import os
import socket
from contextlib import suppress

from clusterrun.policy.messages import FromCoordinator
from clusterrun.rendezvous.names.addresses import Address
from clusterrun.rendezvous.wire.connection import Connection
from clusterrun.rendezvous.wire.frames import FROM_COORDINATOR
from clusterrun.rendezvous.wire.handshake import NONCE_BYTES, member_handshake


class OutgoingConnection(Connection[FromCoordinator]):
    """A connection to one address and port of node 0.

    Raises:
        OSError: this host has no route to the address.

    """

    def __init__(self, address: Address, port: int, token: bytes) -> None:
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
        handshake = member_handshake(token, os.urandom(NONCE_BYTES))
        super().__init__(sock, FROM_COORDINATOR, handshake)

    @property
    def connected(self) -> bool:
        """Whether the other side has accepted: the first bytes have been sent."""
        return self.all_sent
