"""Free TCP ports, for benchmarks and tests whose launchers must be given one."""

import atexit
import random
import socket
from collections import deque
from contextlib import suppress

PORTS = range(10000, 32768)
"""Below the ports that the kernel chooses for other programs meanwhile."""

BLOCK = 128


class Block:
    """Ports that are this process's as long as it lives, or until it claims others."""

    def __init__(self) -> None:
        self.ports = deque[int]()
        self._name = socket.socket(socket.AF_UNIX)
        # Otherwise Python warns at its end.
        atexit.register(self.give_up)

    def give_up(self) -> None:
        self._name.close()

    def claim_others(self) -> None:
        """Give up these ports, which are all in use."""
        self.give_up()
        while True:
            first = random.randrange(PORTS.start, PORTS.stop - BLOCK, BLOCK)  # noqa: S311 - no secret
            self._name = socket.socket(socket.AF_UNIX)
            with suppress(OSError):
                # Like a port, the name belongs to the network namespace, and to one socket only.
                self._name.bind(f"\0clusterrun-free-ports-{first}")
                self.ports = deque(range(first, first + BLOCK))
                return
            self._name.close()


_OWN = Block()


def free_port() -> int:
    """Return a port on which no program of this machine listens.

    No other process that asks here gets it meanwhile. This one gets the same port again after all
    others of its block.
    """
    while True:
        for _ in range(len(_OWN.ports)):
            port = _OWN.ports[0]
            _OWN.ports.rotate(-1)
            with suppress(OSError), socket.socket() as trial:
                trial.bind(("", port))
                return port
        _OWN.claim_others()
