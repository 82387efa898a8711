"""Free TCP ports, for benchmarks and tests whose launchers must be given one."""

import random
import socket
from collections import deque
from contextlib import suppress

PORTS = range(10000, 32768)
"""Below the ports that the kernel chooses for other programs meanwhile."""

BLOCK = 128

_own_ports: deque[int] = deque()


def free_port() -> int:
    """Return a port on which no program of this machine listens.

    No other process that asks here gets it before this one has ended. This one gets the same port
    again after all others of its block.
    """
    while True:
        for _ in range(len(_own_ports)):
            port = _own_ports[0]
            _own_ports.rotate(-1)
            with suppress(OSError), socket.socket() as trial:
                trial.bind(("", port))
                return port
        _own_ports.extend(_claim_block())


def _claim_block() -> range:
    """Return ports that are this process's until it ends."""
    while True:
        first = random.randrange(PORTS.start, PORTS.stop - BLOCK, BLOCK)  # noqa: S311 - no secret
        with suppress(OSError), socket.socket(socket.AF_UNIX) as name:
            # Like a port, the name belongs to the network namespace, and to one socket only.
            name.bind(f"\0clusterrun-free-ports-{first}")
            # Open until this process ends.
            name.detach()
            return range(first, first + BLOCK)
