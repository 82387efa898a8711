"""Where a running agent listens for the commands of its user: ``clusterrun ps``, ``stop`` ...

Its path is ``job-BOOT-PID-RANDOM`` in a folder for this user's sockets. A command finds the jobs of
this host by listing these folders. BOOT is the beginning of the kernel's boot id: hosts may share a
folder, and a process that does not run here may run there.
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
    # Imported for the first command: few jobs get any.
    from clusterrun.network.channel import Channel
    from clusterrun.network.requests import Description, Request

PREFIX = "job-"

MAX_REQUEST_BYTES = 1 << 12
"""Bytes."""

SECONDS_TO_ASK = 5.0
"""A command that has connected and sends no whole request is dropped after that."""

SECONDS_TO_READ = 5.0
"""A command that does not read its answer is dropped after that."""

SECONDS_WITHOUT_DESCRIPTORS = 0.5
"""Until the next try to accept one."""

MAX_CALLERS = 128
"""Connections at a time; others wait in the kernel's queue."""

MAX_ACCEPTED_IN_A_TURN = 16

SECONDS_TO_CONNECT = 0.2
"""The queue of an agent that is stopped may be full."""

ATTEMPTS_TO_OPEN = 3
"""A job that ends may remove the folder while this one opens its socket there."""

BY_STOP = "clusterrun stop"

AnswerQuery = Callable[[Query, Callable[[bytes], None], float], Iterable[Event]]
"""Takes a query and what takes its answer, now or later."""


