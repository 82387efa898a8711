"""The socket at which an agent answers its user's commands: ``clusterrun ps``, ``stop`` and others.

Its path is ``job-BOOT-PID-RANDOM`` in a folder for this user's sockets. A command finds the jobs of
this host by listing these folders. BOOT is the beginning of the kernel's boot id: it distinguishes
the agents of hosts that share a folder.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterrun.loop import NEVER, Loop, Priority
from clusterrun.policy.events import Event, StopRequested, SuspensionRequested
from clusterrun.policy.messages import SUSPEND_COMMAND
from clusterrun.policy.queries import Query
from clusterrun.processes import TimeLimitedCalls, boot_id
from clusterrun.user_sockets import (
    SOCKET_FOLDER_HINT,
    connect_to,
    is_peer_same_user,
    listen_at,
    remove_socket,
    socket_folder,
    unusable_socket_folders,
)

if TYPE_CHECKING:
    # Imported for the first command, because few jobs get any.
    from clusterrun.network.channel import Channel
    from clusterrun.network.requests import Description, Request

PREFIX = "job-"

MAX_REQUEST_BYTES = 1 << 12

SECONDS_TO_ASK = 5.0
"""From connecting to the end of the request; then a client is disconnected."""

SECONDS_TO_READ = 5.0
"""For the answer; then a client that does not read it is disconnected."""

SECONDS_WITHOUT_DESCRIPTORS = 0.5
"""Until the next attempt to accept connections when no descriptor was free."""

MAX_CLIENTS = 128
"""At a time; others wait in the kernel's queue."""

MAX_ACCEPTED_PER_TURN = 16

SECONDS_TO_CONNECT = 0.2
"""The queue of a stopped agent may be full."""

ATTEMPTS_TO_OPEN = 3
"""A job that ends may remove the folder while this one creates its socket there."""

BY_STOP = "clusterrun stop"

AnswerQuery = Callable[[Query, Callable[[bytes], None], float], Iterable[Event]]
"""Takes a query, the function to call with the encoded answer now or later, and the time."""


