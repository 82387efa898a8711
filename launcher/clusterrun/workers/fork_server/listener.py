"""Where later agents find a server that stays: a socket of its user's, in a folder that is closed to others.

The first message of a connection says what is wanted. ``serve`` says what a process of the new job
inherits (its *key*) and what is to be prepared. If that differs from what this process has inherited and
imported, the agent learns it, and starts another server in its place. One agent is served at a time.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from .channel import HelperChannel, frame
from .kernel import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .channel import Message
    from .server import Server

SECONDS_TO_END_ANOTHER = 5.0
"""How long another server at the same path may take to accept a connection."""


class Listener:
    """Takes connections while its server lives: until it has had no job for ``seconds``."""

    def __init__(
        self,
        server: Server,
        path: str,
        seconds: float,
        key: dict[str, str],
        is_owned: bool,  # noqa: FBT001 - a field of the message
    ) -> None:
        """Listen at ``path``, in the place of another server that listens there.

        Args:
            server: has an agent, and is prepared.
            path: of the socket.
            seconds: after which it ends without a job.
            key: what a process of its job inherits, by name.
            is_owned: whether the folder of the socket is that of one process, which may be killed.

        Raises:
            OSError: no socket can be made there.

        """
        self._server = server
        self._path = path
        self._seconds = seconds
        self._key = key
        self._is_owned = is_owned
        self._files = _stamps_of_modules()
        self._owner: HelperChannel | None = None
        """The connection of a process with whose end the server ends; None: there is none."""
        self._can_be_found = True
        self._idle_since = time.monotonic()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        own = f"{path}.{os.getpid()}"
        _call_with_address(self._socket.bind, own)
        self._socket.listen(8)
        self._inode = os.stat(own).st_ino
        # It may be about to end, or it was killed.
        _end_server_at(path)
        os.rename(own, path)
        server.watch(self._socket.fileno(), self._accept)

    @property
    def is_to_end(self) -> bool:
        """Whether the server has no job any more, and waits for none."""
        return self.milliseconds_left() == 0

    def milliseconds_left(self) -> float | None:
        """Return how long the server stays from now on; None: it has a job, or an owner."""
        if not self._server.agent.closed or self._owner is not None:
            return None
        return max(0.0, self._seconds - (time.monotonic() - self._idle_since)) * 1000

    def begin_to_wait(self) -> None:
        """Take note that the server's agent is gone."""
        self._idle_since = time.monotonic()

    def close(self) -> None:
        """Remove the socket, and its owner's folder, unless that is done."""
        if self._can_be_found:
            self._remove(with_folder=True)

    def _remove(self, *, with_folder: bool) -> None:
        self._can_be_found = False
        try:
            # Another server may have taken its place.
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
            if self._is_owned and with_folder:
                os.rmdir(os.path.dirname(self._path))
        except OSError:
            pass

    def _accept(self) -> None:
        program = HelperChannel(self._socket.accept()[0])
        if program.peer()[1] == os.geteuid():
            # One that says nothing delays nobody.
            self._server.watch(program.fileno(), lambda: self._hear(program))
        else:
            program.close()

    def _hear(self, program: HelperChannel) -> None:
        """Do what a program asks for in its first message."""
        try:
            messages = program.receive()
            if not messages and not program.closed:
                return
            message, descriptors = messages[0] if messages else ({}, ())
            kind = message.get("kind")
        except Exception:  # no message: another program than clusterrun
            kind, message, descriptors = "", {}, ()
        self._server.forget(program.fileno())
        if kind == "serve" and message.keys() >= {"key", "prepare"} and descriptors:
            self._serve(program, message, descriptors[0])
        elif kind == "hold":
            self._be_held_by(program)
        else:
            if kind == "end":
                self._end_soon()
            program.close()
        for descriptor in descriptors:
            os.close(descriptor)

    def _serve(self, agent: HelperChannel, request: Message, stderr: int) -> None:
        """Have the server serve this agent, or tell the agent why not."""
        if not self._server.agent.closed:
            agent.send({"kind": "busy"})
        elif changed := self._changed(request):
            agent.send({"kind": "changed", "what": changed})
        else:
            self._server.serve_another(agent, stderr)
            return
        agent.close()

    def _changed(self, request: dict[str, Any]) -> list[str]:
        """Return the names of what differs from what the server has inherited or imported."""
        own, key = self._key, request["key"]
        names = sorted(name for name in {**own, **key} if own.get(name) != key.get(name))
        files = [path for path, stamp in self._files.items() if _stamp_of(path) != stamp]
        changed = names or ["file " + path for path in files]
        if not changed and not self._server.preparation.take_over(request["prepare"]):
            return ["what the script imports first"]
        return changed

    def _be_held_by(self, owner: HelperChannel) -> None:
        self._let_owner_go()
        self._owner = owner
        # The owner has ended, or has no use for the server any more.
        self._server.watch(owner.fileno(), lambda: self._end_soon(with_folder=True))

    def _end_soon(self, *, with_folder: bool = False) -> None:
        """Let no other agent find the server, which ends once it has no job, whoever holds it.

        ``with_folder``: no other one is to take its place.
        """
        self._let_owner_go()
        self._remove(with_folder=with_folder)
        self._seconds = 0.0

    def _let_owner_go(self) -> None:
        if self._owner is not None:
            self._server.forget(self._owner.fileno())
            self._owner.close()
            self._owner = None


def _stamps_of_modules() -> dict[str, tuple[int, int]]:
    """Return time and size of each file that has been imported; the script is read for each job."""
    modules = {name: module for name, module in sys.modules.items() if name != "__main__"}
    files = {getattr(module, "__file__", None) for module in modules.values()}
    # An installation changes these folders, and may bring a .pth file or another shared library.
    packages = {path for path in sys.path if path.endswith("-packages")}
    paths = {path for path in files if isinstance(path, str)} | packages | _mapped_files()
    return {path: _stamp_of(path) for path in paths}


def _mapped_files() -> set[str]:
    """Return the files whose pages this process has: the interpreter and shared libraries."""
    lines = text_of("/proc/self/maps").splitlines()
    return {line[line.index("/") :] for line in lines if "/" in line and "(deleted)" not in line}


def _stamp_of(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _call_with_address(call: Callable[[str], object], path: str) -> None:
    """Bind or connect a socket to ``path``: the kernel takes 107 bytes, and TMPDIR may be longer.

    Raises:
        OSError: the folder does not exist, or what ``call`` raises.

    """
    folder = os.open(os.path.dirname(path), os.O_PATH)
    try:
        call(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)


def _end_server_at(path: str) -> None:
    """Have a server that listens there end as soon as it has no job: no agent will find it again."""
    other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    other.settimeout(SECONDS_TO_END_ANOTHER)
    try:
        _call_with_address(other.connect, path)
        other.sendall(frame({"kind": "end"}))
    except OSError:
        pass  # none listens
    other.close()
