"""The coordinator's connections, by number, on one epoll."""

import resource
import select
from collections.abc import Iterable
from contextlib import suppress

from clusterrun.coordination.messages import FromMember
from clusterrun.errors import MachineError
from clusterrun.rendezvous.wire.connection import Connection

OTHER_DESCRIPTORS = 64
"""Open files that node 0 needs beside its connections."""


class Connections:
    """Numbered connections, watched for what each of them wants."""

    def __init__(self) -> None:
        """Open an epoll(7) for them; others may register there, too."""
        self.epoll = select.epoll()
        self._connections: dict[int, Connection[FromMember]] = {}
        self._peers: dict[int, str] = {}
        self._numbers: dict[int, int] = {}
        self._masks: dict[int, int] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._connections)

    @property
    def numbers(self) -> tuple[int, ...]:
        """All that there are, in the order in which they came."""
        return tuple(self._connections)

    @property
    def is_silent(self) -> bool:
        """Whether all that was sent is on its way."""
        return not any(connection.wants_write for connection in self._connections.values())

    def ready(self) -> list[int]:
        """Return those that have something to say or can be sent something, without waiting."""
        # All of them: whoever is not heard in this turn may count as silent.
        descriptors = (each for each, _ in self.epoll.poll(0, len(self._connections) + 1))
        return [self._numbers[each] for each in descriptors if each in self._numbers]

    def get(self, number: int) -> Connection[FromMember] | None:
        """Return a connection; None if it is gone."""
        return self._connections.get(number)

    def peer(self, number: int) -> str:
        """Return the address of the other end."""
        return self._peers[number]

    def add(self, number: int, connection: Connection[FromMember], peer: str) -> None:
        """Watch a connection from ``peer``."""
        self._connections[number] = connection
        self._peers[number] = peer
        self._numbers[connection.fileno()] = number
        self._masks[number] = select.EPOLLIN
        self.epoll.register(connection, select.EPOLLIN)

    def send(self, numbers: Iterable[int], frame: bytes) -> None:
        """Send the same to each of ``numbers`` that is still there."""
        for number in numbers:
            connection = self._connections.get(number)
            if connection is not None:
                connection.send_frame(frame)
                self.watch(number)

    def watch(self, number: int) -> None:
        """Wait for what a connection waits for now."""
        connection = self._connections[number]
        mask = select.EPOLLIN | (select.EPOLLOUT if connection.wants_write else 0)
        if mask != self._masks[number]:
            self._masks[number] = mask
            self.epoll.modify(connection, mask)

    def drop(self, number: int) -> bool:
        """Close a connection; return whether it still was there."""
        connection = self._connections.pop(number, None)
        if connection is None:
            return False
        del self._peers[number], self._masks[number], self._numbers[connection.fileno()]
        self.epoll.unregister(connection)
        connection.close()
        return True


def allow_connections(nodes: int, strangers: int) -> None:
    """Let node 0 have a connection to each of its ``nodes``, and to ``strangers`` if it may.

    Raises:
        MachineError: it may not even have the former.

    """
    allowed, needed = allow_descriptors(nodes + strangers), nodes + OTHER_DESCRIPTORS
    if allowed < needed:
        raise MachineError(
            f"node 0 keeps connections to {nodes} nodes and needs {needed} open files,"
            f" its hard limit is {allowed}",
            f"raise it on node 0: as root ulimit -n {needed}, for a service LimitNOFILE={needed}",
        )


def allow_descriptors(count: int) -> int:
    """Let this process have ``count`` open files; return how many of these it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