class CommandConnection:
    """A command that has connected: it sends one request, and gets one answer."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        from clusterrun.network.channel import Channel
        from clusterrun.network.handshake import coordinator_handshake
        from clusterrun.network.requests import REQUESTS

        self.channel: Channel[Request] = Channel(REQUESTS, connection, coordinator_handshake(b""))
        self.channel.longest = MAX_REQUEST_BYTES
        # Of a large job; after some seconds it is dropped.
        self.channel.max_unsent = NEVER
        self.until = until
        """When it is dropped."""
        self.has_asked = False
        self.is_answered = False

    def request(self) -> Request | None:
        """Return the request once all of it is here; None until then, and for an invalid one."""
        from clusterrun.network.handshake import BadFrame

        try:
            requests = self.channel.receive()
        except BadFrame:
            # Of another version, or no command of ours.
            return None
        self.has_asked = bool(requests)
        return requests[0] if requests else None


class ControlSocket:
    """Answers the commands that connect; none of them waits for another."""

    def __init__(  # noqa: PLR0913 - each has another owner
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
        """Open the socket, if there is a place for it.

        Args:
            describe: returns the job.
            ask: answers queries about the job.
            environ: names the folder for sockets.
            files: what runs work on files.
            remove_at_end: has the socket removed, however this process ends.
            notice: prints what is wrong with folders.
            loop: the agent's.

        """
        self._describe = describe
        self._ask = ask
        self._files = files
        self._loop = loop
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._callers: dict[CommandConnection, None] = {}
        self._accept_again = NEVER
        opened = files.run(partial(_open_listener, environ))
        if opened is None:
            return
        if opened.remark:
            notice(f"warning: {opened.remark}")
        if opened.listener is not None and opened.path is not None:
            self._listener, self._path = opened.listener, opened.path
            remove_at_end(self._path)
            self._listener.setblocking(False)
            self._listen()
            loop.time(self)

    @property
    def due(self) -> float:
        """When a caller is to be dropped, or accepted."""
        return min([self._accept_again, *(caller.until for caller in self._callers)])

    def events(self, now: float) -> Iterable[Event]:
        """Drop those whose time is over."""
        for caller in [each for each in self._callers if now >= each.until]:
            self._drop(caller)
        if now >= self._accept_again:
            self._accept_again = NEVER
            self._listen()
        return ()

    def close(self) -> None:
        for caller in [*self._callers]:
            self._drop(caller)
        self._loop.remove_timer(self)
        if self._listener is not None and self._path is not None:
            self._loop.forget(self._listener.fileno())
            self._listener.close()
            self._files.run(partial(remove_socket, self._path))
            self._listener = None

    def _listen(self) -> None:
        """Accept connections while there is room."""
        if self._listener is None:
            return
        has_room = len(self._callers) < MAX_CALLERS and self._accept_again == NEVER
        self._loop.watch(self._listener.fileno(), self._accept, Priority.LISTENERS, reads=has_room)

    def _accept(self, now: float) -> Iterable[Event]:
        if self._listener is None:
            return ()
        for _ in range(min(MAX_ACCEPTED_IN_A_TURN, MAX_CALLERS - len(self._callers))):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                break
            except OSError:
                # This process has no descriptor left: the listener would be ready for ever.
                self._accept_again = now + SECONDS_WITHOUT_DESCRIPTORS
                break
            if is_peer_same_user(connection):
                caller = CommandConnection(connection, now + SECONDS_TO_ASK)
                self._callers[caller] = None
                self._watch(caller)
            else:
                connection.close()
        self._listen()
        return ()

    def _watch(self, caller: CommandConnection) -> None:
        """Wait for its request; then, until there is an answer, only for its end."""
        # Not as a stranger: its user is known, and a crowd at the joining port must not delay it.
        caller.channel.watch(self._loop, partial(self._serve, caller), reads=not caller.has_asked)

    def _serve(self, caller: CommandConnection, now: float) -> Iterator[Event]:
        if caller not in self._callers:
            return
        if not caller.has_asked:
            if (request := caller.request()) is not None:
                yield from self._take(caller, request, now)
        elif caller.is_answered:
            caller.channel.flush()
        else:
            # It has gone.
            self._drop(caller)
        self._settle(caller)

    def _take(self, caller: CommandConnection, request: Request, now: float) -> Iterable[Event]:
        import msgspec

        from clusterrun.network.requests import StopJob, Suspend

        if isinstance(request, Query):
            caller.until = now + request.seconds + SECONDS_TO_ASK
            yield from self._ask(request, partial(self._answer, caller), now)
            return
        described = self._describe()
        self._answer(caller, msgspec.msgpack.encode(described))
        match request:
            case Suspend() if not described.unsaved:
                yield SuspensionRequested(SUSPEND_COMMAND, now)
            case StopJob(at_once):
                by = f"{BY_STOP} --now" if at_once else BY_STOP
                yield StopRequested(by, at_once, now)

    def _answer(self, caller: CommandConnection, body: bytes) -> None:
        """Begin to send an answer; the caller may have gone."""
        if caller in self._callers:
            caller.until = self._loop.clock() + SECONDS_TO_READ
            caller.is_answered = True
            caller.channel.send_body(body)
            self._settle(caller)

    def _settle(self, caller: CommandConnection) -> None:
        channel = caller.channel
        if caller not in self._callers:
            return
        if channel.end is not None or (caller.is_answered and not channel.wants_write):
            self._drop(caller)
        else:
            self._watch(caller)

    def _drop(self, caller: CommandConnection) -> None:
        del self._callers[caller]
        caller.channel.close()
        self._listen()


class Opened(NamedTuple):
    """What listens and its path, None if nothing can, and what is wrong with the places for it."""

    listener: socket.socket | None
    path: Path | None
    remark: str


def _open_listener(environ: Mapping[str, str]) -> Opened:
    strange = unusable_socket_folders(environ)
    for _ in range(ATTEMPTS_TO_OPEN):
        folder = socket_folder(environ)
        if folder is None:
            break
        remove_stale_sockets(folder)
        # A job in another container that shares the folder may have the same process id.
        path = folder / f"{_prefix()}{os.getpid()}-{os.urandom(4).hex()}"
        with suppress(OSError):
            return Opened(listen_at(path), path, strange)
    why = strange or "no folder can be made for its socket"
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
                # Not of this PID namespace, or dead.
                if _is_stale(path):
                    remove_socket(path)


def pid_of(path: Path) -> int:
    """Return the process id of the agent that listens, or has listened, at ``path``; 0: no agent's."""
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
