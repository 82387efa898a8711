"""TCP ports of this machine: held for the workers until they listen, and who has a busy one."""

import errno
import socket
from contextlib import suppress
from pathlib import Path

from clusterrun.bounds import as_name
from clusterrun.errors import MachineError, RendezvousError
from clusterrun.job.declarations import Setting

ANY_FREE_PORT: Setting[int | None] = Setting(None, "default")
"""No port is set: each attempt gets a fresh one."""


class MasterPort:
    """Where the workers of each attempt meet: the port that is set, or always a fresh one.

    No program gets it that does not ask for it by number: a bound socket that does not listen keeps
    the kernel from choosing the port, here and for any program that binds to port 0. With
    SO_REUSEADDR on both sides torch's store can still listen there (``inet_csk_bind_conflict`` in
    the kernel's net/ipv4/inet_connection_sock.c).
    """

    def __init__(self, chosen: Setting[int | None] = ANY_FREE_PORT) -> None:
        """Hold the port of the first attempt.

        Raises:
            RendezvousError: another program listens on the port that is set.
            MachineError: this user may not listen there.

        """
        self._chosen = chosen
        self._holder = _holder(chosen)
        self.number: int = self._holder.getsockname()[1]

    @property
    def is_chosen(self) -> bool:
        """Whether it is set, and the same in each attempt."""
        return self._chosen.value is not None

    def next(self) -> int:
        """Return the port of the next attempt, held.

        Raises:
            RendezvousError: a process that the last attempt left may listen on a port that is set.

        """
        last = self._holder
        if self.is_chosen:
            last.close()
        # While the last free one is still held, so that this is another.
        self._holder = _holder(self._chosen)
        last.close()
        self.number = self._holder.getsockname()[1]
        return self.number

    def release(self) -> None:
        self._holder.close()


def _holder(chosen: Setting[int | None]) -> socket.socket:
    """Return the socket that holds a port; of free ports, jobs on one machine get different ones."""
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
            f"{stop}set another port, or leave --master-port out:\n"
            "on one machine, or with --rdzv-endpoint, a free port is chosen",
        ) from error


def port_permission_error(number: int, origin: str, where: str) -> MachineError:
    """Return the error for a port that this user may not listen at; ``where``: "this machine"."""
    # ip(7); other modules of the kernel may refuse more.
    first = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text(encoding="ascii"))
    why = f"ports below {first} need root" if number < first else "permission denied"
    return MachineError(
        f"port {number} ({origin}) can't be used on {where} by this user: {why}",
        f"give one from {first} to 65535, the same on all nodes, with {port_option(origin)}",
    )


def port_option(origin: str) -> str:
    """Return the option that sets another port than the one from ``origin``."""
    return "--rdzv-endpoint" if "rdzv" in origin.lower() else "--master-port"


def port_error_text(number: int, origin: str, where: str, error: OSError) -> str:
    """Return why a port can't be used on a machine: "port 29500 (--master-port) is in use ..."."""
    port = f"port {number} ({origin})"
    if error.errno == errno.EADDRINUSE:
        return f"{port} is in use on {where} by {owner_of_port(number)}"
    return f"{port} can't be used on {where}: {error.strerror or error}"


def bind_wildcard(number: int) -> socket.socket:
    """Return a socket on the wildcard address of both families, with SO_REUSEADDR.

    Raises:
        OSError: another program listens on port ``number``, or this user may not have it.

    """
    # A program that listens on the wildcard address of either family needs the port in both.
    everywhere = ("", number)
    holder = bind_socket(socket.AF_INET6, everywhere) or bind_socket(socket.AF_INET, everywhere)
    if holder is None:
        raise OSError(errno.EADDRNOTAVAIL, "no address to bind to")
    return holder


def bind_socket(
    family: int, where: tuple[str, int] | tuple[str, int, int, int]
) -> socket.socket | None:
    """Return a socket at an address, with SO_REUSEADDR; None if this machine has no such address.

    Raises:
        OSError: another program listens there, or this user may not have it.

    """
    try:
        holder = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Both families at once, as torch's store listens.
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(where)
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return holder


def owner_of_port(port: int) -> str:
    """Return the program that listens on ``port``: "python (pid 12)", or as much as is known."""
    import psutil

    # RuntimeError: psutil could not read a line of the kernel's table.
    with suppress(OSError, RuntimeError, psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    return "a program of another user or container"
                return program(connection.pid)
    return "another program"


def program(pid: int) -> str:
    """Return "python (pid 12)"."""
    import psutil

    name = ""
    with suppress(psutil.Error):
        name = psutil.Process(pid).name()
    # A program may give itself any name.
    return f"{as_name(name) or 'a program'} (pid {pid})"
