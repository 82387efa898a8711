"""The rendezvous port: the coordinator listens there while nodes join; workers may use it afterwards."""

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

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
    """No port that the coordinator may use is free."""


class RendezvousPort:
    """A listening port that no other clusterrun of this machine uses."""

    def __init__(
        self,
        holder: socket.socket,
        listeners: Sequence[socket.socket],
        lock: socket.socket | None,
    ) -> None:
        self.number: int = holder.getsockname()[1]
        self.is_open = True
        self._holder = holder
        self._listeners = listeners
        self._lock = lock

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The listening sockets; () once they are closed."""
        return tuple(each.fileno() for each in self._listeners) if self.is_open else ()

    def accepted(self) -> Iterator[tuple[socket.socket, tuple[Any, ...]]]:
        """Accept all pending connections; yield each with the peer's address.

        Raises:
            OSError: the limit of open files is reached.

        """
        for listener in self._listeners:
            while self.is_open:
                with suppress(ConnectionAbortedError):
                    try:
                        yield listener.accept()
                    except BlockingIOError:
                        break

    def close(self) -> None:
        """Stop listening, but keep the port bound; the workers' store can listen there now."""
        if self.is_open:
            self.is_open = False
            for listener in self._listeners:
                # A child process that resolves a name may have a copy of the descriptor.
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()

    def release(self) -> None:
        """Stop listening, and unbind the port."""
        self.close()
        self._holder.close()
        if self._lock is not None:
            self._lock.close()


def open_rendezvous_port(
    ports: Setting[tuple[int, ...]],
    host: str,
    only_at: Sequence[Address] = (),
    *,
    is_task: bool = False,
) -> RendezvousPort:
    """Listen at the first free port of ``ports``.

    Args:
        ports: the ports in the order in which to try them.
        host: this machine's name, for messages.
        only_at: the addresses to listen at; () for all addresses of this machine.
        is_task: a scheduler has set this agent's rank, so no option can change it.

    Raises:
        PortInUse: no port is free.
        MachineError: this user may not listen at one of them.

    """
    troubles, hint = [], ""
    for port in ports.value:
        try:
            return _open(port, only_at)
        except _PortLockedError as error:
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


class _PortLockedError(Exception):
    """Another clusterrun has locked the port: the text says which."""


def _open(port: int, only_at: Sequence[Address]) -> RendezvousPort:
    with ExitStack() as undo:
        lock = _lock(port)
        if lock is not None:
            undo.callback(lock.close)
        # At every address, because the workers' store will listen there.
        holder = undo.enter_context(bind_wildcard(port))
        listeners = [undo.enter_context(each) for each in _bound(port, only_at)]
        for listener in listeners:
            listener.settimeout(0)
            # Two programs may have bound the port, because both set SO_REUSEADDR; only one can listen.
            listener.listen(_BACKLOG)
        undo.pop_all()
    return RendezvousPort(holder, listeners, lock)


def _bound(port: int, only_at: Sequence[Address]) -> Iterator[socket.socket]:
    if not only_at:
        yield bind_wildcard(port)
    for address in only_at:
        listener = bind_socket(address.family, address.at(port))
        if listener is None:
            raise OSError(errno.EADDRNOTAVAIL, f"this machine has no address {address.text}")
        yield listener


def _lock(port: int) -> socket.socket | None:
    """Lock a port against other clusterruns; they must not use it even while no program listens there.

    The lock is an abstract Unix socket. Its name belongs to the network namespace, as the port does,
    and disappears with the process. None is returned if the kernel refuses such names.

    Raises:
        _PortLockedError: another clusterrun has locked the port.

    """
    name = f"\0clusterrun-port-{port}"
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(name)
        lock.listen(1)
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            return None
        raise _PortLockedError(f"another job{_lock_owner(name)}") from error
    return lock


def _lock_owner(name: str) -> str:
    """Return, for example, ": clusterrun (pid 12)"; "" if the process is unknown."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0)
        caller.connect(name)
        credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(credentials)
        # The pid is 0 if the process belongs to another container.
        if pid and pid != os.getpid():
            return f": {program(pid)}"
    return ""
