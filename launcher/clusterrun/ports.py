"""TCP ports of this machine: reserved for the workers until they listen, and who occupies one."""

import errno
import socket
from contextlib import suppress
from pathlib import Path

from clusterrun.bounds import as_name
from clusterrun.errors import MachineError, RendezvousError
from clusterrun.job.declarations import Setting

ANY_FREE_PORT: Setting[int | None] = Setting(None, "default")
"""No port is set, so each attempt gets a free one."""


class MasterPort:
    """MASTER_PORT of each attempt, reserved: the port that is set, or a free one for each attempt.

    A bound socket that does not listen reserves the port: the kernel then gives it to no program
    that binds to port 0 or connects. With SO_REUSEADDR on both sides, torch's store can still
    listen there (``inet_csk_bind_conflict`` in the kernel's net/ipv4/inet_connection_sock.c).
    """

    def __init__(self, chosen: Setting[int | None] = ANY_FREE_PORT) -> None:
        """Reserve the port of the first attempt.

        Raises:
            RendezvousError: another program listens on the port that is set.
            MachineError: this user may not listen there.

        """
        self._chosen = chosen
        self._socket = _reserve(chosen)
        self.number: int = self._socket.getsockname()[1]

    @property
    def is_chosen(self) -> bool:
        """Whether the port is set, and so is the same in each attempt."""
        return self._chosen.value is not None

    def next(self) -> int:
        """Reserve and return the port of the next attempt.

        Raises:
            RendezvousError: a process that the last attempt left may listen on a port that is set.

        """
        last = self._socket
        if self.is_chosen:
            last.close()
        # A free port is reserved before the last one is released, so that it differs.
        self._socket = _reserve(self._chosen)
        last.close()
        self.number = self._socket.getsockname()[1]
        return self.number

    def release(self) -> None:
        self._socket.close()


def _reserve(chosen: Setting[int | None]) -> socket.socket:
    """Return a socket that reserves a port; jobs on one machine get different free ports."""
    number = chosen.value or 0
    try:
        return bind_wildcard(number)
    except OSError as error:
        if chosen.value is None:
            raise
        if error.errno == errno.EACCES:
            raise port_permission_error(number, chosen.origin, "this machine") from error
        is_in_use = error.errno == errno.EADDRINUSE
        stop = "stop the program that listens there, " if is_in_use else ""
        raise RendezvousError(
            port_error_text(number, chosen.origin, "this machine", error),
            f"{stop}set another port, or remove --master-port:\n"
            "on one machine, or with --rdzv-endpoint, a free port is chosen",
        ) from error


def port_permission_error(number: int, origin: str, where: str) -> MachineError:
    """Return the error for a port that this user may not listen on; ``where``: "this machine"."""
    # See ip(7). Security modules may refuse more.
    first = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text(encoding="ascii"))
    why = f"ports below {first} need root" if number < first else "permission denied"
    return MachineError(
        f"port {number} ({origin}) can't be used on {where} by this user: {why}",
        f"give one from {first} to 65535, the same on all nodes, with {port_option(origin)}",
    )


def port_option(origin: str) -> str:
    """Return the option with which to replace a port that was set in ``origin``."""
    return "--rdzv-endpoint" if "rdzv" in origin.lower() else "--master-port"


def port_error_text(number: int, origin: str, where: str, error: OSError) -> str:
    """Return why a port can't be used: "port 29500 (--master-port) is in use on this machine by ..."."""
    port = f"port {number} ({origin})"
    if error.errno == errno.EADDRINUSE:
        return f"{port} is in use on {where} by {owner_of_port(number)}"
    return f"{port} can't be used on {where}: {error.strerror or error}"


def bind_wildcard(number: int) -> socket.socket:
    """Return a socket that is bound to the wildcard address of both families, with SO_REUSEADDR.

    Raises:
        OSError: another program listens on port ``number``, or this user may not bind to it.

    """
    # A program that listens on the wildcard address of either family needs the port in both.
    everywhere = ("", number)
    bound = bind_socket(socket.AF_INET6, everywhere) or bind_socket(socket.AF_INET, everywhere)
    if bound is None:
        raise OSError(errno.EADDRNOTAVAIL, "no address to bind to")
    return bound


def bind_socket(
    family: int, where: tuple[str, int] | tuple[str, int, int, int]
) -> socket.socket | None:
    """Return a socket bound to an address, with SO_REUSEADDR; None if the machine has no such address.

    Raises:
        OSError: another program listens there, or this user may not bind to it.

    """
    try:
        bound = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Both families at once, because torch's store listens that way.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(where)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return bound


def owner_of_port(port: int) -> str:
    """Return the program that listens on ``port``, "python (pid 12)", or as much as is known."""
    import psutil

    # RuntimeError: psutil could not parse a line of the kernel's table.
    with suppress(OSError, RuntimeError, psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    return "a program of another user or container"
                return program(connection.pid)
    return "another program"


def program(pid: int) -> str:
    """Return the name and pid of a process: "python (pid 12)"."""
    import psutil

    name = ""
    with suppress(psutil.Error):
        name = psutil.Process(pid).name()
    # A process may have set any name.
    return f"{as_name(name) or 'a program'} (pid {pid})"
