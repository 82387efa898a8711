"""Where members knock: a port that listens until all are there, and then is kept for the workers."""

import errno
import os
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

from clusterrun.domain.facts import Fact
from clusterrun.errors import RendezvousError
from clusterrun.rendezvous.names.addresses import Address
from clusterrun.rendezvous.ports.held_port import HeldPort, bound_at, bound_everywhere
from clusterrun.rendezvous.ports.port_owner import owner_of_port, program

_BACKLOG = 4096
_CREDENTIALS = struct.Struct("iII")


class PortBusy(RendezvousError):
    """None of the ports that the coordinator may use is free."""


class JoiningPort:
    """A listening port, claimed among all clusterruns of this machine."""

    def __init__(
        self,
        holder: HeldPort,
        listeners: Sequence[socket.socket],
        claim: socket.socket | None,
    ) -> None:
        """Take over the sockets."""
        self.number = holder.number
        self.is_open = True
        self._holder = holder
        self._listeners = listeners
        self._claim = claim
        self._epoll = select.epoll()
        for listener in listeners:
            self._epoll.register(listener, select.EPOLLIN)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when somebody knocks."""
        return self._epoll.fileno()

    def callers(self) -> Iterator[tuple[socket.socket, object]]:
        """Yield all who have knocked, with their addresses.

        Raises:
            OSError: there are too many open files.

        """
        for listener in self._listeners:
            while self.is_open:
                with suppress(ConnectionAbortedError):
                    try:
                        yield listener.accept()
                    except BlockingIOError:
                        break

    def close(self) -> None:
        """Let nobody else in, but keep the port: the workers' store can listen there now."""
        if self.is_open:
            self.is_open = False
            self._epoll.close()
            for listener in self._listeners:
                # A child that looks a name up may have a copy of it.
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()

    def release(self) -> None:
        """Let go of the port."""
        self.close()
        self._holder.release()
        if self._claim is not None:
            self._claim.close()


def open_joining_port(
    ports: Fact[tuple[int, ...]], host: str, only_at: Sequence[Address] = ()
) -> JoiningPort:
    """Return the first of ``ports`` that is free, listening.

    Args:
        ports: where, in this order.
        host: this machine's name, for people.
        only_at: the addresses to listen at; () for all that this machine has.

    Raises:
        PortBusy: all of the ports are in use on this machine.

    """
    troubles = []
    for port in ports.value:
        try:
            return _open(port, only_at)
        except _InUse as error:
            troubles.append(f"port {port} ({ports.origin}) is in use on {host}: {error}")
        except OSError as error:
            text = error.strerror or str(error)
            troubles.append(f"port {port} ({ports.origin}) can't be used on {host}: {text}")
    raise PortBusy(
        "; ".join(troubles), "End that program, or give all nodes another --master-port."
    )


class _InUse(Exception):
    """By whom, in words."""


def _open(port: int, only_at: Sequence[Address]) -> JoiningPort:
    claim = _claim(port)
    with ExitStack() as undo:
        if claim is not None:
            undo.callback(claim.close)
        try:
            # At every address, since that is where the workers' store will listen.
            holder = undo.enter_context(bound_everywhere(port))
            listeners = [undo.enter_context(each) for each in _bound(port, only_at)]
            for listener in listeners:
                listener.settimeout(0)
                # Two may have bound it, as both allow it; only one can listen.
                listener.listen(_BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _InUse(f"{owner_of_port(port)} has it") from error
            raise
        undo.pop_all()
    return JoiningPort(HeldPort(port, holder), listeners, claim)


def _bound(port: int, only_at: Sequence[Address]) -> Iterator[socket.socket]:
    if not only_at:
        yield bound_everywhere(port)
    for address in only_at:
        listener = bound_at(address.family, address.at(port))
        if listener is None:
            raise OSError(errno.EADDRNOTAVAIL, f"this machine has no address {address.text}")
        yield listener


def _claim(port: int) -> socket.socket | None:
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
        raise _InUse(f"{_claimant(name)} has it for another job") from error
    return claim


def _claimant(name: str) -> str:
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0)
        caller.connect(name)
        credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(credentials)
        # 0 is a process of another container.
        if pid and pid != os.getpid():
            return program(pid)
    return "another clusterrun"
