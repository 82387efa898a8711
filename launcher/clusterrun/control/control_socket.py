"""Where a running agent listens for the commands of its user: ``clusterrun suspend``.

Its path is ``job-PID-RANDOM`` in the folder for this user's sockets. A command finds the jobs of
this host by listing the folder.
"""

import os
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from clusterrun.domain.event_source import NEVER
from clusterrun.domain.events import Event, SuspensionWanted
from clusterrun.user_sockets import (
    connect_to,
    is_of_this_user,
    listen_at,
    remove_socket,
    socket_folder,
)

if TYPE_CHECKING:
    # Imported for the first request: few jobs get any.
    from clusterrun.control.messages import Description

PREFIX = "job-"

LONGEST_REQUEST = 1 << 16
"""Bytes."""

SECONDS_TO_ASK = 5.0
"""A command that has connected and sends no whole request is dropped after that."""

MOST_CALLERS = 16
"""Connections at a time."""

ATTEMPTS_TO_OPEN = 3
"""A job that ends may remove the folder while this one opens its socket there."""

ResultT = TypeVar("ResultT")

BY_COMMAND = "clusterrun suspend"


class TimeLimited(Protocol):
    """Runs work on files for a limited time."""

    def run(self, work: Callable[[], ResultT]) -> ResultT | None:
        """Return what ``work`` returns; None if it takes too long."""


class Listener(NamedTuple):
    """A socket that listens, and its path."""

    socket: socket.socket
    path: Path


class ControlSocket:
    """Answers commands, as a source of events; it opens when it is first due.

    That is in the agent's loop, while workers start already: no launch waits for it.
    """

    wants_write = False
    lost = False

    def __init__(
        self,
        describe: Callable[[], "Description"],
        environ: Mapping[str, str],
        files: TimeLimited,
        remove_at_end: Callable[[Path], object],
    ) -> None:
        """Take what the socket needs.

        Args:
            describe: returns the job.
            environ: names the folder for sockets.
            files: what runs work on files.
            remove_at_end: has the socket removed, however this process ends.

        """
        self._remove_at_end = remove_at_end
        self._describe = describe
        self._environ = environ
        self._files = files
        self._epoll = select.epoll()
        self._listener: Listener | None = None
        self._callers: dict[int, _Caller] = {}
        self._is_new = True

    @property
    def due(self) -> float:
        if self._is_new:
            return 0.0
        return min((caller.until for caller in self._callers.values()), default=NEVER)

    def fileno(self) -> int:
        return self._epoll.fileno()

    def flush(self) -> None:
        """Do nothing: ``events`` answers."""

    def events(self, now: float) -> Iterator[Event]:
        """Return what commands ask for; answer each."""
        if self._is_new:
            self._is_new = False
            self._open()
        self._accept(now)
        for caller in list(self._callers.values()):
            caller.read()
            if caller.is_complete:
                yield from self._answer(caller, now)
            if caller.is_over or now >= caller.until:
                del self._callers[caller.fileno()]
                caller.close()

    def close(self) -> None:
        for caller in self._callers.values():
            caller.close()
        if self._listener is not None:
            self._listener.socket.close()
            self._files.run(partial(remove_socket, self._listener.path))
        self._epoll.close()

    def _open(self) -> None:
        self._listener = self._files.run(partial(_open_listener, self._environ))
        if self._listener is not None:
            self._listener.socket.setblocking(False)
            self._epoll.register(self._listener.socket, select.EPOLLIN)
            self._remove_at_end(self._listener.path)

    def _accept(self, now: float) -> None:
        if self._listener is None:
            return
        with suppress(OSError):
            while len(self._callers) < MOST_CALLERS:
                connection, _ = self._listener.socket.accept()
                if not is_of_this_user(connection):
                    connection.close()
                    continue
                caller = _Caller(connection, now + SECONDS_TO_ASK)
                self._callers[caller.fileno()] = caller
                self._epoll.register(caller, select.EPOLLIN)

    def _answer(self, caller: "_Caller", now: float) -> Iterable[Event]:
        from clusterrun.control.messages import Describe, Suspend, decode_request, encode

        try:
            request = decode_request(bytes(caller.received))
        except ValueError:
            # Of another version, or no command of ours.
            return []
        caller.send(encode(self._describe()))
        match request:
            case Describe():
                return []
            case Suspend():
                return [SuspensionWanted(BY_COMMAND, now)]


class _Caller:
    """A command that has connected."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        connection.setblocking(False)
        self._connection = connection
        self.until = until
        self.received = bytearray()
        self.is_complete = False
        """All of the request is here."""
        self.is_over = False

    def fileno(self) -> int:
        return self._connection.fileno()

    def read(self) -> None:
        try:
            data = self._connection.recv(LONGEST_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            self.is_over = True
            return
        self.received += data
        self.is_complete = not data
        self.is_over = self.is_complete or len(self.received) > LONGEST_REQUEST

    def send(self, data: bytes) -> None:
        # An answer is smaller than the socket's buffer.
        with suppress(OSError):
            self._connection.sendall(data)

    def close(self) -> None:
        self._connection.close()


def _open_listener(environ: Mapping[str, str]) -> Listener | None:
    for _ in range(ATTEMPTS_TO_OPEN):
        folder = socket_folder(environ)
        if folder is None:
            return None
        remove_stale_sockets(folder)
        # A job in another container that shares the folder may have the same process id.
        path = folder / f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        with suppress(OSError):
            return Listener(listen_at(path), path)
    return None


def remove_stale_sockets(folder: Path) -> None:
    """Remove the sockets of agents that were killed."""
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            try:
                os.kill(int(path.name.split("-")[1]), 0)
            except ProcessLookupError:
                # Not of this PID namespace, or dead.
                if _is_stale(path):
                    remove_socket(path)


def _is_stale(path: Path) -> bool:
    try:
        connect_to(path, SECONDS_TO_ASK).close()
    except ConnectionRefusedError:
        return True
    return False
