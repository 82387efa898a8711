"""The connections of commands to an agent: reads one request of each, and writes one answer."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clusterrun.policy.event_source import NEVER
from clusterrun.user_sockets import is_of_this_user

if TYPE_CHECKING:
    # Imported for the first command: few jobs get any.
    from clusterrun.control.messages import Request
    from clusterrun.network.channel import Channel

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
        from clusterrun.control.messages import REQUESTS
        from clusterrun.network.channel import Channel
        from clusterrun.network.handshake import coordinator_handshake

        self._channel: Channel[Request] = Channel(REQUESTS, connection, coordinator_handshake(b""))
        self._channel.longest = LONGEST_REQUEST
        # Of a large job; after some seconds it is dropped.
        self._channel.most_unsent = NEVER
        self.until = until
        """When it is dropped."""
        self._has_asked = False
        self._is_answered = False

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def events(self) -> int:
        """What to wait for: until there is an answer, only its end."""
        if not self._has_asked:
            return select.EPOLLIN
        return select.EPOLLOUT if self._channel.wants_write else 0

    @property
    def is_over(self) -> bool:
        is_sent = self._is_answered and not self._channel.wants_write
        return is_sent or self._channel.end is not None

    def read(self) -> Request | None:
        """Return the request once all of it is here; until then, and for an invalid one, None."""
        from clusterrun.network.channel import BadFrame
        from clusterrun.network.handshake import HandshakeFailed

        try:
            requests = self._channel.receive()
        except (BadFrame, HandshakeFailed):
            # Of another version, or no command of ours.
            return None
        self._has_asked = bool(requests)
        return requests[0] if requests else None

    def answer(self, body: bytes) -> None:
        """Send as much as the kernel takes; ``write`` sends the rest."""
        self._is_answered = True
        self._channel.send_body(body)

    def write(self) -> None:
        self._channel.flush()

    def close(self) -> None:
        self._channel.close()


class Callers:
    """All of them; none waits for another."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callers: dict[int, Caller] = {}
        self._listener: socket.socket | None = None
        self._accept_again = NEVER

    def __len__(self) -> int:
        return len(self._callers)

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
            self._callers[caller.fileno()] = caller
            self._epoll.register(caller, caller.events)
        if len(self._callers) == MOST_CALLERS:
            self._epoll.modify(self._listener, 0)

    def requests(self, now: float) -> Iterator[tuple[Caller, Request]]:
        """Yield whole requests; write answers, and drop those whose time is over."""
        for descriptor, events in self._epoll.poll(0, MOST_OF_A_TURN):
            caller = self._callers.get(descriptor)
            if caller is None:
                continue
            if events & (select.EPOLLHUP | select.EPOLLERR) and not events & select.EPOLLIN:
                self.drop(caller)
            elif events & select.EPOLLOUT:
                caller.write()
            elif (request := caller.read()) is not None:
                self._epoll.modify(caller, caller.events)
                yield caller, request
            self._settle(caller)
        for caller in [each for each in self._callers.values() if now >= each.until]:
            self.drop(caller)

    def answer(self, caller: Caller, body: bytes, now: float) -> None:
        """Begin to send an answer; the caller may have gone."""
        if self._callers.get(caller.fileno()) is not caller:
            return
        caller.until = now + SECONDS_TO_READ
        caller.answer(body)
        self._epoll.modify(caller, caller.events)
        self._settle(caller)

    def _settle(self, caller: Caller) -> None:
        if caller.is_over:
            self.drop(caller)

    def drop(self, caller: Caller) -> None:
        """Close a connection; only once."""
        if caller.fileno() >= 0:
            if self._listener is not None and len(self._callers) == MOST_CALLERS:
                self._epoll.modify(self._listener, select.EPOLLIN)
            self._callers.pop(caller.fileno(), None)
            caller.close()

    def close(self) -> None:
        self._listener = None
        for caller in list(self._callers.values()):
            self.drop(caller)
        self._epoll.close()
