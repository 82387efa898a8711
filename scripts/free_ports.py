"""Free TCP ports, for benchmarks and tests whose launchers must be given one."""

import secrets
import socket
from contextlib import suppress

PORTS = range(10000, 32768)
"""Below the ports that the kernel chooses for other programs meanwhile."""


def free_port(ports: range = PORTS) -> int:
    """Return one of ``ports`` on which no program of this machine listens.

    Nobody else who asks here gets it before this process has ended.
    """
    while True:
        port = secrets.choice(ports)
        with suppress(OSError):
            with socket.socket(socket.AF_UNIX) as name, socket.socket() as trial:
                # First: a port that another process has drawn is not touched, not even for a moment,
                # as that process is about to listen at it.
                name.bind(f"\0clusterrun-free-port-{port}")
                trial.bind(("", port))
                # Open until the end of this process. Like a port, the name belongs to the network
                # namespace, and the kernel gives it to one socket only.
                name.detach()
            return port
