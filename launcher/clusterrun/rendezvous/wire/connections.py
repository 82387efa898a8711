"""The coordinator's connections, by number, on one epoll."""

import resource
import select
from collections.abc import Iterable
from contextlib import suppress

from clusterrun.errors import MachineError
from clusterrun.network.channel import Channel
from clusterrun.policy.messages import FromMember

OTHER_DESCRIPTORS = 64
"""Open files that node 0 needs beside its connections."""


class Connections:
    """Numbered connections, each watched for reading, and for writing while something is queued."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self._connections: dict[int, Channel[FromMember]] = {}
        self._peers: dict[int, str] = {}
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def numbers(self) -> tuple[int, ...]:
        """All of them, in the order in which they were added."""
        return tuple(self._connections)

    @property
    def all_sent(self) -> bool:
        """Whether nothing is queued on any of them."""
        return not any(connection.wants_write for connection in self._connections.values())

    def ready(self) -> list[int]:
        """Return those that can be read or written now."""
        # All of them: a member that is not read in this turn may count as silent.
        descriptors = (each for each, _ in self.epoll.poll(0, len(self._connections) + 1))
        return [self._numbers[each] for each in descriptors if each in self._numbers]

    def get(self, number: int) -> Channel[FromMember] | None:
        """Return a connection; None if it is closed."""
        return self._connections.get(number)

    def peer(self, number: int) -> str:
        """Return the address of the other end."""
        return self._peers[number]

    def add(self, number: int, connection: Channel[FromMember], peer: str) -> None:
        """Watch a connection from the address ``peer``."""
        self._connections[number] = connection
        self._peers[number] = peer
        self._numbers[connection.fileno()] = number
        connection.watch(self.epoll)

    def send(self, numbers: Iterable[int], body: bytes) -> None:
        """Send an encoded message to each of ``numbers`` that is still open."""
        for number in numbers:
            connection = self._connections.get(number)
            if connection is not None:
                connection.send_body(body)
                connection.watch(self.epoll)

    def drop(self, number: int) -> bool:
        """Close a connection; return whether it was open."""
        connection = self._connections.pop(number, None)
        if connection is None:
            return False
        del self._peers[number], self._numbers[connection.fileno()]
        connection.unwatch(self.epoll)
        connection.close()
        return True


def allow_connections(nodes: int, strangers: int) -> None:
    """Raise the limit of open files to a connection for each node, and for ``strangers`` if allowed.

    Raises:
        MachineError: the hard limit is too low for all nodes.

    """
    allowed, needed = allow_descriptors(nodes + strangers), nodes + OTHER_DESCRIPTORS
    if allowed < needed:
        raise MachineError(
            f"node 0 keeps connections to {nodes} nodes and needs {needed} open files,"
            f" its hard limit is {allowed}",
            f"raise it on node 0: as root ulimit -n {needed}, for a service LimitNOFILE={needed}",
        )


def allow_descriptors(count: int) -> int:
    """Raise this process's limit of open files to ``count``; return how many of these it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
