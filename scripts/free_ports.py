"""Free TCP ports, for benchmarks and tests whose launchers must be given one."""

import secrets
import socket
from contextlib import suppress

PORTS = range(10000, 32768)
"""Below the ports that the kernel chooses for other programs meanwhile."""


def free_port() -> int:
    """Return a port on which no program of this machine listens."""
    while True:
        port = secrets.choice(PORTS)
        with suppress(OSError), socket.socket() as sock:
            sock.bind(("", port))
            return port
