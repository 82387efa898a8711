"""Where members knock: a port that listens until all are there, and then is kept for the workers."""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launcher.domain.facts import Fact
from launcher.errors import RendezvousError
from launcher.rendezvous.port_owner import owner_of_port, program
from launcher.rendezvous.ports import bound_everywhere

_BACKLOG = 4096
_CREDENTIALS = struct.Struct("iII")


class PortBusy(RendezvousError):  # noqa: N818 - what happened, as its siblings say it
    """None of the ports that the coordinator may use is free."""


class Door:
    """A listening port, claimed among all clusterruns of this machine."""

    def __init__(self, number: int, listener: socket.socket, claim: socket.socket | None) -> None:
        """Take over the sockets."""
        self.number = number
        self.is_open = True
        self._listener = listener
        self._claim = claim

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when somebody knocks."""
        return self._listener.fileno()

    def callers(self) -> Iterator[tuple[socket.socket, object]]:
        """Yield all who have knocked, with their addresses.

        Raises:
            OSError: there are too many open files.

        """
        while self.is_open:
            with suppress(ConnectionAbortedError):
                try:
                    yield self._listener.accept()
                except BlockingIOError:
                    return

    def close(self) -> None:
        """Let nobody else in, but keep the port: the workers' store can listen there now.

        A socket that listened on a port it had asked for keeps it when it is shut down
        (``tcp_disconnect`` in the kernel's net/ipv4/tcp.c), and is a holder as in ``ports``.
        """
        if self.is_open:
            self.is_open = False
            self._listener.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Let go of the port."""
        self.is_open = False
        self._listener.close()
        if self._claim is not None:
            self._claim.close()


def open_door(ports: Fact[tuple[int, ...]], host: str, root: Path) -> Door:
    """Return the first of ``ports`` that is free, listening.

    Raises:
        PortBusy: all of them are in use on this machine, ``host``.

    """
    troubles = []
    for port in ports.value:
        try:
            return _open(port, root)
        except _InUse as error:
            troubles.append(f"port {port} ({ports.origin}) is in use on {host}: {error}")
        except OSError as error:
            text = error.strerror or str(error)
            troubles.append(f"port {port} ({ports.origin}) can't be used on {host}: {text}")
    raise PortBusy(
        "; ".join(troubles), "End that program, or give all nodes another --master-port."
    )


class _InUse(Exception):  # noqa: N818 - as PortBusy
    """By whom, in words."""


def _open(port: int, root: Path) -> Door:
    claim = _claim(port, root)
    try:
        listener = _listener(port)
    except OSError as error:
        if claim is not None:
            claim.close()
        if error.errno == errno.EADDRINUSE:
            raise _InUse(f"{owner_of_port(port, root)} has it") from error
        raise
    return Door(port, listener, claim)


def _listener(port: int) -> socket.socket:
    listener = bound_everywhere(port)
    try:
        listener.settimeout(0)
        # Two may have bound it, as both allow it; only one can listen.
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _claim(port: int, root: Path) -> socket.socket | None:
    """Return what shows other clusterruns that a port is taken though nobody listens there yet.

    Abstract names belong to the network namespace, as ports do, and end with their process. None
    where there are no such names: then the port itself is all that tells.

    Raises:
        _InUse: a clusterrun has it.

    """
    name = f"\0clusterrun-port-{port}"
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(name)
        claim.listen(1)
    except OSError as error:
        claim.close()
        if error.errno != errno.EADDRINUSE:
            return None
        raise _InUse(f"{_claimant(name, root)} has it for another job") from error
    return claim


def _claimant(name: str, root: Path) -> str:
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0)
        caller.connect(name)
        credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(credentials)
        # 0 is a process of another container.
        if pid and pid != os.getpid():
            return program(pid, root)
    return "another clusterrun"