class CommandConnection:
    """The connection of a command, which sends one request and gets one answer."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        from clusterrun.network.channel import Channel
        from clusterrun.network.handshake import coordinator_handshake
        from clusterrun.network.requests import REQUESTS

        self.channel: Channel[Request] = Channel(REQUESTS, connection, coordinator_handshake(b""))
        self.channel.max_body_bytes = MAX_REQUEST_BYTES
        # The answer of a large job has no limit. A client that does not read it is disconnected.
        self.channel.max_unsent_bytes = NEVER
        self.deadline = deadline
        """When to disconnect."""
        self.has_asked = False
        self.is_answered = False

    def request(self) -> Request | None:
        """Return the request once it is complete; None until then, or if it is invalid."""
        from clusterrun.network.handshake import BadFrame

        try:
            requests = self.channel.receive()
        except BadFrame:
            # The client has another version, or is not clusterrun.
            return None
        self.has_asked = bool(requests)
        return requests[0] if requests else None


class ControlSocket:
    """Answers the user's commands; none of them waits for another."""

    def __init__(  # noqa: PLR0913 - each is a different part of the agent
        self,
        describe: Callable[[], Description],
        ask: AnswerQuery,
        environ: Mapping[str, str],
        *,
        files: TimeLimitedCalls,
        remove_at_end: Callable[[Path], object],
        notice: Callable[[str], object],
        loop: Loop[Event],
    ) -> None:
        """Open the socket, if there is a folder for it.

        Args:
            describe: returns the description of the job.
            ask: answers queries about the job.
            environ: the variables that name the folder for sockets.
            files: calls functions that use the file system, with a time limit.
            remove_at_end: has the socket removed when this process ends, even if it is killed.
            notice: prints a line for the user.
            loop: the agent's loop.

        """
        self._describe = describe
        self._ask = ask
        self._files = files
        self._loop = loop
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._clients: dict[CommandConnection, None] = {}
        self._accept_again = NEVER
        opened = files.run(partial(_open_listener, environ))
        if opened is None:
            return
        if opened.warning is not None:
            notice(f"warning: {opened.warning}")
        if opened.listener is not None and opened.path is not None:
            self._listener, self._path = opened.listener, opened.path
            remove_at_end(self._path)
            self._listener.setblocking(False)
            self._listen()
            loop.add_timer(self)

    @property
    def due(self) -> float:
        """When to disconnect a client, or to accept connections again."""
        return min([self._accept_again, *(client.deadline for client in self._clients)])

    def events(self, now: float) -> Iterable[Event]:
        """Disconnect the clients whose deadline has passed."""
        for client in [each for each in self._clients if now >= each.deadline]:
            self._drop(client)
        if now >= self._accept_again:
            self._accept_again = NEVER
            self._listen()
        return ()

    def close(self) -> None:
        for client in [*self._clients]:
            self._drop(client)
        self._loop.remove_timer(self)
        if self._listener is not None and self._path is not None:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
            self._files.run(partial(remove_socket, self._path))
            self._listener = None

    def _listen(self) -> None:
        """Accept connections while fewer than ``MAX_CLIENTS`` are open."""
        if self._listener is None:
            return
        accepts = len(self._clients) < MAX_CLIENTS and self._accept_again == NEVER
        self._loop.watch(self._listener.fileno(), self._accept, Priority.LISTENERS, reads=accepts)

    def _accept(self, now: float) -> Iterable[Event]:
        if self._listener is None:
            return ()
        for _ in range(min(MAX_ACCEPTED_PER_TURN, MAX_CLIENTS - len(self._clients))):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                break
            except OSError:
                # No descriptor is left, and the listener would stay readable.
                self._accept_again = now + SECONDS_WITHOUT_DESCRIPTORS
                break
            if is_peer_same_user(connection):
                client = CommandConnection(connection, now + SECONDS_TO_ASK)
                self._clients[client] = None
                self._watch(client)
            else:
                connection.close()
        self._listen()
        return ()

    def _watch(self, client: CommandConnection) -> None:
        """Wait for the request; after it, until there is an answer, only for the end of the connection."""
        # Not as UNAUTHENTICATED: the user is known, and a flood at the rendezvous port must not delay it.
        client.channel.watch(self._loop, partial(self._serve, client), reads=not client.has_asked)

    def _serve(self, client: CommandConnection, now: float) -> Iterator[Event]:
        if client not in self._clients:
            return
        if not client.has_asked:
            if (request := client.request()) is not None:
                yield from self._handle(client, request, now)
        elif client.is_answered:
            client.channel.flush()
        else:
            # The client has closed the connection.
            self._drop(client)
        self._drop_or_watch(client)

    def _handle(self, client: CommandConnection, request: Request, now: float) -> Iterable[Event]:
        import msgspec

        from clusterrun.network.requests import StopJob, Suspend

        if isinstance(request, Query):
            client.deadline = now + request.seconds + SECONDS_TO_ASK
            yield from self._ask(request, partial(self._answer, client), now)
            return
        description = self._describe()
        self._answer(client, msgspec.msgpack.encode(description))
        match request:
            case Suspend() if not description.unsaved:
                yield SuspensionRequested(SUSPEND_COMMAND, now)
            case StopJob(at_once):
                by = f"{BY_STOP} --now" if at_once else BY_STOP
                yield StopRequested(by, at_once, now)

    def _answer(self, client: CommandConnection, body: bytes) -> None:
        """Start to send an answer, unless the client has disconnected."""
        if client in self._clients:
            client.deadline = self._loop.clock() + SECONDS_TO_READ
            client.is_answered = True
            client.channel.send_body(body)
            self._drop_or_watch(client)

    def _drop_or_watch(self, client: CommandConnection) -> None:
        channel = client.channel
        if client not in self._clients:
            return
        if channel.end is not None or (client.is_answered and not channel.wants_write):
            self._drop(client)
        else:
            self._watch(client)

    def _drop(self, client: CommandConnection) -> None:
        del self._clients[client]
        client.channel.close()
        self._listen()


class Opened(NamedTuple):
    """The listening socket and its path, None if there is no folder for it; and what is wrong."""

    listener: socket.socket | None
    path: Path | None
    warning: str | None


def _open_listener(environ: Mapping[str, str]) -> Opened:
    unusable = unusable_socket_folders(environ)
    for _ in range(ATTEMPTS_TO_OPEN):
        folder = socket_folder(environ)
        if folder is None:
            break
        remove_stale_sockets(folder)
        # An agent in another container that shares the folder may have the same process id.
        path = folder / f"{_prefix()}{os.getpid()}-{os.urandom(4).hex()}"
        with suppress(OSError):
            return Opened(listen_at(path), path, unusable or None)
    why = unusable or "no folder can be made for its socket"
    return Opened(
        None, None, f"clusterrun ps and stop can't find this run: {why}; {SOCKET_FOLDER_HINT}"
    )


def remove_stale_sockets(folder: Path) -> None:
    """Remove the sockets of agents of this host that were killed."""
    for path in folder.glob(f"{_prefix()}*"):
        with suppress(OSError):
            try:
                os.kill(pid_of(path), 0)
            except ProcessLookupError:
                # The agent is dead, or belongs to another PID namespace.
                if _is_stale(path):
                    remove_socket(path)


def pid_of(path: Path) -> int:
    """Return the process id in the name of an agent's socket; 0 if there is none."""
    pid = path.name.split("-")[-2]
    return int(pid) if pid.isdecimal() else 0


def _prefix() -> str:
    return f"{PREFIX}{boot_id()[:8]}-"


def _is_stale(path: Path) -> bool:
    try:
        connect_to(path, SECONDS_TO_CONNECT).close()
    except ConnectionRefusedError:
        return True
    return False
