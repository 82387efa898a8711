"""The connections of commands to an agent: reads one request of each, and writes one answer."""

import select
import socket
from collections.abc import Iterator

from clusterrun.policy.event_source import NEVER
from clusterrun.user_sockets import is_of_this_user

LONGEST_REQUEST = 1 << 20
"""Bytes: it may say how far the output of thousands of ranks has been read."""

SECONDS_TO_ASK = 5.0
"""A command that has connected and sends no whole request is dropped after that."""

SECONDS_TO_READ = 5.0
"""A command that does not read its answer is dropped after that."""

SECONDS_WITHOUT_DESCRIPTORS = 0.5
"""Until the next try to accept one."""

MOST_CALLERS = 128
"""Connections at a time; others wait in the kernel's queue."""

MOST_OF_A_TURN = 16
"""Connections that are accepted, and that are served, before the agent's loop goes on."""


class Caller:
    """A command that has connected."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._received = bytearray()
        self._unsent = memoryview(b"")
        self.until = until
        """When it is dropped."""
        self.is_over = False

    def fileno(self) -> int:
        return self._connection.fileno()

    def read(self) -> bytes | None:
        """Return the request once all of it is here; until then None."""
        try:
            data = self._connection.recv(LONGEST_REQUEST)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
            self.is_over = True
        self._received += data
        self.is_over |= len(self._received) > LONGEST_REQUEST
        return bytes(self._received) if not data and not self.is_over else None

    def answer(self, data: bytes) -> None:
        """Send as much as the kernel takes; ``write`` sends the rest."""
        self._unsent = memoryview(data)
        self.write()

    def write(self) -> None:
        try:
            self._unsent = self._unsent[self._connection.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self.is_over = True
        self.is_over |= not self._unsent

    def close(self) -> None:
        self._connection.close()


class Callers:
    """All of them; none waits for another."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callers: dict[int, Caller] = {}
        self._asking: dict[int, Caller] = {}
        self._listener: socket.socket | None = None
        self._accept_again = NEVER

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def due(self) -> float:
        """When one is to be dropped, or accepted."""
        return min([self._accept_again, *(caller.until for caller in self._callers.values())])

    def listen(self, listener: socket.socket) -> None:
        """Accept connections from now on; the caller closes the listener after ``close``."""
        listener.setblocking(False)
        self._epoll.register(listener, select.EPOLLIN)
        self._listener = listener

    def accept(self, now: float) -> None:
        """Accept connections that wait, and no more than may be open."""
        if self._listener is None:
            return
        if self._accept_again <= now:
            self._accept_again = NEVER
            self._epoll.modify(self._listener, select.EPOLLIN)
        for _ in range(min(MOST_OF_A_TURN, MOST_CALLERS - len(self._callers))):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # This process has no descriptor left: the listener would be ready for ever.
                self._epoll.modify(self._listener, 0)
                self._accept_again = now + SECONDS_WITHOUT_DESCRIPTORS
                return
            if not is_of_this_user(connection):
                connection.close()
                continue
            caller = Caller(connection, now + SECONDS_TO_ASK)
            self._callers[caller.fileno()] = self._asking[caller.fileno()] = caller
            self._epoll.register(caller, select.EPOLLIN)
        if len(self._callers) == MOST_CALLERS:
            self._epoll.modify(self._listener, 0)

    def requests(self, now: float) -> Iterator[tuple[Caller, bytes]]:
        """Yield whole requests; write answers, and drop those whose time is over."""
        for descriptor, _ in self._epoll.poll(0, MOST_OF_A_TURN):
            caller = self._callers.get(descriptor)
            if caller is None:
                continue
            if descriptor not in self._asking:
                caller.write()
            elif (request := caller.read()) is not None:
                del self._asking[descriptor]
                # Until there is an answer, only its time ends it.
                self._epoll.modify(descriptor, 0)
                yield caller, request
            self.settle(caller)
        for caller in [each for each in self._callers.values() if now >= each.until]:
            self.drop(caller)

    def answer(self, caller: Caller, data: bytes, now: float) -> None:
        """Begin to send an answer; the caller may have gone."""
        if self._callers.get(caller.fileno()) is not caller:
            return
        caller.until = now + SECONDS_TO_READ
        caller.answer(data)
        if not caller.is_over:
            self._epoll.modify(caller.fileno(), select.EPOLLOUT)
        self.settle(caller)

    def settle(self, caller: Caller) -> None:
        if caller.is_over:
            self.drop(caller)

    def drop(self, caller: Caller) -> None:
        """Close a connection; only once."""
        if caller.fileno() >= 0:
            if self._listener is not None and len(self._callers) == MOST_CALLERS:
                self._epoll.modify(self._listener, select.EPOLLIN)
            self._callers.pop(caller.fileno(), None)
            self._asking.pop(caller.fileno(), None)
            caller.close()

    def close(self) -> None:
        self._listener = None
        for caller in list(self._callers.values()):
            self.drop(caller)
        self._epoll.close()
