"""The port on which nodes join: the coordinator listens there, then the workers may get it."""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

from clusterrun.errors import RendezvousError
from clusterrun.job.declarations import Setting
from clusterrun.network.addresses import Address
from clusterrun.ports import (
    bind_socket,
    bind_wildcard,
    port_error_text,
    port_option,
    port_permission_error,
    program,
)

_BACKLOG = 4096
_CREDENTIALS = struct.Struct("iII")


class PortInUse(RendezvousError):
    """None of the ports that the coordinator may use is free."""


class JoiningPort:
    """A listening port that no other clusterrun of this machine uses."""

    def __init__(
        self,
        holder: socket.socket,
        listeners: Sequence[socket.socket],
        claim: socket.socket | None,
    ) -> None:
        self.number: int = holder.getsockname()[1]
        self.is_open = True
        self._holder = holder
        self._listeners = listeners
        self._claim = claim

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when a connection can be accepted; () once it is closed."""
        return tuple(each.fileno() for each in self._listeners) if self.is_open else ()

    def accepted(self) -> Iterator[tuple[socket.socket, object]]:
        """Yield all new connections with the addresses of their other ends.

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
        """Stop listening, but hold the port: the workers' store can listen there now."""
        if self.is_open:
            self.is_open = False
            for listener in self._listeners:
                # A child that looks a name up may have a copy of it.
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()

    def release(self) -> None:
        """Stop listening and give the port back."""
        self.close()
        self._holder.close()
        if self._claim is not None:
            self._claim.close()


def open_joining_port(
    ports: Setting[tuple[int, ...]],
    host: str,
    only_at: Sequence[Address] = (),
    *,
    is_task: bool = False,
) -> JoiningPort:
    """Return the first of ``ports`` that is free, listening.

    Args:
        ports: in the order in which to try them.
        host: this machine's name, for messages.
        only_at: the addresses to listen at; () for all of this machine.
        is_task: a scheduler has set this agent's rank, and no option can.

    Raises:
        PortInUse: no port can be used.
        MachineError: this user may not listen at one.

    """
    troubles, hint = [], ""
    for port in ports.value:
        try:
            return _open(port, only_at)
        except _ClaimedError as error:
            troubles.append(f"port {port} ({ports.origin}) is in use on {host} by {error}")
            if not is_task:
                hint = "\nor, if that is node 0 of this job, give this node another --node-rank"
        except OSError as error:
            if error.errno == errno.EACCES:
                raise port_permission_error(port, ports.origin, host) from error
            troubles.append(port_error_text(port, ports.origin, host, error))
    option = port_option(ports.origin)
    raise PortInUse(
        "; ".join(troubles),
        f"stop that program, or set another port on all nodes with {option}{hint}",
    )


class _ClaimedError(Exception):
    """Another clusterrun has claimed the port: the text says which."""


def _open(port: int, only_at: Sequence[Address]) -> JoiningPort:
    with ExitStack() as undo:
        claim = _claim(port)
        if claim is not None:
            undo.callback(claim.close)
        # At every address, since that is where the workers' store will listen.
        holder = undo.enter_context(bind_wildcard(port))
        listeners = [undo.enter_context(each) for each in _bound(port, only_at)]
        for listener in listeners:
            listener.settimeout(0)
            # Two programs may have bound it, as both allow that; only one can listen.
            listener.listen(_BACKLOG)
        undo.pop_all()
    return JoiningPort(holder, listeners, claim)


def _bound(port: int, only_at: Sequence[Address]) -> Iterator[socket.socket]:
    if not only_at:
        yield bind_wildcard(port)
    for address in only_at:
        listener = bind_socket(address.family, address.at(port))
        if listener is None:
            raise OSError(errno.EADDRNOTAVAIL, f"this machine has no address {address.text}")
        yield listener


def _claim(port: int) -> socket.socket | None:
    """Return what shows other clusterruns that a port is taken even while no program listens there.

    Abstract names belong to the network namespace, as ports do, and end with their process. None
    where the kernel refuses such names: then only the port itself can be busy.

    Raises:
        _ClaimedError: another clusterrun has the port.

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
        raise _ClaimedError(f"another job{_claimant(name)}") from error
    return claim


def _claimant(name: str) -> str:
    """Return ": clusterrun (pid 12)"; "" if it is not known."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0)
        caller.connect(name)
        credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(credentials)
        # 0 is a process of another container.
        if pid and pid != os.getpid():
            return f": {program(pid)}"
    return ""
