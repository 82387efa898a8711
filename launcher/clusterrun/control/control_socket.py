"""Where a running agent listens for the commands of its user: ``clusterrun ps``, ``stop`` ...

Its path is ``job-BOOT-PID-RANDOM`` in a folder for this user's sockets. A command finds the jobs of
this host by listing these folders. BOOT is the beginning of the kernel's boot id: hosts may share a
folder, and a process that does not run here may run there.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from clusterrun.control.callers import Caller, Callers
from clusterrun.policy.events import Event, StopWanted, SuspensionWanted
from clusterrun.policy.messages import BY_COMMAND, Ask
from clusterrun.processes import boot_id
from clusterrun.user_sockets import (
    connect_to,
    listen_at,
    remove_socket,
    socket_folder,
    strange_places,
)

if TYPE_CHECKING:
    # Imported for the first request: few jobs get any.
    from clusterrun.control.messages import Description, Request

PREFIX = "job-"

SECONDS_TO_CONNECT = 0.2
"""The queue of an agent that is stopped may be full."""

ATTEMPTS_TO_OPEN = 3
"""A job that ends may remove the folder while this one opens its socket there."""

ResultT = TypeVar("ResultT")

BY_STOP = "clusterrun stop"

AnswerLook = Callable[[Ask, Callable[[bytes], None], float], Iterable[Event]]
"""Takes a look and what takes its answer, now or later."""


class TimeLimited(Protocol):
    """Runs work on files for a limited time."""

    def run(self, work: Callable[[], ResultT]) -> ResultT | None:
        """Return what ``work`` returns; None if it takes too long."""


class Listener(Struct, frozen=True):
    """A socket that listens, and its path."""

    socket: socket.socket
    path: Path


class Opened(NamedTuple):
    """What listens, None if nothing can, and what is wrong with the places for it."""

    listener: Listener | None
    remarks: tuple[str, ...]


class ControlSocket:
    """Answers commands, as a source of events; it opens when it is first due.

    That is in the agent's loop, while workers start already: no launch waits for it.
    """

    wants_write = False
    lost = False

    def __init__(  # noqa: PLR0913 - each has another owner
        self,
        describe: Callable[[], "Description"],
        look: AnswerLook,
        environ: Mapping[str, str],
        files: TimeLimited,
        remove_at_end: Callable[[Path], object],
        *,
        notice: Callable[[str], object] | None = None,
        opens_at: float = 0.0,
    ) -> None:
        """Take what the socket needs.

        Args:
            describe: returns the job.
            look: answers looks into the job.
            environ: names the folder for sockets.
            files: what runs work on files.
            remove_at_end: has the socket removed, however this process ends.
            notice: prints what is wrong with folders; None: another socket of this agent does.
            opens_at: when it opens, by the agent's clock.

        """
        self._remove_at_end = remove_at_end
        self._notice = notice
        self._describe = describe
        self._look = look
        self._environ = environ
        self._files = files
        self._listener: Listener | None = None
        self._callers = Callers()
        self._is_new = True
        self._opens_at = opens_at
        self._now = 0.0

    @property
    def due(self) -> float:
        return self._opens_at if self._is_new else self._callers.due

    def fileno(self) -> int:
        return self._callers.fileno()

    def flush(self) -> None:
        """Do nothing: ``events`` answers."""

    def events(self, now: float) -> Iterator[Event]:
        """Return what commands ask for; answer each."""
        self._now = now
        if self._is_new and now >= self._opens_at:
            self._is_new = False
            self._open()
        self._callers.accept(now)
        for caller, request in self._callers.requests(now):
            yield from self._serve(caller, request, now)

    def close(self) -> None:
        self._callers.close()
        if self._listener is not None:
            self._listener.socket.close()
            self._files.run(partial(remove_socket, self._listener.path))

    def _open(self) -> None:
        opened = self._files.run(partial(_open_listener, self._environ))
        if opened is None:
            return
        self._listener, remarks = opened
        if self._notice is not None:
            for remark in remarks:
                self._notice(f"warning: {remark}")
        if self._listener is not None:
            self._callers.listen(self._listener.socket)
            self._remove_at_end(self._listener.path)

    def _serve(self, caller: Caller, request: "Request", now: float) -> Iterable[Event]:
        from clusterrun.control.messages import StopJob, Suspend, encode

        if isinstance(request, Ask):
            yield from self._look(request, partial(self._reply, caller), now)
            return
        self._callers.answer(caller, encode(self._describe()), now)
        match request:
            case Suspend():
                yield SuspensionWanted(BY_COMMAND, now)
            case StopJob(at_once):
                yield StopWanted(BY_STOP, at_once, now)

    def _reply(self, caller: Caller, answer: bytes) -> None:
        self._callers.answer(caller, answer, self._now)


def _open_listener(environ: Mapping[str, str]) -> Opened:
    remarks = tuple(strange_places(environ))
    for _ in range(ATTEMPTS_TO_OPEN):
        folder = socket_folder(environ)
        if folder is None:
            break
        remove_stale_sockets(folder)
        # A job in another container that shares the folder may have the same process id.
        path = folder / f"{_prefix()}{os.getpid()}-{os.urandom(4).hex()}"
        with suppress(OSError):
            return Opened(Listener(listen_at(path), path), remarks)
    return Opened(
        None, (*remarks, "clusterrun ps and stop can't find this run: no folder for its socket")
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
